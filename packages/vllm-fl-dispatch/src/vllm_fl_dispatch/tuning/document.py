"""The policy file that tuning writes: orders, and the figures behind them as comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from vllm_fl_dispatch.benching.figures import Figure, not_measured
from vllm_fl_dispatch.tuning.choice import NATIVE, STOCK, Choice


@dataclass(frozen=True)
class Tuned:
    """Everything about one operator.

    Attributes:
        verified: impl_id -> what verification said, such as ``96 cases passed``.
        eager, compiled: what was chosen; None: nothing could be measured.
        note: why nothing was chosen.
    """

    op: str
    figures: Sequence[Figure] = ()
    verified: Mapping[str, str] = field(default_factory=dict)
    eager: Choice | None = None
    compiled: Choice | None = None
    note: str = ""


def document(head: Sequence[str], measured_on: Mapping[str, str], tuned: Sequence[Tuned]) -> str:
    """The text of the file.

    Args:
        head: lines of the comment at its beginning.
        measured_on: what the file is compared with where it is used; see `config/measured.py`.
    """
    lines = [_comment(line) for line in head]
    lines += ["", "measured_on:", *_mapping(measured_on, 1)]
    eager, compiled = [], []
    for each in tuned:
        if each.eager is not None:
            eager += ["", *_comments(each, ("eager", "stock"), each.eager, 1)]
            eager.append(f"  {each.op}: {_order(each.eager)}")
        if each.compiled is not None:
            compiled += ["", *_comments(each, ("opaque", "compiled"), each.compiled, 2)]
            compiled.append(f"    {each.op}: {_order(each.compiled)}")
    # A section that is there has something in it: an empty one is no mapping.
    lines += ["", "op_backends:", *eager] if eager else []
    lines += ["", "", "compiled:", "  op_backends:", *compiled] if compiled else []
    left = [_comment(f"{each.op}: {each.note}") for each in tuned if each.note]
    lines += ["", "# Not tuned:", *left] if left else []
    absent = [*not_measured(figure for each in tuned for figure in each.figures)]
    lines += ["", "# Not measured:", *map(_comment, absent)] if absent else []
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    """One line, whatever is in it: the message of an exception may have several, and colours."""
    return f"# {_printable(text)}".rstrip()


def _printable(text: str) -> str:
    # YAML takes several characters for the end of a line, and others not at all.
    return "".join(each if each.isprintable() else " " for each in text)


def _mapping(values: Mapping[str, str], depth: int) -> list[str]:
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True).rstrip()
    return [f"{'  ' * depth}{line}" for line in text.splitlines()]


def _order(choice: Choice) -> str:
    return f"[{', '.join(choice.order)}]"


def _comments(tuned: Tuned, modes: tuple[str, ...], choice: Choice, depth: int) -> list[str]:
    """A line per variant: its times, its cost, its verification."""
    figures = [f for f in tuned.figures if f.mode in modes]
    sizes = sorted({figure.tokens for figure in figures if figure.time is not None})
    rows = [["tokens", *map(str, sizes), "host", "cost", ""]]
    for label in dict.fromkeys(figure.variant for figure in figures):
        own = {figure.tokens: figure for figure in figures if figure.variant == label}
        first = next(iter(own.values()))
        cost = choice.costs.get(_who(first))
        hosts = [figure.host for figure in own.values() if figure.host is not None]
        notes = [tuned.verified.get(first.impl_id, ""), next((f.note for f in own.values()), "")]
        rows.append([
            label,
            *(_number(own[size].time if size in own else None) for size in sizes),
            _number(min(hosts, default=None)),
            "-" if cost is None else f"{cost:.2f}",
            _printable("; ".join(filter(None, notes)).partition("\n")[0]),
        ])  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        f"{'  ' * depth}# " + "  ".join(
            cell.ljust(width) if i in (0, len(row) - 1) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]  # fmt: skip


def _who(figure: Figure) -> str:
    return STOCK if figure.mode == "compiled" and figure.impl_id == NATIVE else figure.impl_id


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
