"""The policy in force when nobody set one in code."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_fl_dispatch.config import policy_from_config
from vllm_fl_dispatch.config.environment import policy_from_environment, read
from vllm_fl_dispatch.policy import SelectionPolicy


def effective_policy(environ: Mapping[str, str] | None = None) -> SelectionPolicy:
    """`VLLM_FL_CONFIG` alone if set; otherwise the defaults with the environment on top."""
    path = read("VLLM_FL_CONFIG", environ)
    if path is not None:
        return policy_from_config(path.strip())
    return policy_from_environment(environ=environ)
