"""On which facts the answer of a `supports` depends."""

from __future__ import annotations

from typing import Any

from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.types import Query


def looks_at_unknown(impl: OpImpl, query: Query) -> bool:
    """Does the answer depend on facts that this query does not have?

    Such as the width of an activation: the layer is built before it is known, so each call must
    be asked about.
    """
    if impl.supports is None:
        return False
    facts = _Noted(query.facts)
    impl.verdict_on(Query(query.op_name, facts))
    return bool(facts.missed)


class _Noted(dict[str, Any]):
    """Facts that note which others were asked for."""

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self.missed: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self.missed.add(key)
        return super().get(key, default)

    def __missing__(self, key: str) -> Any:
        self.missed.add(key)
        raise KeyError(key)
