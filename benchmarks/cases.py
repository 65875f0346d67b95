"""What is measured: ours with their budgets, and peers that solve a similar problem.

Every case ends in the same Python leaf, so a difference is the price of the mechanism. A maker
returns the call, or raises ImportError where its library is not installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch import BackendImplKind, OpImpl, OpManager, SelectionPolicy, api
from vllm_fl_dispatch.scopes import scoped
from vllm_fl_dispatch.torch_ops import opaque

X = torch.ones(1, 64)
WEIGHT = torch.ones(64)
RESULT = torch.ones(1, 64)
Call = Callable[..., Any]


def leaf(x: Any, weight: Any, epsilon: float) -> Any:
    """The implementation that everything ends in."""
    return RESULT


@dataclass(frozen=True)
class Measured:
    """One case: `make` is called inside its own set-up and returns the call to time.

    `budget` is in nanoseconds over `over` (a plain call, or the case of that name).
    """

    name: str
    make: Callable[[], Call]
    budget: float | None = None
    over: str = "plain call"


@functools.cache
def manager() -> OpManager:
    """A manager that knows the leaf only, installed as the default of this process."""
    made = OpManager(SelectionPolicy(), sources=())
    made.ensure_built()
    made.registry.register_impl(
        OpImpl(
            "rms_norm",
            "reference.leaf",
            BackendImplKind.REFERENCE,
            leaf,
            empty_ok=True,
            traceable=True,
        )
    )
    api._default = made
    made.get_op("rms_norm")(X, WEIGHT, 1e-6)
    return made


def _call_op() -> Call:
    manager()
    return functools.partial(api.call_op, "rms_norm")


def _in_scope() -> Call:
    made = manager()
    # Left open: the cases run in a process, and a context, of their own.
    scoped(made, prefer="reference").__enter__()
    return made.get_op("rms_norm")


def _opaque() -> Call:
    made = manager()
    return opaque(made, made.registry.spec("rms_norm"))


def _singledispatch() -> Call:
    def default(x: Any, weight: Any, epsilon: float) -> Any:
        raise TypeError(type(x))

    dispatcher = functools.singledispatch(default)
    dispatcher.register(torch.Tensor, leaf)
    return dispatcher


def _pluggy() -> Call:
    import pluggy

    class Spec:
        @pluggy.HookspecMarker("bench")(firstresult=True)
        def rms_norm(self, x: Any, weight: Any, epsilon: float) -> Any: ...

    class Plugin:
        @pluggy.HookimplMarker("bench")
        def rms_norm(self, x: Any, weight: Any, epsilon: float) -> Any:
            return leaf(x, weight, epsilon)

    plugins = pluggy.PluginManager("bench")
    plugins.add_hookspecs(Spec)
    plugins.register(Plugin())
    hook = plugins.hook.rms_norm
    return lambda x, weight, epsilon: hook(x=x, weight=weight, epsilon=epsilon)


def _vllm_ir() -> Call:
    from vllm import ir
    from vllm.ir.op import set_default_torch_wrap

    def provider(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> torch.Tensor:
        return RESULT

    op = ir.ops.rms_norm
    provider.__annotations__ = dict(op.impls["native"].impl_fn.__annotations__)
    op.register_impl("bench", supported=True)(provider)
    op.set_default(["bench", "native"])
    # As in eager mode: without the wrap, calls do not pass torch's dispatcher.
    set_default_torch_wrap(False)
    return op  # type: ignore[no-any-return]  # vLLM is not typed here


class SpatchBackend:
    """The leaf as spatch sees it: a namespace that says which types and functions it serves."""

    name = "bench"
    primary_types = ("torch:Tensor",)
    secondary_types = ()
    requires_opt_in = False

    @property
    def functions(self) -> Any:
        """Every function is served by the leaf."""
        return {f"{__name__}:spatch_default": {"function": f"{__name__}:leaf"}}


def spatch_default(x: Any, weight: Any, epsilon: float) -> Any:
    """What spatch runs where no backend serves a type."""
    raise TypeError(type(x))


def _spatch() -> Call:
    from spatch.backend_system import BackendSystem

    system = BackendSystem(
        None, "BENCH", default_primary_types=("builtins:int",), backends=[SpatchBackend()]
    )
    return system.dispatchable(["x"])(spatch_default)  # type: ignore[no-any-return]  # untyped


def _custom_op() -> Call:
    def body(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        return torch.empty_like(x)

    body.__annotations__ = {
        "x": torch.Tensor, "weight": torch.Tensor, "epsilon": float, "return": torch.Tensor,
    }  # fmt: skip
    return torch.library.custom_op("bench::rms_norm", body, mutates_args=())


OURS = (
    Measured("bound slot (what a layer holds)", lambda: manager().slot("rms_norm").plain_call, 40),
    Measured("handle", lambda: manager().get_op("rms_norm"), 120),
    Measured("call_op", _call_op, 250),
    Measured("handle, a scope open", _in_scope, 150, over="handle"),
    Measured("opaque torch operator", _opaque, 2500),
)
PEERS = (
    Measured("functools.singledispatch", _singledispatch),
    Measured("pluggy, one implementation", _pluggy),
    Measured("vLLM IR, one provider", _vllm_ir),
    Measured("spatch, one backend", _spatch),
    Measured("torch.library.custom_op", _custom_op),
)
