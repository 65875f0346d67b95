"""``vllm-fl report FOLDER``: what ran, per process and rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from vllm_fl_dispatch import report_files
from vllm_fl_dispatch.cli.app import AsJson, app, show, styled, table


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="What VLLM_FL_REPORT named.")],
    as_json: AsJson = False,
) -> None:
    """Show which implementation served each operator in every process that left a report."""
    reports = report_files.read(folder)
    made = table(
        "What ran", "rank", "process", "operator", "implementation", "kind", "mode", "layers",
        "calls", "failures", wrap=["process"],
    )  # fmt: skip
    deviations = _deviations()
    lines: list[RenderableType] = []
    for each in reports:
        rank = "" if each["rank"] is None else str(each["rank"])
        process = f"{each['host']} {each['pid']}"
        for row in each["rows"]:
            made.add_row(
                rank, process, row["op"], row["impl_id"], row["kind"], row["mode"],
                str(row["layers"]), str(row["calls"]), str(row["failures"] or ""),
            )  # fmt: skip
        lines += [
            styled((f"{process}: {f['op']}[{f['impl_id']}] failed: {f['error']}", "yellow"))
            for f in each["failures"]
        ]
        lines += _add_deviations(deviations, (rank, process), each.get("shadow", []))
        lines += [
            f"{process}: registered, but no such operator: {name}"
            for name in each["unknown_operators"]
        ]
    show(as_json, reports, made, *([deviations] if deviations.row_count else []), *lines)
    if not reports:
        raise typer.Exit(1)


def _deviations() -> Table:
    return table(
        "What deviates from its shadow, in the order in which it was seen", "rank", "process",
        "operator", "layer", "implementation", "beside", "tolerance", "first", "largest",
        "arguments of the first",
        wrap=["process", "layer", "first", "largest", "arguments of the first"],
    )  # fmt: skip


def _add_deviations(made: Table, process: tuple[str, str], rows: list[dict[str, Any]]) -> list[str]:
    """Add the rows that deviate to the table; returns a line for each operator's others."""
    others: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        first, largest = row["first"], row["largest"]
        if first is None:
            others.setdefault((row["op"], row["impl_id"], row["beside"]), []).append(row)
            continue
        made.add_row(
            *process, row["op"], row["layer"] or f"(unknown, {row['mode']})", row["impl_id"],
            row["beside"], f"{first['tolerance']:g} ulp", _deviation(first),
            "" if first == largest else _deviation(largest), first["arguments"],
        )  # fmt: skip
    return [
        f"{process[1]}: {op} by {impl_id} keeps to {beside} within the tolerance in "
        f"{len(same)} layers ({sum(row['compared'] for row in same)} calls compared, "
        f"at most {max(row['largest']['ulp'] for row in same):.3g} ulp apart)"
        for (op, impl_id, beside), same in others.items()
    ]


def _deviation(found: dict[str, Any]) -> str:
    size = found["note"] or f"{float(found['ulp']):.3g} ulp"
    return f"call {found['call']}: {size}"
