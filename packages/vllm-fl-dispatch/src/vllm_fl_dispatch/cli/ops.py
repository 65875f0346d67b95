"""``vllm-fl ops``: operators, and who serves them."""

from __future__ import annotations

from rich.text import Text

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, show, styled, table
from vllm_fl_dispatch.resolution import Resolution


@app.command()
def ops(as_json: AsJson = False) -> None:
    """List every operator, who serves it here, and what cannot run here.

    A layer of vLLM has one candidate more than a call by name: vLLM's own code, `stock`.
    """
    manager = get_default_manager()
    manager.ensure_built()
    names = manager.registry.names()
    found = [(manager.resolve(op), manager.resolve(op, stock=True)) for op in names]
    made = table(
        "Operators", "operator", "in vLLM's layers", "by a call", "next",
        wrap=["next"], spare=["next"],
    )  # fmt: skip
    for call, layer in found:
        selected = [_selected(layer), _selected(call)]
        more = [impl.impl_id for impl in call.accepted if impl.impl_id not in selected]
        style = "dim" if call.selected is None else None
        made.add_row(call.op_name, *selected, ", ".join(more), style=style)
    orphans = [str(impl) for impl in manager.registry.orphans()]
    show(
        as_json,
        {
            "ops": [
                {**call.as_dict(), "layer": layer.selected and layer.selected.impl_id}
                for call, layer in found
            ],
            "orphans": orphans,
        },
        made,
        *_left_out([call for call, _ in found]),
        *(f"registered, but no such operator: {text}" for text in orphans),
    )


def _selected(resolution: Resolution) -> str:
    return resolution.selected.impl_id if resolution.selected else "(none)"


def _left_out(resolutions: list[Resolution]) -> list[Text]:
    """A line for each implementation and reason, with how many operators it concerns."""
    concerned: dict[tuple[str, str, str], list[str]] = {}
    for resolution in resolutions:
        for decision in resolution.decisions:
            if not decision.accepted:
                key = decision.impl.impl_id, decision.outcome.value, decision.reason
                concerned.setdefault(key, []).append(resolution.op_name)
    return [
        styled(
            (impl_id, "bold"),
            f" {outcome} ({ops[0] if len(ops) == 1 else f'{len(ops)} operators'}): {reason}",
        )
        for (impl_id, outcome, reason), ops in concerned.items()
    ]
