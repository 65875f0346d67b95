"""``vllm-fl report FOLDER``: what ran, per process and rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from vllm_fl_dispatch.cli.app import AsJson, app, asides, show, styled, table
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.report_reading import by_run, read


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="What VLLM_FL_REPORT named.")],
    last: Annotated[bool, typer.Option("--last", help="Only of the latest start.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which implementation served each operator in every process that left a report.

    The processes of one start of a server stand together, the latest start last.
    """
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there"
        raise PolicyError(f"FOLDER: {folder} {what}; accepted: the folder VLLM_FL_REPORT named")

    def complain(text: str) -> None:
        asides.print(text, style="yellow")

    runs = by_run(read(folder, complain))
    if last:
        runs = dict(list(runs.items())[-1:])
    reports = [each for run in runs.values() for each in run]
    shown: list[RenderableType] = []
    for run, of in runs.items():
        title = f"What ran, started {run or 'at a time that was not recorded'}"
        shown += _one_run(title if len(runs) > 1 or last else "What ran", of)
    show(as_json, reports, *shown)
    if not any(each["rows"] for each in reports):
        found = (
            f"{len(reports)} processes left a report and served no operator through vllm-fl: was "
            "a model loaded, and is the plugin switched on?"
            if reports
            else f"no report in {folder}: vLLM leaves one, when it ends, in the folder that "
            "VLLM_FL_REPORT names"
        )
        asides.print(found, style="red")
    if not reports:
        raise typer.Exit(1)


def _one_run(title: str, reports: list[dict[str, Any]]) -> list[RenderableType]:
    rows: list[dict[str, str]] = []
    deviations: list[RenderableType] = []
    lines: list[RenderableType] = []
    for each in reports:
        rank = "" if each["rank"] is None else str(each["rank"])
        process = f"{each['host']} {each['pid']}"
        rows += [
            {"rank": rank, "process": process, "operator": row["op"],
             "implementation": row["impl_id"], "mode": row["mode"], "layers": str(row["layers"]),
             "calls": str(row["calls"]), "failures": str(row["failures"] or "")}
            for row in each["rows"]
        ]  # fmt: skip
        lines += [
            styled((f"{process}: {f['op']}[{f['impl_id']}] failed: {f['error']}", "yellow"))
            for f in each["failures"]
        ]
        where = process if not rank else f"{process}, rank {rank}"
        tables, others = _shadows(where, each["shadow"])
        deviations += tables
        lines += others
        lines += [
            f"{process}: registered, but no such operator: {name}"
            for name in each["unknown_operators"]
        ]
    return [_what_ran(title, rows), *deviations, *lines]


def _what_ran(title: str, rows: list[dict[str, str]]) -> Table:
    # A column that says nothing makes the others narrow.
    columns = [
        name for name in ("rank", "process", "operator", "implementation", "mode", "layers",
                          "calls", "failures")
        if name not in ("rank", "failures") or any(row[name] for row in rows)
    ]  # fmt: skip
    made = table(title, *columns, wrap=["process"], spare=["layers", "mode"])
    for row in rows:
        made.add_row(*(row[name] for name in columns))
    return made


def _shadows(process: str, rows: list[dict[str, Any]]) -> tuple[list[RenderableType], list[str]]:
    """A table for each implementation that deviates from its shadow, and a line for each other.

    The tables, and the layers in them, come in the order in which the deviations were seen.
    """
    deviating: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    others: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["op"], row["impl_id"], row["beside"])
        (others if row["first"] is None else deviating).setdefault(key, []).append(row)
    tables = [t for key, same in deviating.items() for t in _deviations(process, *key, same)]
    return tables, [
        f"{process}: {op} by {impl_id} keeps to {beside} within the tolerance in "
        f"{len(same)} layers ({sum(row['compared'] for row in same)} calls compared, "
        f"at most {max(row['largest']['ulp'] for row in same):.3g} ulp apart)"
        for (op, impl_id, beside), same in others.items()
    ]


def _deviations(
    process: str, op: str, impl_id: str, beside: str, rows: list[dict[str, Any]]
) -> list[RenderableType]:
    first = rows[0]["first"]
    # Not as a title, which would be as narrow as the table.
    head = (
        f"{op} by {impl_id} deviates from {beside} by more than {first['tolerance']:g} ulp\n"
        f"in {process}, first with {first['arguments']}"
    )
    made = table("", "layer", "first", "largest", wrap=["layer", "first", "largest"])
    for row in rows:
        first, largest = row["first"], row["largest"]
        made.add_row(
            row["layer"] or f"(unknown, {row['mode']})", _deviation(first),
            "" if first == largest else _deviation(largest),
        )  # fmt: skip
    return [styled((head, "bold red")), made]


def _deviation(found: dict[str, Any]) -> str:
    size = found["note"] or f"{float(found['ulp']):.3g} ulp"
    return f"call {found['call']}: {size}"
