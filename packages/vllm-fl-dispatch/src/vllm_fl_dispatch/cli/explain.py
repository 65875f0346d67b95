"""``vllm-fl explain OP``: every candidate with its reason, and where each setting came from."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_fl_dispatch import explain as explaining
from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, show, table


@app.command()
def explain(
    op: Annotated[str, typer.Argument(help="An operator, such as rms_norm.")],
    call: Annotated[
        bool,
        typer.Option(
            "--call", help="For calls through a handle; vLLM's own layer is no candidate."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show who serves an operator here, why not the others, and which settings decided."""
    found = explaining.explain(get_default_manager(), op, layer=not call)
    resolution = found.resolution
    selected = resolution.selected
    candidates = table(
        f"{found.signature}\norder: {'|'.join(resolution.order)}, from {resolution.order_origin}",
        "implementation",
        "kind",
        "from",
        "compiled",
        "decision",
        "reason",
    )
    for decision in resolution.decisions:
        impl = decision.impl
        candidates.add_row(
            impl.impl_id,
            impl.kind.value,
            "vLLM" if impl.impl_id == "stock" else str(impl.origin or "code"),
            explaining.compiled_mode(impl),
            decision.outcome.value,
            decision.reason,
            style="bold green" if impl is selected else None if decision.accepted else "dim",
        )
    settings = table("Settings", "setting", "value", "from")
    for setting in found.settings:
        settings.add_row(setting.name, setting.value, setting.origin)
    notes = [resolution.note] if resolution.note else []
    show(as_json, found.as_dict(), candidates, settings, *notes)
    if selected is None:
        raise typer.Exit(1)
