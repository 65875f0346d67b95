"""Does an implementation serve a call? Its `supports` is foreign code: it may raise anything."""

from __future__ import annotations

from typing import Any

from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.logger_manager import get_logger
from vllm_fl_dispatch.types import OpImpl, Query, Verdict

logger = get_logger(__name__)


def supported(impl: OpImpl, query: Query) -> Verdict:
    """What `supports` answers; where it raises, no, with a warning."""
    try:
        return answer(impl, query)
    # A mistake in a predicate must not end a server that others can serve.
    except Exception as error:  # noqa: BLE001
        verdict = Verdict.no(f"supports raised {in_brief(error)} when asked about {query}")
        logger.warning_once(f"{impl}: {verdict.reason}")
        return verdict


def answer(impl: OpImpl, query: Query) -> Verdict:
    """The same for tests.

    Raises:
        whatever `supports` raises; TypeError where it answers neither a verdict nor a boolean.
    """
    if impl.supports is None:
        return Verdict.yes()
    return Verdict.of(impl.supports(query), f"does not support {query}")


def looks_at_unknown(impl: OpImpl, query: Query) -> bool:
    """Does the answer depend on facts that this query does not have?

    Such as the width of an activation: the layer is built before it is known, so each call must
    be asked about.
    """
    if impl.supports is None:
        return False
    facts = _Noted(query.facts)
    supported(impl, Query(query.op_name, facts))
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
