"""``vllm-fl plugins``: what was announced, and what became of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, show, styled, table
from vllm_fl_dispatch.plugins import PluginRecord

_STYLES = {"loaded": "green", "broken": "bold red", "disabled": "dim"}


@app.command()
def plugins(
    trace: Annotated[
        bool, typer.Option("--traceback", help="Print the tracebacks of broken plugins.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List every plugin: from where, loaded or broken, how many implementations it added."""
    manager = get_default_manager()
    manager.ensure_built()
    made = table("Plugins", "plugin", "from", "status", "implementations", "error", below="error")
    for record in manager.records:
        made.add_row(
            record.name,
            styled(str(record.source.origin), "\n", (record.source.target, "dim")),
            styled((record.status, _STYLES[record.status])),
            str(record.impl_count),
            record.error,
        )
    refusals = manager.registry.snapshot().refusals
    lines = [f"refused {r.what} of {r.origin}: {r.reason}" for r in refusals]
    if trace:
        lines += [record.traceback for record in manager.records if record.traceback]
    data = {
        "plugins": [_as_dict(record) for record in manager.records],
        "refused": [
            {"what": r.what, "origin": str(r.origin), "reason": r.reason} for r in refusals
        ],
    }
    show(as_json, data, made, *lines)


def _as_dict(record: PluginRecord) -> dict[str, Any]:
    origin = record.source.origin
    return {
        "name": record.name,
        "distribution": origin.distribution,
        "version": origin.version,
        "target": record.source.target,
        "path": record.source.path,
        "status": record.status,
        "form": record.form,
        "hooks": list(record.hooks),
        "implementations": record.impl_count,
        "error": record.error,
        "traceback": record.traceback,
    }
