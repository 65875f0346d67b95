"""Which implementations are right on a device: the conformance kit, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing import Outcome, Result, Subject, run_case, subjects


@dataclass(frozen=True)
class Finding:
    """What the cases of an operator say about one implementation.

    Attributes:
        right: at least one case passed and none failed.
        text: how many did what, with the first failure.
    """

    right: bool
    text: str


def verify(
    manager: OpManager,
    op: str,
    device: str,
    tell: Callable[[str], object] = lambda text: None,
    *,
    run: Callable[[Subject, Case], Result] = run_case,
) -> dict[str, Finding]:
    """impl_id -> finding, for every implementation of an operator that can run here.

    Args:
        run: runs one case, here or in another process.
    """
    found, absent = subjects(manager, op=op, device=device)
    findings = {each.impl.impl_id: Finding(False, each.reason) for each in absent}
    for subject in found:
        tell(f"verifying {subject}")
        findings[subject.impl.impl_id] = judged([run(subject, case) for case in subject.cases()])
    return findings


def judged(results: list[Result]) -> Finding:
    """One finding from the results of all cases."""
    counts = Counter(result.outcome for result in results)
    failed = next((r for r in results if r.outcome is Outcome.FAILED), None)
    text = ", ".join(f"{counts[each]} {each.value}" for each in Outcome if counts[each])
    if failed is not None:
        text += f"; first {failed.case.name}: {failed.message}"
    return Finding(failed is None and bool(counts[Outcome.PASSED]), text or "no cases")
