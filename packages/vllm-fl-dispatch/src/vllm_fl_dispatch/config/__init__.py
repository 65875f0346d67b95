"""From environment variables and YAML to one policy that knows where each value came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_fl_dispatch.policy import SelectionPolicy


def policy_from_config(path: str | Path) -> SelectionPolicy:
    """The policy that a YAML file spells (see `vllm_fl_dispatch.config.schema.PolicyFile`).

    Raises:
        PolicyError: missing or unreadable file, bad YAML, unknown key, wrong shape or value.
    """
    from vllm_fl_dispatch.config import schema  # pydantic is costly to import

    return schema.policy_from_config(path)
