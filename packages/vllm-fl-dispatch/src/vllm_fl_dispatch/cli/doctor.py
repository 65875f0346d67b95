"""``vllm-fl doctor``: everything that decides what will serve, and what is wrong with it."""

from __future__ import annotations

import typer

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, show, table
from vllm_fl_dispatch.doctor import diagnose


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look for problems: broken or doubled distributions, unknown settings, missing kernels.

    The exit code is 1 if there is any.
    """
    found = diagnose(get_default_manager())
    tables = []
    for section, rows in found.sections.items():
        made = table(section, "what", "found", wrap=["what", "found"])
        for what, value in rows or [("(nothing)", "")]:
            made.add_row(what, value)
        tables.append(made)
    problems = table("problems", "", wrap=[""])
    for problem in found.problems:
        problems.add_row(problem, style="red")
    if not found.problems:
        problems.add_row("none", style="green")
    show(as_json, found.as_dict(), *tables, problems)
    if found.problems:
        raise typer.Exit(1)
