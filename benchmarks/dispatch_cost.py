"""What dispatching costs per call, over a plain Python call of the same function.

usage: python dispatch_cost.py [--rounds N] [--json FILE] [--gate]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from cases import OURS, PLAIN, Case
from figures import SLACK, Figure, figures
from peers import PEERS
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from timing import Timed, measure

from vllm_fl_dispatch import set_log_level


def prepare() -> tuple[list[Timed], dict[str, str]]:
    """The cases that can be timed, and why a peer cannot. An error of ours is raised."""
    ready = [Timed(case) for case in (PLAIN, *OURS)]
    missing = {}
    for case in PEERS:
        peer = _peer(case)
        if isinstance(peer, Timed):
            ready.append(peer)
        else:
            missing[case.name] = peer
    return ready, missing


def _peer(case: Case) -> Timed | str:
    try:
        return Timed(case)
    except ImportError as error:
        return f"not installed ({error})"
    except Exception as error:  # noqa: BLE001  # a peer that changed must not stop our gate
        return f"{type(error).__name__}: {error}"


def show(found: Iterable[Figure], missing: Mapping[str, str], rounds: int) -> None:
    """Print the table, and below it what is not in it."""
    table = Table(
        title=f"Nanoseconds per call, medians of {rounds} rounds",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    table.add_column("case", no_wrap=True)
    for column in ("call", "over plain", "p10..p90", "budget", "used"):
        table.add_column(column, justify="right", no_wrap=True)
    for figure in found:
        table.add_row(figure.name, f"{figure.ns:.0f}", *_spread(figure), *_verdict(figure))
    console = Console()
    console.print(table)
    for name, why in missing.items():
        console.print(f"not measured: {name}: {why}", markup=False, highlight=False)


def _spread(figure: Figure) -> tuple[str, str]:
    if figure.name == PLAIN.name:
        return "", ""
    return f"{figure.over_plain:.0f}", f"{figure.p10:.0f}..{figure.p90:.0f}"


def _verdict(figure: Figure) -> tuple[str, str]:
    if figure.budget is None or figure.used is None:
        return "", ""
    base = "" if figure.budget.over == PLAIN.name else figure.budget.over
    color = "red" if figure.failed else "yellow" if figure.used > 1 else "green"
    return f"{base}+{figure.budget.ns:.0f}", f"[{color}]{figure.used:.0%}[/]"


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=101, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--gate", action="store_true", help=f"fail above {SLACK} x a budget")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: a spread needs at least 2")

    torch.set_num_threads(1)
    # Which implementation serves an operator is no news here.
    set_log_level("WARNING")
    ready, missing = prepare()
    found = figures(measure(ready, options.rounds))
    show(found, missing, options.rounds)
    if options.json:
        data = {
            "rounds": options.rounds,
            "slack": SLACK,
            "figures": [asdict(figure) for figure in found],
            "not_measured": missing,
        }
        options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    failed = [figure.name for figure in found if figure.failed]
    if failed and options.gate:
        print(f"above {SLACK} x the budget: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
