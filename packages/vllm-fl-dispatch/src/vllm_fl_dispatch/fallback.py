"""What happens when an implementation fails: whose fault it is, and what is remembered."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch.errors import ImplementationFailed, OpNotSupported, in_brief
from vllm_fl_dispatch.op_impl import OpImpl

#: Failures kept per process; beyond that the oldest are forgotten.
MAX_FAILURES = 1024

#: How a RuntimeError says that memory ran out, or that the device is in error.
_DEVICE_TROUBLE = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUDA error",
    "HIP error",
    "NPU error",
    "ACL error",
    "device-side assert",
    # Triton reports these under a name of its own.
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
)
#: What is said in the same words of one kernel that could not be launched; the device is well.
_NOT_LAUNCHED = (
    "no kernel image is available",
    "device kernel image is invalid",
    "invalid device function",
    "invalid configuration argument",
    "too many resources requested for launch",
    "unsupported toolchain",
)


@dataclass(frozen=True)
class Failure:
    """An implementation that failed for one key of facts, and is not tried again for it."""

    op_name: str
    impl_id: str
    key: Hashable
    error: str
    origin: str = ""


class FailureMemory:
    """Failures by (operator, implementation, key). A key of None stands for every call."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str, Hashable], Failure] = {}

    def add(self, impl: OpImpl, key: Hashable, error: BaseException) -> bool:
        """Remember a failure; False if it was known."""
        where = (impl.op_name, impl.impl_id, key)
        if where in self._failures:
            return False
        while len(self._failures) >= MAX_FAILURES:
            self._failures.pop(next(iter(self._failures)))
        text = in_brief(error)
        self._failures[where] = Failure(*where, text, str(impl.origin or ""))
        return True

    def reason(self, impl: OpImpl, key: Hashable) -> str | None:
        """Why this implementation is not tried for this key, if so."""
        for each in (key, None):
            failure = self._failures.get((impl.op_name, impl.impl_id, each))
            if failure is not None:
                return failure.error
        return None

    def concerns(self, impl: OpImpl) -> bool:
        """Has it failed for any key?"""
        return any(where[:2] == (impl.op_name, impl.impl_id) for where in tuple(self._failures))

    def all(self) -> tuple[Failure, ...]:
        return tuple(self._failures.values())

    def clear(self) -> None:
        self._failures.clear()


def may_continue(error: Exception, impl: OpImpl, *, strict: bool, inputs_intact: bool) -> bool:
    """Decide about an error of an implementation.

    Returns:
        True: ask the next candidate, and remember the failure if that one succeeds.
        False: ask the next candidate; the implementation only said "not this input".

    Raises:
        the error itself, where the caller must see it: memory ran out, the device is in error,
            a stream is capturing, or an implementation that overwrites its arguments has begun.
        ImplementationFailed: the policy is strict.
    """
    if isinstance(error, OpNotSupported):
        return False
    if is_device_trouble(error) or not inputs_intact or capturing():
        raise error
    if strict:
        raise ImplementationFailed(
            f"{impl} raised {in_brief(error)} (the policy is strict: no fallback)"
        ) from error
    return True


def is_device_trouble(error: Exception) -> bool:
    """Did memory run out, or is the device in error, whatever was called?"""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError | getattr(torch, "OutOfMemoryError", MemoryError)):
        return True
    text = str(error)
    if not isinstance(error, RuntimeError) or any(said in text for said in _NOT_LAUNCHED):
        return False
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        return True
    return any(said in text for said in _DEVICE_TROUBLE)


def capturing() -> bool:
    """Is the current stream of the device recording a graph?"""
    torch = sys.modules.get("torch")
    modules = (getattr(torch, name, None) for name in ("cuda", "npu"))
    return any(m.is_initialized() and m.is_current_stream_capturing() for m in modules if m)


def is_expanded(tensor: Any) -> bool:
    """Do several of its elements share memory?"""
    strides = tensor.stride()
    return 0 in strides and any(
        stride == 0 and size > 1 for stride, size in zip(strides, tensor.shape, strict=True)
    )


def copy_arguments(
    args: Sequence[Any], positions: Sequence[int], *, keep_layout: bool
) -> list[Any]:
    """The arguments, with those at `positions` replaced by copies.

    Args:
        keep_layout: copy with the same strides, because a trial on a contiguous copy of a
            strided slice would prove nothing. (An expanded tensor has no writable layout of its
            own.) Otherwise the copies are contiguous, as results must be.
    """
    copied = list(args)
    for position in positions:
        tensor = args[position]
        if tensor is None:
            continue
        if keep_layout and not is_expanded(tensor):
            empty = tensor.new_empty_strided(tensor.size(), tensor.stride())
        else:
            empty = tensor.new_empty(tensor.shape)
        copied[position] = empty.copy_(tensor)
    return copied
