"""``vllm-fl verify``: the conformance cases on this machine, as a table."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

import typer
from rich.progress import Progress

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, console, show, styled, table

#: heading -> outcome
_COUNTS = {"pass": "passed", "unsup.": "unsupported", "skip": "skipped", "fail": "failed"}


@app.command()
def verify(
    op: Annotated[str | None, typer.Argument(help="Only this operator.")] = None,
    impl: Annotated[str | None, typer.Option(help="Only this implementation.")] = None,
    device: Annotated[str, typer.Option(help="Where: cpu, cuda, npu, ...")] = "cpu",
    apart: Annotated[
        bool | None,
        typer.Option(
            "--apart/--here",
            help="Run the cases in a process of their own, so that a kernel that kills it fails "
            "alone. By default on devices other than the CPU.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare every implementation that can run here with the float64 oracle of its contract.

    Exit status 1 if a case fails, 2 if nothing could be tested.
    """
    from vllm_fl_dispatch.testing import Outcome, run_case, subjects
    from vllm_fl_dispatch.testing.apart import Apart

    found, absent = subjects(get_default_manager(), op=op, impl_id=impl, device=device)
    results: list[tuple[Any, list[Any]]] = []
    if apart is None:
        apart = device != "cpu"
    with (
        Progress(console=console, transient=True, disable=as_json) as progress,
        Apart() as elsewhere,
    ):
        run = elsewhere.run if apart else run_case
        work = [(subject, list(subject.cases())) for subject in found]
        task = progress.add_task("", total=sum(len(cases) for _, cases in work))
        for subject, cases in work:
            progress.update(task, description=str(subject).replace("[", r"\["))
            outcomes: list[Any] = []
            results.append((subject, outcomes))
            for case in cases:
                outcomes.append(run(subject, case))
                progress.advance(task)
    rows = [_row(subject, of) for subject, of in results]
    made = table(f"Conformance on {device}", "operator", "implementation", "max ulp", *_COUNTS)
    for row in rows:
        counts = [str(row[name] or "") for name in _COUNTS.values()]
        style = "red" if row["failed"] else None
        made.add_row(row["op"], row["impl_id"], f"{row['max_ulp']:.2f}", *counts, style=style)
    failed = [each for _, of in results for each in of if each.outcome is Outcome.FAILED]
    untested = Counter((each.impl.impl_id, each.reason) for each in absent)
    notes = [
        styled((f"{impl_id} is not tested ({count} operators): {reason}", "dim"))
        for (impl_id, reason), count in untested.items()
    ]
    if impl is not None:
        # Asked about one, its author wants to know what it leaves to others.
        notes += [
            styled((f"{row['op']}[{impl}], unsupported cases: {count}: {reason}", "dim"))
            for row in rows
            for reason, count in sorted(row["reasons"].items(), key=lambda each: -each[1])
        ]
    show(
        as_json,
        {"rows": rows, "absent": [{"impl": str(e.impl), "reason": e.reason} for e in absent]},
        made,
        *notes,
    )
    if failed and not as_json:
        _explain(failed)
    if failed:
        raise typer.Exit(1)
    if not any(row["passed"] for row in rows):
        console.print("nothing was tested", style="red")
        raise typer.Exit(2)


def _row(subject: Any, results: list[Any]) -> dict[str, Any]:
    count = Counter(result.outcome.value for result in results)
    reasons = Counter(r.message for r in results if r.outcome.value == "unsupported")
    return {
        "op": subject.spec.name,
        "impl_id": subject.impl.impl_id,
        "max_ulp": max((r.ulp for r in results if r.outcome.value == "passed"), default=0.0),
        **{name: count[name] for name in _COUNTS.values()},
        "reasons": dict(reasons),
        "failures": [
            {"case": r.case.name, "message": r.message}
            for r in results
            if r.outcome.value == "failed"
        ],
    }


def _explain(failed: list[Any]) -> None:
    """The smallest failing case of each kind, to be pasted into Python."""
    from vllm_fl_dispatch.testing.assertions import explanation

    kinds: dict[tuple[str, str], list[Any]] = {}
    for result in sorted(failed, key=lambda r: (str(r.subject), r.case.heavy, r.numel)):
        kinds.setdefault((str(result.subject), _kind(result.message)), []).append(result)
    for (_, kind), alike in kinds.items():
        console.print()
        console.print(explanation(alike[0]), highlight=False, soft_wrap=True)
        if len(alike) > 1:
            names = ", ".join(result.case.name for result in alike[1:4])
            more = " ..." if len(alike) > 4 else ""
            console.print(
                f"So fail {len(alike) - 1} other cases ({kind}): {names}{more}",
                style="dim", highlight=False, soft_wrap=True,
            )  # fmt: skip


def _kind(message: str) -> str:
    """The beginning of a message, without numbers and places: what cases that fail alike share."""
    first = re.split(r" at \[|[\n;]", message)[0]
    return re.sub(r"[-+]?\b(\d[\w.+-]*|inf\b)", "#", first)[:100]
