"""``vllm-fl bench [OP]``: how fast each implementation is, at the sizes of a model."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from vllm_fl_dispatch import probing
from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.benching.shapes import ModelShape, read_shape
from vllm_fl_dispatch.cli.app import AsJson, app, asides, show, table, writable
from vllm_fl_dispatch.cli.explain import device_named, dtype_named
from vllm_fl_dispatch.config.measured import driver
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.doctor import PACKAGES
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.logger_manager import set_log_level
from vllm_fl_dispatch.manager import OpManager

if TYPE_CHECKING:
    from vllm_fl_dispatch.benching.bench import Setting
    from vllm_fl_dispatch.benching.figures import Figure

Op = Annotated[list[str] | None, typer.Argument(help="Operators; by default all.")]
Model = Annotated[
    Path | None,
    typer.Option(help="A config.json or a model's folder; by default an 8B dense shape."),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, npu; by default the accelerator if there is one.")
]
Tokens = Annotated[
    str, typer.Option(help="Comma list; by default 1,16,256,4096, on a CPU without the last.")
]


@app.command()
def bench(
    op: Op = None,
    model: Model = None,
    tokens: Tokens = "",
    modes: Annotated[
        str, typer.Option(help="Of eager, opaque, compiled, stock; comma list.")
    ] = "eager",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16, float32.")] = "bfloat16",
    device: Device = None,
    rounds: Annotated[int, typer.Option(min=2, help="Each variant is timed once a round.")] = 9,
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture too; needs the extra plot.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every available implementation of operators, in rounds that alternate.

    time: on the device, or on a CPU per call. host: until the call returns. ratio: time by that
    of the implementation which the policy selects, in the same round; empty where that one has
    no time. A narrow table leaves out columns that `--json` has.
    """
    setting = setting_of(model, tokens, modes, dtype, device, rounds)
    from vllm_fl_dispatch.benching import plot as picture
    from vllm_fl_dispatch.benching.bench import bench as measured
    from vllm_fl_dispatch.benching.figures import not_measured, remarks
    from vllm_fl_dispatch.benching.timing import copy_ceiling

    if plot is not None:
        writable(plot, "--plot")
        picture.check(plot)
    manager = get_default_manager()
    names, figures = chosen(manager, op or ()), []
    with progress(len(names)) as tell:
        for name in names:
            figures += measured(manager, name, setting, tell)
            tell(None)
    ceiling = copy_ceiling(setting.device)
    data = {
        **surroundings(setting),
        "copy_gb_per_s": ceiling,
        "figures": [figure.as_dict() for figure in figures],
    }
    lines = [
        f"{data['device']}, {dtype}, {setting.rounds} rounds; a copy moves {ceiling:.0f} GB/s",
        *remarks(figures),
        *(f"not measured: {line}" for line in not_measured(figures)),
    ]
    ops = dict.fromkeys(figure.op for figure in figures if figure.time is not None)
    show(as_json, data, *(_table(name, figures, ceiling) for name in ops), *lines)
    if plot is not None:
        picture.plot(figures, ceiling, f"{data['device']}, {dtype}", plot)
    if not ops:
        raise typer.Exit(1)


def setting_of(
    model: Path | None, tokens: str, modes: str, dtype: str, device: str | None, rounds: int
) -> Setting:
    """What the options say.

    Raises:
        PolicyError: a value that is not accepted.
    """
    import torch

    from vllm_fl_dispatch.benching.bench import Setting
    from vllm_fl_dispatch.benching.variants import MODES

    if device is None:
        found = torch.accelerator.current_accelerator()
        device = found.type if found is not None and torch.accelerator.is_available() else "cpu"
    where = device_named(device)
    if where.index is not None:
        # Events and graphs belong to the current device.
        getattr(torch, where.type).set_device(where.index)
    counts = parse_names(tokens) or ("1", "16", "256", "4096")[: 3 if device == "cpu" else 4]
    if not all(count.isdecimal() and int(count) for count in counts):
        raise PolicyError(f"--tokens: {tokens!r} is not a comma list of numbers such as 1,16,256")
    wanted = parse_names(modes)
    if not wanted or set(wanted) - set(MODES):
        raise PolicyError(f"--modes: {modes!r} is not accepted; accepted: {', '.join(MODES)}")
    shape = ModelShape() if model is None else read_shape(model)
    numbers = tuple(int(count) for count in counts)
    return Setting(shape, numbers, dtype_named(dtype), device, wanted, rounds)


def chosen(manager: OpManager, ops: Sequence[str]) -> list[str]:
    """These operators, or all that have arguments in a model.

    Raises:
        UnknownOp: no such operator; names the nearest one.
    """
    from vllm_fl_dispatch.benching import inputs

    manager.ensure_built()
    specs = [manager.registry.spec(name) for name in ops or manager.registry.op_names()]
    return list(dict.fromkeys(spec.name for spec in specs if ops or inputs.known(spec)))


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str | None], None]]:
    """A progress bar. What it yields takes a text about what runs now, or None: a step is done."""
    if "VLLM_FL_LOG_LEVEL" not in os.environ:
        # Each implementation is selected in turn; that is no news.
        set_log_level("WARNING")
    with Progress(
        SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.description}"), console=asides, transient=True,
        disable=not asides.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=steps)

        def tell(text: str | None) -> None:
            if text is None:
                bar.advance(task)
            else:
                bar.update(task, description=text)

        yield tell


def surroundings(setting: Setting) -> dict[str, Any]:
    """On what was measured: device, driver, versions, sizes."""
    import torch

    kind = torch.device(setting.device).type
    if kind == "cpu":
        name = f"{platform.machine()} CPU, torch threads: {torch.get_num_threads()}"
    else:
        name = getattr(torch, kind).get_device_name(setting.device)
    return {
        "device": name,
        "driver": driver(),
        "toolkit": torch.version.cuda,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "shape": asdict(setting.shape),
        "rounds": setting.rounds,
        "versions": {p: v for p in PACKAGES if (v := probing.version_of(p)) is not None},
    }


def _table(op: str, figures: Sequence[Figure], ceiling: float) -> Any:
    made = table(
        op, "tokens", "implementation", "time µs", "p10..p90", "host µs", "GB/s", "of a copy",
        "ratio", spare=["p10..p90", "of a copy", "GB/s", "host µs"],
    )  # fmt: skip
    before = None
    for figure in figures:
        if figure.op != op or figure.time is None:
            continue
        rate = figure.bandwidth
        made.add_row(
            "" if figure.tokens == before else str(figure.tokens),
            figure.variant,
            f"{figure.time:.2f}",
            f"{figure.low:.2f}..{figure.high:.2f}",
            f"{figure.host:.2f}",
            "" if rate is None else f"{rate:.0f}",
            "" if rate is None else f"{rate / ceiling:.0%}",
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
        )
        before = figure.tokens
    return made
