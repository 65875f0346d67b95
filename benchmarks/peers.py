"""Peers: other ways to choose an implementation at call time, ending in the same leaf.

A maker imports its library itself, so that one that is missing is an ImportError of that case.
"""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace
from typing import Any

import torch
from cases import RESULT, Call, Case, leaf


def unserved(x: Any, weight: Any, epsilon: float) -> Any:
    """What runs for types that nothing serves."""
    raise TypeError(type(x))


def _singledispatch() -> Call:
    dispatcher = functools.singledispatch(unserved)
    dispatcher.register(torch.Tensor, leaf)
    return dispatcher


def _pluggy() -> Call:
    import pluggy

    class Specs:
        @pluggy.HookspecMarker("bench")(firstresult=True)
        def rms_norm(self, x: Any, weight: Any, epsilon: float) -> Any: ...

    plugins = pluggy.PluginManager("bench")
    plugins.add_hookspecs(Specs)
    implements = pluggy.HookimplMarker("bench")
    plugins.register(SimpleNamespace(rms_norm=implements(leaf)))
    return plugins.hook.rms_norm


def _vllm_ir() -> Call:
    # What vLLM says while it is imported would stand above the table.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import ir
    from vllm.ir.op import set_default_torch_wrap

    # The leaf with vLLM's parameters: a provider must have the schema of its operator.
    def provider(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> torch.Tensor:
        return RESULT

    op = ir.ops.rms_norm
    op.register_impl("bench")(provider)
    op.set_default(["bench", "native"])
    # Wrapped calls pass torch's dispatcher; this is the shorter way, which eager mode may take.
    set_default_torch_wrap(False)
    return op  # type: ignore[no-any-return]  # vLLM is not typed here


def _spatch() -> Call:
    from spatch.backend_system import BackendSystem

    here = __name__
    backend = SimpleNamespace(
        name="bench",
        primary_types=("torch:Tensor",),
        secondary_types=(),
        requires_opt_in=False,
        functions={f"{here}:unserved": {"function": f"{here}:leaf"}},
    )
    system = BackendSystem(
        None, "BENCH", default_primary_types=("builtins:int",), backends=[backend]
    )
    return system.dispatchable(["x"])(unserved)  # type: ignore[no-any-return]  # not typed


def _custom_op() -> Call:
    return torch.library.custom_op("bench::rms_norm", leaf, mutates_args=())


PEERS = (
    Case("functools.singledispatch", _singledispatch),
    Case("pluggy firstresult hook", _pluggy, "fn(x=x, weight=weight, epsilon=1e-6)"),
    Case("vLLM IR, wrap off", _vllm_ir),
    Case("spatch, one backend", _spatch),
    Case("torch.library.custom_op", _custom_op),
)
