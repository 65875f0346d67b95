"""Orders from figures: what is right and fastest comes first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vllm_fl_dispatch.benching.figures import Figure, relative_costs
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.tokens import token_matches
from vllm_fl_dispatch.types import BackendImplKind

STOCK = "stock"
#: What vLLM itself runs where it compiles: the reference equals its native layers, bit for bit.
NATIVE = "reference.torch"
#: By how much an implementation must be faster than vLLM's own code to take its place: noise, and
#: what a layer alone does not show, such as fusion with its neighbours.
MARGIN = {"eager": 0.03, "compiled": 0.1}


@dataclass(frozen=True)
class Choice:
    """What was chosen for one operator in one mode.

    Attributes:
        order: tokens, the best first.
        costs: impl_id or ``stock`` -> cost relative to the best at each size (1.0: best at all).
    """

    order: tuple[str, ...]
    costs: Mapping[str, float] = field(default_factory=dict)


def eager_costs(figures: Iterable[Figure]) -> dict[str, dict[int, float]]:
    """Who serves -> tokens -> microseconds of an eager call, host included."""
    return _costs(figures, {"eager": "", STOCK: STOCK}, lambda figure: figure.eager)


def compiled_costs(figures: Iterable[Figure]) -> dict[str, dict[int, float]]:
    """Who serves -> tokens -> microseconds on the device in compiled code.

    What can be traced is inlined, and everything else is opaque; vLLM's own layer, inlined, is
    the compiled reference.
    """
    found = list(figures)
    inlined = {figure.impl_id for figure in found if figure.mode == "compiled"}
    relevant = [f for f in found if f.mode != "opaque" or f.impl_id not in inlined]
    costs = _costs(relevant, {"opaque": "", "compiled": ""}, lambda figure: figure.time)
    if NATIVE in costs:
        costs[STOCK] = costs.pop(NATIVE)
    return costs


def _costs(
    figures: Iterable[Figure], modes: Mapping[str, str], cost: Callable[[Figure], float | None]
) -> dict[str, dict[int, float]]:
    costs: dict[str, dict[int, float]] = {}
    for figure in figures:
        value = cost(figure)
        if value is not None and figure.mode in modes:
            costs.setdefault(modes[figure.mode] or figure.impl_id, {})[figure.tokens] = value
    return costs


def choose(
    costs: Mapping[str, Mapping[int, float]],
    impls: Sequence[OpImpl],
    right: Collection[str],
    *,
    margin: float,
) -> Choice:
    """The order of one operator in one mode.

    Args:
        costs: who serves -> tokens -> cost; see `eager_costs`.
        impls: everything that is registered for the operator.
        right: impl_ids that passed verification; no others are named.
        margin: the fraction by which an implementation must beat vLLM's own layer.
    """
    allowed = {who: each for who, each in costs.items() if who == STOCK or who in right}
    relative = relative_costs(allowed)

    def rank(who: str) -> float:
        return relative[who] * (1 - margin) if who == STOCK else relative[who]

    ranked = sorted(relative, key=lambda who: (rank(who), who))
    if NATIVE in right and NATIVE not in ranked:
        ranked.append(NATIVE)
    if STOCK not in ranked:
        # It was not measured. The reference is never better than it.
        ranked.insert(ranked.index(NATIVE) if NATIVE in ranked else len(ranked), STOCK)
    order = tuple(STOCK if who == STOCK else token_of(who, impls) for who in ranked)
    return Choice(order, relative)


def token_of(impl_id: str, impls: Iterable[OpImpl]) -> str:
    """The most general token that names this implementation and no other one."""
    everyone = list(impls)
    impl = next(each for each in everyone if each.impl_id == impl_id)
    general = impl.kind.value
    if impl.kind is BackendImplKind.VENDOR:
        general = f"vendor:{(impl.vendor or '').lower()}"
    same = [each for each in everyone if token_matches(general, each)]
    return general if len(same) == 1 else f"impl:{impl_id}"
