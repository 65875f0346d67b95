"""The ways in which an operator can be served here: implementations, times modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.contracts import lower
from vllm_fl_dispatch.errors import OpNotSupported
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.op_impl import own_layer
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.resolution import Resolution
from vllm_fl_dispatch.torch_ops import opaque

#: ``eager``: the function itself. ``opaque``: behind its torch operator, as compiled code calls
#: what it cannot trace. ``compiled``: by Inductor, alone. ``stock``: vLLM's own layer, eagerly.
MODES = ("eager", "opaque", "compiled", "stock")
#: Everything that is registered, whatever the policy prefers.
ALL = ("flagos", "vendor", "reference")
ORIGIN = "vllm-fl bench"


@dataclass(frozen=True)
class Variant:
    """One implementation in one mode.

    Attributes:
        call: with the contract's signature.
        before: puts the process into the state in which `call` is this variant.
    """

    candidate: Candidate
    mode: str
    call: Call
    before: Callable[[], None]

    @property
    def impl_id(self) -> str:
        return self.candidate.impl.impl_id

    @property
    def label(self) -> str:
        """``vendor.cuda``, ``vendor.cuda opaque``, ``stock``."""
        plain = self.mode in ("eager", "stock")
        return self.impl_id if plain else f"{self.impl_id} {self.mode}"

    def on(self, args: tuple[Any, ...], options: dict[str, Any], tokens: int) -> Callable[[], Any]:
        """The call on these arguments and options.

        Raises:
            OpNotSupported: it cannot serve them; the message says why.
        """
        reason = self.candidate.refusal(args, options) or self.candidate.objection(args, options)
        if reason:
            raise OpNotSupported(reason)
        if self.mode == "opaque":
            return partial(self.call, *args, **options)
        if self.mode == "stock":
            made: Callable[[], Any] = self.call(*args, **options)
            return made
        args, options = lower(self.candidate.spec, self.candidate.missing, args, options)
        if self.mode == "compiled" and tokens > 1:
            for arg in args:
                if isinstance(arg, torch.Tensor) and arg.ndim and arg.shape[0] == tokens:
                    # As vLLM compiles: one code for all batch sizes.
                    torch._dynamo.maybe_mark_dynamic(arg, 0)
        return partial(self.call, *args, **options)


def available(manager: OpManager, spec: OpSpec) -> tuple[list[Candidate], Resolution]:
    """The implementations that can run here, loaded, and the decisions about all.

    One that cannot be loaded is decided about as one that failed, whatever the policy.
    """
    policy = SelectionPolicy(per_op_order={spec.name: ALL})
    found = []
    for impl in manager.resolve(spec.name, policy=policy).accepted:
        fn = manager.load(spec, impl, strict=False)
        if fn is not None:
            found.append(Candidate.of(spec, impl, fn, fn))
    # Asked again: what could not be loaded is known by now.
    return found, manager.resolve(spec.name, policy=policy)


def variants(
    manager: OpManager, spec: OpSpec, candidates: Iterable[Candidate], modes: Iterable[str]
) -> list[Variant]:
    """Each candidate in each of the modes that it has."""
    found = []
    for mode in modes:
        if mode == "stock":
            found.append(_stock(spec))
            continue
        for candidate in candidates:
            if mode == "eager":
                found.append(Variant(candidate, mode, candidate.fn, _nothing))
            elif mode == "opaque" and spec.schema is not None:
                call = opaque(manager, spec)
                before = partial(_select, manager, candidate)
                found.append(Variant(candidate, mode, call, before))
            elif mode == "compiled" and candidate.impl.inlinable:
                compiled = torch.compile(candidate.fn, fullgraph=True)
                found.append(Variant(candidate, mode, compiled, _nothing))
    return found


def _stock(spec: OpSpec) -> Variant:
    """vLLM's own layer; its `call` makes the call for given arguments."""

    def make(*args: Any, **options: Any) -> Callable[[], Any]:
        from vllm_fl_dispatch.vllm.stock import stock_call

        call = stock_call(spec.name, args)
        if options:
            raise OpNotSupported("a layer of vLLM has the options it was built with")
        return call

    return Variant(Candidate.of(spec, own_layer(spec.name), make, make), "stock", make, _nothing)


def _select(manager: OpManager, candidate: Candidate) -> None:
    """Let the operator of this process be served by one implementation alone."""
    order = (f"impl:{candidate.impl.impl_id}",)
    op = candidate.spec.name
    if manager.policy.per_op_order.get(op) != order:
        manager.set_policy(manager.policy.with_orders(ORIGIN, {op: order}))


def _nothing() -> None:
    """Nothing to do."""
