"""``vllm-fl tune``: the policy file that verification and measurements justify."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli import bench as benching
from vllm_fl_dispatch.cli.app import AsJson, app, asides, say, show, table, writable, write_whole
from vllm_fl_dispatch.config import measured


@app.command()
def tune(
    op: benching.Op = None,
    model: benching.Model = None,
    tokens: benching.Tokens = "",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32.")] = "bfloat16",
    device: benching.Device = None,
    rounds: Annotated[int, typer.Option(min=2, help="Each variant is timed once a round.")] = 9,
    budget: Annotated[
        float | None, typer.Option(help="Seconds after which no further operator is begun.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The YAML file to write; by default it is printed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a policy: of what is right here, the fastest first, in eager and in compiled code.

    Every implementation runs the cases of `verify`; those that fail one are left out. Then all
    are measured as `bench` does, beside vLLM's own layers where vLLM is installed. The figures
    stand in the file as comments.
    """
    writable(output, "--output")
    setting = benching.setting_of(model, tokens, "eager", dtype, device, rounds)
    from vllm_fl_dispatch.benching.figures import not_measured
    from vllm_fl_dispatch.tuning.document import document
    from vllm_fl_dispatch.tuning.tune import MODES
    from vllm_fl_dispatch.tuning.tune import tune as tuned_one_by_one

    setting = replace(setting, modes=MODES)
    manager = get_default_manager()
    names = benching.chosen(manager, op or ())
    deadline = None if budget is None else time.monotonic() + budget
    with benching.progress(len(names)) as tell:
        tuned = []
        for each in tuned_one_by_one(manager, names, setting, deadline=deadline, tell=tell):
            tuned.append(each)
            tell(None)
    around = benching.surroundings(setting)
    text = document(_head(around), _measured_on(around), tuned)
    chosen = any(each.eager for each in tuned)
    if output is not None and chosen:
        write_whole(output, text)
    made = table(
        "Tuned", "operator", "eager", "compiled", "note", wrap=["eager", "compiled"], below="note"
    )
    for each in tuned:
        orders = ["|".join(c.order) if c else "" for c in (each.eager, each.compiled)]
        made.add_row(each.op, *orders, each.note)
    data = {
        **around,
        "policy": text,
        "figures": [figure.as_dict() for each in tuned for figure in each.figures],
    }
    if output is None and not as_json:
        say(text.rstrip("\n"))
    else:
        figures = (figure for each in tuned for figure in each.figures)
        show(as_json, data, made, *(f"not measured: {line}" for line in not_measured(figures)))
    if not chosen:
        left = "" if output is None else f"; {output} is left as it was"
        asides.print(f"nothing was chosen{left}", style="red")
        raise typer.Exit(1)


def _head(around: dict[str, Any]) -> list[str]:
    shape = ", ".join(f"{name} {value}" for name, value in around["shape"].items())
    return [
        f"Written by vllm-fl tune on {dt.datetime.now(dt.timezone.utc):%Y-%m-%d}:",
        f"  {shlex.join(['vllm-fl', *sys.argv[1:]])}",
        f"Device: {around['device']}; driver: {around['driver'] or 'none'}; "
        f"toolkit: {around['toolkit'] or 'none'}.",
        f"Sizes: {shape}; {around['dtype']}; medians of {around['rounds']} rounds.",
        "Figures: microseconds per call at so many tokens (on a device: device time), then the",
        "least on the host, then the mean cost relative to the best (eager: host included).",
        "An implementation stands before vLLM's own layer (stock) only where it is faster by a",
        "margin; in compiled code the reference stands for it: vLLM inlines and fuses it.",
    ]


def _measured_on(around: dict[str, Any]) -> dict[str, str]:
    """What the file is compared with where it is used."""
    found = {"device": measured.device(), "driver": around["driver"], **around["versions"]}
    return {name: v for name, v in found.items() if v is not None and name != "pluggy"}
