"""From environment variables and YAML to one policy that knows where each value came from."""

from __future__ import annotations

from pathlib import Path

from vllm_fl_dispatch.policy import SelectionPolicy


def policy_from_config(path: str | Path) -> SelectionPolicy:
    """The policy that a YAML file spells (see `vllm_fl_dispatch.config.schema.PolicyFile`).

    Raises:
        PolicyError: missing or unreadable file, bad YAML, wrong shape or value; an unknown key
            where the file is strict. Otherwise unknown keys are warnings in the log.
    """
    from vllm_fl_dispatch.config.effective import policy_from_file
    from vllm_fl_dispatch.logger_manager import get_logger

    found = policy_from_file(path)
    for warning in found.warnings:
        get_logger(__name__).warning("%s", warning)
    return found.policy
