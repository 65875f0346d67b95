"""What dispatching costs per call, over a plain Python call measured in the same rounds.

usage: python dispatch_cost.py [--rounds N] [--json FILE] [--gate]

Each case runs in an interpreter of its own beside the plain call: an open scope, or an imported
vLLM, would change its neighbours. The rounds of all interpreters are interleaved.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

#: A gate fails above budget times this: shared machines are noisy.
SLACK = 1.5
#: Aimed-at length of one timed batch, in nanoseconds.
BATCH = 3_000_000
#: How a child's answers begin.
MARK = "answer "


def serve(name: str) -> None:
    """In a child: make one case, then answer each line of input with [plain ns, case ns]."""
    import cases
    import torch

    torch.set_num_threads(1)
    case = next(each for each in (*cases.OURS, *cases.PEERS) if each.name == name)
    try:
        call = case.make()
        pairs = [(fn, _batch_size(fn, cases)) for fn in (cases.leaf, call)]
    except Exception as error:  # noqa: BLE001  # whatever a peer raises is its line of the table
        _answer(f"{type(error).__name__}: {error}")
        return
    gc.disable()
    _answer("ready")
    for _ in sys.stdin:
        _answer([_time(fn, count, cases) for fn, count in pairs])


def _answer(data: Any) -> None:
    print(MARK + json.dumps(data), flush=True)


def _time(fn: Any, count: int, cases: Any) -> float:
    x, weight = cases.X, cases.WEIGHT
    start = time.thread_time_ns()
    for _ in range(count):
        fn(x, weight, 1e-6)
    return (time.thread_time_ns() - start) / count


def _batch_size(fn: Any, cases: Any) -> int:
    _time(fn, 200, cases)
    return max(20, int(BATCH / max(_time(fn, 200, cases), 1)))


class Child:
    """An interpreter that measures one case."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parent,
        )
        self.problem: str | None = None
        self.rounds: list[tuple[float, float]] = []

    def read(self) -> Any:
        """The next answer of the child (libraries print lines of their own)."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        return "it ended without an answer"

    def wait_until_ready(self) -> None:
        answer = self.read()
        self.problem = None if answer == "ready" else str(answer)

    def measure(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        plain, case = self.read()
        self.rounds.append((plain, case))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def result(self) -> dict[str, Any]:
        """Median, spread and plain call of this case, in nanoseconds."""
        if self.problem is not None:
            return {"name": self.name, "problem": self.problem}
        over = sorted(case - plain for plain, case in self.rounds)
        tenth = len(over) // 10
        return {
            "name": self.name,
            "plain_ns": statistics.median(plain for plain, _ in self.rounds),
            "over_ns": statistics.median(over),
            "p10_ns": over[tenth],
            "p90_ns": over[-1 - tenth],
        }


def measure(names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Measure the cases in interleaved rounds."""
    children = []
    for name in names:  # one at a time: starting is not measured, but must not disturb
        child = Child(name)
        child.wait_until_ready()
        children.append(child)
    ready = [child for child in children if child.problem is None]
    for _ in range(rounds):
        for child in ready:
            child.measure()
    for child in ready:
        child.close()
    return [child.result() for child in children]


def judged(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results with the budget of each case that has one."""
    import cases

    by_name = {result["name"]: result for result in results}
    for case in cases.OURS:
        result = by_name[case.name]
        if "problem" in result:
            result["within"] = False
            continue
        base = 0.0 if case.over == "plain call" else by_name[case.over].get("over_ns", 0.0)
        result["budget_ns"] = base + (case.budget or 0)
        result["within"] = result["over_ns"] <= result["budget_ns"] * SLACK
    return results


def show(results: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        title="Nanoseconds per call over a plain Python call", title_justify="left", box=SIMPLE_HEAD
    )
    for column in ("case", "over plain", "p10 to p90", "plain call", "budget", ""):
        left = column in ("case", "")
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    for result in results:
        if "problem" in result:
            table.add_row(result["name"], "not measured", "", "", "", result["problem"][:60])
            continue
        budget, within = result.get("budget_ns"), result.get("within")
        verdict = "" if within is None else "within" if within else f"above {SLACK} x budget"
        table.add_row(
            result["name"],
            f"{result['over_ns']:.0f}",
            f"{result['p10_ns']:.0f} to {result['p90_ns']:.0f}",
            f"{result['plain_ns']:.0f}",
            "" if budget is None else f"{budget:.0f}",
            verdict,
        )
    Console().print(table)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--gate", action="store_true", help="fail above the budgets")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    sys.path.insert(0, str(Path(__file__).parent))
    import cases

    names = [case.name for case in (*cases.OURS, *cases.PEERS)]
    results = judged(measure(names, options.rounds))
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    failed = [result["name"] for result in results if result.get("within") is False]
    if failed and options.gate:
        print(f"above the budget: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
