"""The identity of the selection: what compiled code has baked in, and what ranks must share."""

from __future__ import annotations

import hashlib
import json

from vllm_fl_dispatch.config.environment import VARIABLES
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.vllm import compat

VARIABLE = "VLLM_FL_FINGERPRINT"


def selection(manager: OpManager) -> dict[str, list[str]]:
    """operator, in either mode -> implementations as they are tried, each with its version."""
    manager.ensure_built()
    policy = manager.current_policy()
    found = {}
    for op in manager.registry.names():
        names = manager.registry.contract(op).names
        for compiled in (False, True):
            own = policy.for_mode(compiled)
            accepted = manager.resolve(op, policy=own, stock=True).accepted
            found[f"{op}{' compiled' if compiled else ''}"] = (
                ["stock"]
                if own.layer_objection(names)
                else [f"{i.impl_id}@{i.origin.version if i.origin else ''}" for i in accepted]
            )
    return found


def chosen(manager: OpManager) -> dict[str, list[str]]:
    """The selection, and what layers were bound to: one that failed when it was tried is not what
    the selection says."""
    found = selection(manager)
    for row in manager.report.rows():
        if row.layers:
            found.setdefault(f"{row.op} in layers", []).append(f"{row.impl_id} {row.mode}")
    return found


def fingerprint(manager: OpManager) -> str:
    """A digest of what was chosen; vLLM asks for it when the layers are built."""
    text = json.dumps(chosen(manager), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def publish(manager: OpManager) -> None:
    """Make the fingerprint part of the key of vLLM's compile cache.

    vLLM hashes every variable that it knows. Ours are made known, which also silences its
    warning about unknown ones, but with constant values: only the selection itself decides.
    """

    def current() -> str:
        try:
            return fingerprint(manager)
        # A getter that raises would make every reader of vLLM's environment fail.
        except Exception as error:  # noqa: BLE001
            return f"unknown: {error}"

    compat.add_environment_variables(
        {variable.name: lambda: None for variable in VARIABLES} | {VARIABLE: current}
    )
