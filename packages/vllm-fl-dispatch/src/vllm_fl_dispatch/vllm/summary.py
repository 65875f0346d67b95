"""One line in the log of a server: what serves what in its model."""

from __future__ import annotations

from collections.abc import Mapping

NOTHING = "vLLM's own layers serve this model; vllm-fl explain OP says why"


def summary(announced: Mapping[str, str]) -> str:
    """The line.

    Args:
        announced: operator -> implementation, see `OpManager.announced`.
    """
    served: dict[str, list[str]] = {}
    for op, impl_id in sorted(announced.items()):
        if impl_id != "stock":
            served.setdefault(impl_id, []).append(op)
    if not served:
        return NOTHING
    named = "; ".join(f"{impl_id} serves {', '.join(ops)}" for impl_id, ops in served.items())
    return f"{named}; everything else in this model is vLLM's own"
