"""The figures as a picture: one panel per operator, time over tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_fl_dispatch.benching.figures import Figure
from vllm_fl_dispatch.errors import PolicyError

COLUMNS = 3


def check(file: Path) -> None:
    """Complain now about a file that could not be written when all is measured.

    Raises:
        PolicyError: matplotlib is not installed, or it knows no such kind of file.
    """
    canvas = canvas_class()().canvas
    known = sorted(canvas.get_supported_filetypes())
    if file.suffix and file.suffix[1:].lower() not in known:
        raise PolicyError(
            f"--plot: {file.name!r} is of no kind that matplotlib writes; accepted: "
            f"{', '.join(f'.{each}' for each in known)}"
        )


def canvas_class() -> Any:
    """What pictures are drawn on.

    Raises:
        PolicyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PolicyError("--plot needs matplotlib: pip install 'vllm-fl-dispatch[plot]'") from None
    return Figure


def plot(figures: Sequence[Figure], ceiling: float, title: str, file: Path) -> None:
    """Write a picture; the suffix of the file says of which kind.

    Args:
        ceiling: GB/s of a copy; the time that it gives is drawn as a floor.

    Raises:
        PolicyError: matplotlib is not installed, or it knows no such kind of file.
    """
    Canvas = canvas_class()  # noqa: N806  # a class
    measured = [figure for figure in figures if figure.time is not None]
    ops = list(dict.fromkeys(figure.op for figure in measured))
    labels = list(dict.fromkeys(figure.variant for figure in measured))
    if not ops:
        raise PolicyError("--plot: nothing was measured")
    columns = min(COLUMNS, len(ops))
    rows = -(-len(ops) // columns)
    canvas = Canvas(figsize=(1 + 4.2 * columns, 1.4 + 3.2 * rows), layout="constrained", dpi=130)
    panels = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for panel, op in zip(panels, ops, strict=False):
        _panel(panel, [figure for figure in measured if figure.op == op], labels, ceiling)
        panel.set_title(op, fontsize=10)
    for panel in panels[len(ops) :]:
        panel.set_visible(False)
    handles = {
        label: handle
        for panel in canvas.axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    canvas.suptitle(title, fontsize=11)
    canvas.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    try:
        canvas.savefig(file)
    except ValueError as error:
        raise PolicyError(f"--plot: {error}") from error


def _panel(panel: Any, figures: list[Figure], labels: list[str], ceiling: float) -> None:
    for number, label in enumerate(labels):
        own = [figure for figure in figures if figure.variant == label]
        if not own:
            continue
        times = [figure.time or 0.0 for figure in own]
        # From the tenth to the ninetieth percentile; not below zero by a rounding.
        spread = [
            [max(time - (f.low or 0.0), 0.0) for f, time in zip(own, times, strict=True)],
            [max((f.high or 0.0) - time, 0.0) for f, time in zip(own, times, strict=True)],
        ]
        panel.errorbar(
            [figure.tokens for figure in own], times, spread, marker="os^Dv*"[number % 6],
            color=f"C{number}", markersize=4, capsize=2, linewidth=1.2, label=label,
        )  # fmt: skip
    floor = {f.tokens: f.bytes / ceiling / 1e3 for f in figures if f.bytes is not None}
    if floor:
        panel.plot(
            list(floor), list(floor.values()), color="0.5", linestyle="--", linewidth=1,
            label="a copy of as many bytes",
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    sizes = sorted({figure.tokens for figure in figures})
    panel.set_xticks(sizes, [str(size) for size in sizes])
    panel.set_yscale("log")
    panel.set_xlabel("tokens")
    panel.set_ylabel("µs per call")
    panel.grid(visible=True, which="major", color="0.9")
