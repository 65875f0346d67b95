"""``vllm-fl report FOLDER``: what ran, per process and rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_fl_dispatch import report_files
from vllm_fl_dispatch.cli.app import AsJson, app, show, table


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="What VLLM_FL_REPORT named.")],
    as_json: AsJson = False,
) -> None:
    """Show which implementation served each operator in every process that left a report."""
    reports = report_files.read(folder)
    made = table(
        "What ran", "rank", "process", "operator", "implementation", "kind", "mode", "layers",
        "calls", "failures",
    )  # fmt: skip
    lines = []
    for each in reports:
        rank = "" if each["rank"] is None else str(each["rank"])
        process = f"{each['host']} {each['pid']}"
        for row in each["rows"]:
            made.add_row(
                rank, process, row["op"], row["impl_id"], row["kind"], row["mode"],
                str(row["layers"]), str(row["calls"]), str(row["failures"] or ""),
            )  # fmt: skip
        lines += [
            f"[yellow]{process}: {f['op']}[{f['impl_id']}] failed: {f['error']}[/]".replace(
                "[" + f["impl_id"], r"\[" + f["impl_id"]
            )
            for f in each["failures"]
        ]
        lines += [
            f"{process}: registered, but no such operator: {name}"
            for name in each["unknown_operators"]
        ]
    show(as_json, reports, made, *lines)
    if not reports:
        raise typer.Exit(1)
