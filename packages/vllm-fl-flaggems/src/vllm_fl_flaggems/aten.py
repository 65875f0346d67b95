"""Replaces torch's own (ATen) operators by FlagGems' in this process, where `flagos_aten` says so.

This is apart from the dispatch of operators: it is in force for everything in the process that
calls torch on the device, our reference implementations included. It is said once, in the log.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

from vllm_fl_dispatch import PolicyError, SelectionPolicy, get_logger
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.logger_manager import warning_once
from vllm_fl_dispatch.policy import PLATFORM
from vllm_fl_dispatch.registry import nearest
from vllm_fl_flaggems import library

logger = get_logger(__name__)
ALL = "*"

_lock = ForkLock()
#: torch's library with the replacements; they last as long as it does.
_replacements: Any = None
_names: tuple[str, ...] = ()


def replaced() -> tuple[str, ...]:
    """The names of the functions that stand for ATen operators in this process."""
    return _names


def apply(policy: SelectionPolicy) -> tuple[str, ...]:
    """Replace what the policy names, once per process; returns the names of the functions.

    Call it when the device of this process is set.

    Raises:
        FlagGemsUnavailable: flag-gems cannot be loaded.
        PolicyError: under a strict policy, a name that this flag-gems does not have.
    """
    global _replacements, _names
    with _lock:
        if _replacements is not None or not policy.flagos_aten or not policy.use_flagos:
            return _names
        gems = library.load()
        names = wanted(policy, gems.FULL_CONFIG_BY_FUNC, _unused_by_the_vendor(gems))
        if names:
            _replacements = _register(gems, names)
            _names = names
            logger.warning(
                "FlagGems replaces torch's operators in this process: %s. Everything that calls "
                "torch runs on them, the implementations of kind `reference` too: they are no "
                "independent reference here (`vllm-fl verify` runs without).",
                ", ".join(names),
            )
        return _names


def undo() -> None:
    """Give torch its own operators back."""
    global _replacements, _names
    with _lock:
        if _replacements is not None:
            _replacements._destroy()
        _replacements, _names = None, ()


def wanted(
    policy: SelectionPolicy, known: Collection[str], unused: Collection[str] = ()
) -> tuple[str, ...]:
    """The functions of the installed flag-gems that the policy wants, in a fixed order.

    A name that a user gives stands above the platform's list of names to leave out, but not above
    one that a user wrote.

    Args:
        known: the functions that the installed flag-gems has.
        unused: those that it leaves out on this vendor's devices.

    Raises:
        PolicyError: under a strict policy, a name that is not known.
    """
    given = policy.flagos_aten - {ALL}
    _check(policy, given, known)
    left_out = policy.flagos_blacklist
    if ALL in policy.flagos_aten:
        return tuple(sorted(set(known) - left_out - set(unused) | (given & set(known))))
    by_user = {
        name
        for name in left_out
        if not policy.origin_of(f"flagos_blacklist.{name}").startswith(PLATFORM)
    }
    risky = sorted(given & (left_out - by_user))
    if risky:
        warning_once(
            logger,
            f"flagos_aten names {', '.join(risky)}, which the {PLATFORM} leave out for faults or "
            "cost on this device",
        )
    return tuple(sorted(given & set(known) - by_user))


def _check(policy: SelectionPolicy, given: Collection[str], known: Collection[str]) -> None:
    for name in sorted(set(given) - set(known)):
        near = nearest(name, known)
        message = (
            f"flagos_aten ({policy.origin_of('flagos_aten')}): the installed flag-gems has no "
            f"{name!r}{f'; did you mean {near!r}?' if near else ''}"
        )
        if policy.strict:
            raise PolicyError(message)
        warning_once(logger, message)


def _unused_by_the_vendor(gems: Any) -> Collection[str]:
    """Functions that flag-gems itself does not put in the place of torch's on some devices."""
    if gems.vendor_name == "nvidia":
        return ()
    names: Collection[str] = gems.runtime.backend.get_unused_ops(gems.vendor_name)
    return names


def _register(gems: Any, names: Collection[str]) -> Any:
    import torch

    made = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch
    with warnings.catch_warnings():
        # torch says of each that a kernel is overridden, which is what was asked for.
        warnings.simplefilter("ignore", UserWarning)
        gems.only_enable(lib=made, include=list(names))
    return made
