"""Every error of the system. Messages say what was asked, what was found, what is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_fl_dispatch.resolution import Resolution


class DispatchError(Exception):
    """Base of all errors raised by the dispatcher itself."""


class UnknownOp(DispatchError, LookupError):
    """No operator has this name."""


class NoImplementation(DispatchError, RuntimeError):
    """The policy leaves no implementation for an operator; carries the table of reasons."""

    def __init__(self, resolution: Resolution) -> None:
        self.resolution = resolution
        super().__init__(
            f"no implementation of {resolution.op_name!r} can serve this call.\n"
            f"{resolution.table()}\n"
            "Install a backend (vllm-fl-reference serves every operator on any device) or widen "
            "the policy: VLLM_FL_PER_OP, VLLM_FL_PREFER, VLLM_FL_ALLOW_VENDORS, "
            "VLLM_FL_DENY_VENDORS."
        )


class OpNotSupported(DispatchError, NotImplementedError):
    """Raised by an implementation, before it wrote anything: not this input, ask the next."""


class ImplementationFailed(DispatchError, RuntimeError):
    """An implementation raised and the policy is strict; the cause is chained."""


class ContractError(DispatchError, TypeError):
    """An implementation or specification that does not fit; the message shows both signatures."""


class DuplicateError(DispatchError, ValueError):
    """Two owners of one name."""


class PolicyError(DispatchError, ValueError):
    """A setting that is wrong in a way that must not be guessed at."""


class RequestError(DispatchError, ValueError):
    """A request to a selector that nothing can serve, or a class that cannot serve it."""


class PluginError(DispatchError, RuntimeError):
    """A plugin that cannot be loaded."""


#: What is kept of the message of others: bindings of C++ print whole tensors in theirs.
MAX_LINES, MAX_CHARACTERS = 8, 600


def in_brief(error: BaseException) -> str:
    """``TypeError: what it says``, for a line of a log or a table."""
    text = f"{type(error).__name__}: {error}".rstrip()
    if isinstance(error, DispatchError):
        return text
    kept = "\n".join(text.splitlines()[:MAX_LINES])[:MAX_CHARACTERS].rstrip()
    return text if kept == text else f"{kept} ..."
