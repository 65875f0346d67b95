"""Our cases: the ways to call an operator, all ending in the same trivial Python function.

That they share this leaf makes a difference between two of them the price of the mechanism.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch import BackendImplKind, OpImpl, OpManager, SelectionPolicy, api
from vllm_fl_dispatch.scopes import scoped
from vllm_fl_dispatch.torch_ops import opaque

Call = Callable[..., Any]

X = torch.ones(1, 64)
WEIGHT = torch.ones(64)
RESULT = torch.ones(1, 64)


def leaf(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The implementation that everything ends in."""
    return RESULT


@dataclass(frozen=True)
class Case:
    """One call to time.

    Attributes:
        name: its row in the table.
        make: returns what `call` names `fn`. It runs in a context of its own, which the timed
            calls share: a scope that it leaves open is open for this case only.
        call: the timed statement.
    """

    name: str
    make: Callable[[], Call]
    call: str = "fn(x, weight, 1e-6)"


def _new_manager() -> OpManager:
    """A manager that knows the leaf and nothing else."""
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    kind = BackendImplKind.REFERENCE
    manager.registry.register_impl(
        OpImpl("rms_norm", "reference.leaf", kind, leaf, empty_ok=True, traceable=True)
    )
    return manager


@functools.cache
def _manager() -> OpManager:
    """The manager of the cases without a scope: an open one changes all handles of a manager."""
    return _new_manager()


def _call_op() -> Call:
    # The public functions know no other manager than that of the process.
    api._default = _manager()
    return api.call_op


def _in_scope() -> Call:
    manager = _new_manager()
    scoped(manager, prefer="reference").__enter__()
    return manager.get_op("rms_norm")


def _beside_scope() -> Call:
    manager = _new_manager()
    contextvars.copy_context().run(scoped(manager, prefer="reference").__enter__)
    return manager.get_op("rms_norm")


def _opaque() -> Call:
    return opaque(_manager(), _manager().registry.spec("rms_norm"))


PLAIN = Case("plain call", lambda: leaf)
OURS = (
    Case("bound slot, options", lambda: _manager().slot("rms_norm").call),
    Case("bound slot", lambda: _manager().slot("rms_norm").plain_call),
    Case("handle", lambda: _manager().get_op("rms_norm")),
    Case("call_op", _call_op, 'fn("rms_norm", x, weight, 1e-6)'),
    Case("handle, in a scope", _in_scope),
    Case("handle, scope elsewhere", _beside_scope),
    Case("opaque torch operator", _opaque),
)
