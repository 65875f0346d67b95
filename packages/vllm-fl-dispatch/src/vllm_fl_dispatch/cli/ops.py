"""``vllm-fl ops``: operators and their implementations."""

from __future__ import annotations

from rich.text import Text

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, show, styled, table
from vllm_fl_dispatch.resolution import Decision, Outcome

_STYLES = {Outcome.SELECTED: "bold green", Outcome.FALLBACK: "green"}


@app.command()
def ops(as_json: AsJson = False) -> None:
    """List every operator with its implementations, and which one a call would use here."""
    manager = get_default_manager()
    manager.ensure_built()
    resolutions = [manager.resolve(op) for op in manager.registry.names()]
    made = table("Operators", "operator", "implementation", "from", "decision", "reason")
    for resolution in resolutions:
        for number, decision in enumerate(resolution.decisions):
            made.add_row("" if number else resolution.op_name, *_cells(decision))
        if not resolution.decisions:
            made.add_row(resolution.op_name, "(none)", "", "", "install a backend")
    orphans = [str(impl) for impl in manager.registry.orphans()]
    data = {"ops": [resolution.as_dict() for resolution in resolutions], "orphans": orphans}
    show(as_json, data, made, *(f"registered, but no such operator: {text}" for text in orphans))


def _cells(decision: Decision) -> tuple[str | Text, ...]:
    impl, style = decision.impl, _STYLES.get(decision.outcome, "dim")
    return (
        styled(impl.impl_id, style),
        str(impl.origin or "code"),
        styled(decision.outcome.value, style),
        decision.reason,
    )
