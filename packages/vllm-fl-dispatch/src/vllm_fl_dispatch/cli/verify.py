"""``vllm-fl verify``: the conformance cases on this machine, as a table."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any

import typer
from rich.progress import Progress

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.app import AsJson, app, asides, console, show, styled, table
from vllm_fl_dispatch.cli.explain import device_named
from vllm_fl_dispatch.discovery import MODULES_VARIABLE

#: heading -> outcome
_COUNTS = {"pass": "passed", "unsup.": "unsupported", "skip": "skipped", "fail": "failed"}


@app.command()
def verify(
    op: Annotated[str | None, typer.Argument(help="Only this operator.")] = None,
    impl: Annotated[str | None, typer.Option(help="Only this implementation.")] = None,
    device: Annotated[str, typer.Option(help="Where: cpu, cuda, npu, ...")] = "cpu",
    apart: Annotated[
        bool,
        typer.Option(
            "--apart/--here",
            help="Run the cases in a process of their own, so that a kernel that kills it, or "
            "does not return, fails alone; or in this one, for a debugger.",
        ),
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=1, help="With --apart: the seconds that one case may take.")
    ] = 300,
    as_json: AsJson = False,
) -> None:
    """Compare every implementation that can run here with the float64 oracle of its contract.

    What passes its cases is put to the structural checks too: shapes, predicates, compiled code.
    Exit status 1 if one fails, or an implementation or a module of `VLLM_FL_PLUGIN_MODULES` is
    broken; 2 if nothing could be tested.
    """
    from vllm_fl_dispatch.testing import Outcome, subjects
    from vllm_fl_dispatch.testing.apart import Apart
    from vllm_fl_dispatch.testing.runs import STRUCTURAL
    from vllm_fl_dispatch.testing.runs import run as run_here

    device_named(device)
    manager = get_default_manager()
    found, absent = subjects(manager, op=op, impl_id=impl, device=device)
    results: list[tuple[Any, list[Any]]] = []
    with (
        Progress(console=asides, transient=True, disable=not asides.is_terminal) as progress,
        Apart(timeout) as elsewhere,
    ):
        run = elsewhere.run if apart else run_here
        work = [(subject, list(subject.cases())) for subject in found]
        task = progress.add_task("", total=sum(len(c) + len(STRUCTURAL) for _, c in work))
        for subject, cases in work:
            progress.update(task, description=str(subject).replace("[", r"\["))
            outcomes: list[Any] = []
            results.append((subject, outcomes))
            for case in cases:
                outcomes.append(run(subject, case))
                progress.advance(task)
            # The checks make calls of cases: what failed there would fail here once more.
            kinds = {result.outcome for result in outcomes}
            right = Outcome.PASSED in kinds and Outcome.FAILED not in kinds
            for check in STRUCTURAL.values() if right else ():
                outcomes.append(run(subject, check))
                progress.advance(task)
    rows = [_row(subject, of) for subject, of in results]
    made = table(f"Conformance on {device}", "operator", "implementation", "max ulp", *_COUNTS)
    for row in rows:
        counts = [str(row[name] or "") for name in _COUNTS.values()]
        style = "red" if row["failed"] else None
        made.add_row(row["op"], row["impl_id"], f"{row['max_ulp']:.2f}", *counts, style=style)
    failed = [each for _, of in results for each in of if each.outcome is Outcome.FAILED]
    untested = Counter((each.impl.impl_id, each.reason) for each in absent if not each.broken)
    notes = [
        styled((f"{impl_id} is not tested ({count} operators): {reason}", "dim"))
        for (impl_id, reason), count in untested.items()
    ]
    broken = {str(each.impl): each.reason for each in absent if each.broken}
    # One that is merely installed may be of no concern; these were asked for.
    broken |= {
        f"{record.name} of {MODULES_VARIABLE}": record.error
        for record in manager.records
        if record.status == "broken" and record.source.origin.entry_point == MODULES_VARIABLE
    }
    notes += [
        styled((f"{what} cannot be loaded: {reason}", "red")) for what, reason in broken.items()
    ]
    notes += [
        styled((f"{row['op']}[{row['impl_id']}]: its checks run when its cases pass", "dim"))
        for row, (_, of) in zip(rows, results, strict=True)
        if not any(each.case.name in STRUCTURAL for each in of)
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
        {
            "rows": rows,
            "absent": [{"impl": str(e.impl), "reason": e.reason} for e in absent if not e.broken],
            "broken": broken,
        },
        made,
        *notes,
    )
    if failed and not as_json:
        _explain(failed)
    if failed or broken:
        raise typer.Exit(1)
    if not any(row["passed"] for row in rows):
        asides.print("nothing was tested", style="red")
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
    from vllm_fl_dispatch.testing.reproduce import explanation

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
