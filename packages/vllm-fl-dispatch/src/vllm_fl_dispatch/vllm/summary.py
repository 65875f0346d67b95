"""One line in the log of a server: what serves what in its model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vllm_fl_dispatch.report import Row

NOTHING = "vLLM's own layers serve this model; vllm-fl explain OP says why"


def summary(rows: Iterable[Row], announced: Iterable[tuple[str, str]]) -> str:
    """The line.

    Args:
        rows: of the report; layers of one operator may be served by different implementations.
        announced: (operator, implementation), see `OpManager.announced`; for what is selected and
            has no layers in the report.
    """
    layers: dict[str, Counter[str]] = {}
    for row in rows:
        layers.setdefault(row.op, Counter())[row.impl_id] += row.layers
    selected = [pair for pair in announced if pair[0] not in layers]
    for op, impl_id in selected:
        layers.setdefault(op, Counter())[impl_id] += 1
    served: dict[str, list[str]] = {}
    for op, counts in sorted(layers.items()):
        for impl_id, count in counts.items():
            if impl_id != "stock" and count:
                share = "" if count == counts.total() else f" ({count} of {counts.total()} layers)"
                served.setdefault(impl_id, []).append(f"{op}{share}")
    if not served:
        return NOTHING
    named = "; ".join(f"{impl_id} serves {', '.join(ops)}" for impl_id, ops in served.items())
    return f"{named}; everything else in this model is vLLM's own"
