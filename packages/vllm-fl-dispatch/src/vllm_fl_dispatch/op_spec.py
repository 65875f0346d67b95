"""The record of an operator: its contract, and how it is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.types import Query

if TYPE_CHECKING:
    from vllm_fl_dispatch.ops.cases import Case

#: A few roundings in float32; in half precision the exact result rounded once, or twice as
#: vLLM's native layers do (1.5; more where the first rounding falls among float16's subnormals).
DEFAULT_MAX_ULP: Mapping[str, float] = {"float32": 6.0, "float16": 2.25, "bfloat16": 1.75}


@dataclass(frozen=True)
class OpSpec:
    """The written contract of one operator.

    Attributes:
        name: the operator's name, as users write it in a policy.
        contract: a function without a body. Its signature is what callers use and what every
            implementation must offer; its docstring states shapes, dtypes and rounding.
        fake: same arguments -> empty outputs of the right shape, dtype and (contiguous) layout.
        schema: the torch schema of the opaque operator, without the name: ``(Tensor x) -> Tensor``.
        facts: same arguments -> tuple of hashable facts; the key of failures and of `supports`.
        fact_names: the names of that tuple, as `Query.facts` shows them.
        example: what is known about a call -> (arguments, options) of a tiny call of that kind;
            implementations are tried on it when a layer binds them.
        shapes: argument -> its sizes, such as ``"... n"``. A letter is the same size everywhere,
            ``2*d`` an even one, ``...`` the same leading sizes everywhere, ``*`` any further ones.
            A call that does not fit is the caller's mistake, not that of the implementation.
        data: names of the tensors whose rows are the call's; without elements in the first, there
            is nothing to compute.
        rows: names of the arguments with a row for each token; by default those of `data`.
        donates: names of the arguments that an implementation may overwrite in eager mode.
        group: the operator whose order and lists this one inherits.
        lower: option -> function that rewrites (args, options) so that an implementation
            without this option can serve the call.
        pack, unpack: between the contract's result and the schema's.
        oracle: same arguments -> result in float64, the truth of the conformance tests.
        cases: the conformance cases.
        bench_inputs: a `benching.inputs.Maker` -> new (arguments, options) of a call at the sizes
            of a model, on its device: what `vllm-fl bench` and `tune` measure.
        canonical: (results, arguments, options) -> results, where the contract leaves something
            open, such as an order; applied to both sides before they are compared.
        max_ulp: dtype of a case -> tolerance of an implementation against the oracle, in units of
            the last place of the result's dtype, at the magnitude of the expected value.
        ulp_of: name of an argument whose dtype these units are of, where computing in it is
            accepted though the result has a wider one.
        ulp_floor: no value counts as smaller than this fraction of its row's root mean square,
            where cancellation makes small results from large operands.
        max_steps: tolerance of integer results.
    """

    name: str
    contract: Callable[..., Any]
    _: KW_ONLY
    fake: Callable[..., Any] | None = None
    schema: str | None = None
    facts: Callable[..., tuple[Any, ...]] | None = None
    fact_names: tuple[str, ...] = ()
    example: Callable[[Query], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    shapes: Mapping[str, str] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    donates: tuple[str, ...] = ()
    group: str | None = None
    lower: Mapping[str, Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]] = field(
        default_factory=dict
    )
    pack: Callable[[Any], Any] | None = None
    unpack: Callable[[Any], Any] | None = None
    oracle: Callable[..., Any] | None = None
    cases: Callable[[], Iterable[Case]] | None = None
    bench_inputs: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    canonical: Callable[..., tuple[Any, ...]] | None = None
    max_ulp: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_MAX_ULP))
    ulp_of: str | None = None
    ulp_floor: float = 0.0
    max_steps: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which orders and lists speak of it: its own and its group's."""
        return (self.name,) if self.group is None else (self.name, self.group)

    def query(self, *args: Any, **options: Any) -> Query:
        """What a call with these arguments looks like to `OpImpl.supports`."""
        if self.facts is None:
            return Query(self.name)
        return Query(
            self.name, dict(zip(self.fact_names, self.facts(*args, **options), strict=True))
        )
