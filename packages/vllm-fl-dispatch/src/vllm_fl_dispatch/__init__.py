"""Operator dispatch for vLLM: which kernel serves which operator, by availability and policy.

Importing this package imports neither torch nor vllm, and discovers nothing.
"""

from __future__ import annotations

from vllm_fl_dispatch import probing
from vllm_fl_dispatch.api import (
    bump_policy_epoch,
    call_op,
    clear_discovered_plugins,
    clear_failures,
    discover_plugins,
    failures,
    get_default_manager,
    get_discovered_plugins,
    get_op,
    get_policy,
    policy_context,
    reset_default_manager,
    reset_global_policy,
    resolve_op,
    set_global_policy,
    with_allowed_vendors,
    with_denied_vendors,
    with_preference,
    with_strict_mode,
)
from vllm_fl_dispatch.config import policy_from_config
from vllm_fl_dispatch.errors import (
    ContractError,
    DispatchError,
    DuplicateError,
    ImplementationFailed,
    NoImplementation,
    OpNotSupported,
    PluginError,
    PolicyError,
    RequestError,
    UnknownOp,
)
from vllm_fl_dispatch.hookspecs import hookimpl
from vllm_fl_dispatch.logger_manager import get_logger, set_log_level
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.registry import OpRegistry, Registrar
from vllm_fl_dispatch.selectors import SelectorSpec
from vllm_fl_dispatch.types import BackendImplKind, BackendPriority, DeviceSpec, Query, Verdict

__all__ = [
    "BackendImplKind",
    "BackendPriority",
    "ContractError",
    "DeviceSpec",
    "DispatchError",
    "DuplicateError",
    "ImplementationFailed",
    "NoImplementation",
    "OpImpl",
    "OpManager",
    "OpNotSupported",
    "OpRegistry",
    "OpSpec",
    "PluginError",
    "PolicyError",
    "Query",
    "Registrar",
    "RequestError",
    "SelectionPolicy",
    "SelectorSpec",
    "UnknownOp",
    "Verdict",
    "bump_policy_epoch",
    "call_op",
    "clear_discovered_plugins",
    "clear_failures",
    "discover_plugins",
    "failures",
    "get_default_manager",
    "get_discovered_plugins",
    "get_logger",
    "get_op",
    "get_policy",
    "hookimpl",
    "policy_context",
    "policy_from_config",
    "probing",
    "reset_default_manager",
    "reset_global_policy",
    "resolve_op",
    "set_global_policy",
    "set_log_level",
    "with_allowed_vendors",
    "with_denied_vendors",
    "with_preference",
    "with_strict_mode",
]
