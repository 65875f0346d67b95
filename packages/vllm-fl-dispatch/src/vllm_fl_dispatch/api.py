"""The functions of the public interface; they act on the default manager of the process."""

from __future__ import annotations

from typing import Any

from vllm_fl_dispatch import discovery
from vllm_fl_dispatch.config.carried import carry
from vllm_fl_dispatch.fallback import Failure
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.plugins import PluginRecord
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.scopes import Scope, scoped

_lock = ForkLock()
_default: OpManager | None = None


def get_default_manager() -> OpManager:
    """The manager of this process; made at first use, without discovering anything yet."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                _default = OpManager()
    return _default


def reset_default_manager() -> None:
    """Forget the default manager and the scan of installed distributions. For tests: handles
    that callers keep go on with the old manager."""
    global _default
    with _lock:
        _default = None
        discovery.installed.cache_clear()


def get_op(op_name: str) -> Call:
    """The handle of an operator: a function with the exact signature of its contract.

    It follows every later change of policy, registry and failures. Nothing is discovered before
    its first call; an unknown name is an `UnknownOp` that names the nearest one. Call it once
    before a compiler traces it, and again after a change: binding cannot be traced.
    """
    return get_default_manager().get_op(op_name)


def call_op(op_name: str, *args: Any, **kwargs: Any) -> Any:
    """Call an operator by name: `get_op(op_name)(*args, **kwargs)`.

    Raises:
        UnknownOp: no such operator; names the nearest one.
    """
    manager = _default or get_default_manager()
    call = manager.public.calls.get(op_name)
    if call is None:
        call = manager.get_op(op_name)
    return call(*args, **kwargs)


def resolve_op(op_name: str) -> Call:
    """The function that a call would run now.

    It goes stale when the policy, the registry or the failures change, and has no fallback: keep
    the handle of `get_op` instead where you can.
    """
    manager = get_default_manager()
    policy = manager.current_policy()
    slot = manager.slot(op_name)
    if policy is not manager.policy:
        slot = manager.new_slot(slot.spec, policy=policy)
    return slot.current


def get_policy() -> SelectionPolicy:
    """The policy in force here: that of the innermost open scope, or the process-wide one."""
    return get_default_manager().current_policy()


def set_global_policy(policy: SelectionPolicy) -> None:
    """Replace the process-wide policy, for all threads, and for the processes that this one
    starts from now on (vLLM's workers among them)."""
    get_default_manager().set_policy(policy)
    carry(policy)


def reset_global_policy() -> None:
    """Return to the policy that files and environment say; they are read again."""
    carry(None)
    get_default_manager().set_policy(None)


def bump_policy_epoch() -> None:
    """Resolve every operator again at its next call, for instance after a device appeared."""
    get_default_manager().invalidate()


def policy_context(policy: SelectionPolicy) -> Scope:
    """``with policy_context(policy):`` calls inside follow `policy`, in this thread or task."""
    return Scope(get_default_manager(), lambda _: policy)


def with_preference(prefer: str) -> Scope:
    """``with with_preference("reference"):`` that kind comes first inside."""
    return scoped(get_default_manager(), prefer=prefer)


def with_strict_mode(strict: bool = True) -> Scope:
    """``with with_strict_mode():`` errors instead of fallback inside."""
    return scoped(get_default_manager(), strict=strict)


def with_allowed_vendors(*vendors: str) -> Scope:
    """``with with_allowed_vendors("acme"):`` of all vendors only these are used inside."""
    return scoped(get_default_manager(), allow_vendors=frozenset(vendors))


def with_denied_vendors(*vendors: str) -> Scope:
    """``with with_denied_vendors("acme"):`` these vendors are not used inside, besides those
    denied already."""
    denied = frozenset(vendors)
    return Scope(
        get_default_manager(),
        lambda policy: policy.with_names("scope", "deny_vendors", denied),
    )


def discover_plugins() -> tuple[PluginRecord, ...]:
    """Find and load all plugins (once per process) and return what became of each."""
    manager = get_default_manager()
    manager.ensure_built()
    return manager.records


def get_discovered_plugins() -> tuple[PluginRecord, ...]:
    """What became of each plugin so far; empty before discovery."""
    return get_default_manager().records


def clear_discovered_plugins() -> None:
    """Forget plugins and registrations: the next use discovers anew."""
    reset_default_manager()


def failures() -> tuple[Failure, ...]:
    """The implementations that failed in this process, for which facts, and why."""
    return get_default_manager().failures.all()


def clear_failures() -> None:
    """Forget all failures, so that the implementations are tried again."""
    get_default_manager().clear_failures()
