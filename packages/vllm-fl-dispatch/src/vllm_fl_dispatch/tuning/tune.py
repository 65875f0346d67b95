"""Verify, measure, choose: one operator after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from vllm_fl_dispatch.benching.bench import Setting, Tell, bench
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.testing.apart import Apart
from vllm_fl_dispatch.tuning import choice
from vllm_fl_dispatch.tuning.choice import MARGIN, choose
from vllm_fl_dispatch.tuning.document import Tuned
from vllm_fl_dispatch.tuning.verification import verify

#: What a layer can be served by: eagerly, in compiled code, and by vLLM itself.
MODES = ("eager", "opaque", "compiled", "stock")


def tune(
    manager: OpManager,
    ops: Sequence[str],
    setting: Setting,
    *,
    deadline: float | None = None,
    tell: Tell = lambda text: None,
) -> Iterator[Tuned]:
    """What was chosen for each operator, one by one.

    Args:
        setting: its modes are `MODES`.
        deadline: of `time.monotonic`; operators that it does not leave time for are not tuned.
    """
    with Apart() as elsewhere:
        for op in ops:
            if deadline is not None and time.monotonic() > deadline:
                yield Tuned(op, note="the budget was spent before its turn")
            else:
                yield _tune_one(manager, op, setting, tell, elsewhere)


def _tune_one(manager: OpManager, op: str, setting: Setting, tell: Tell, elsewhere: Apart) -> Tuned:
    findings = verify(manager, op, setting.device, tell, run=elsewhere.run)
    figures = bench(manager, op, setting, tell)
    texts = {impl_id: finding.text for impl_id, finding in findings.items()}
    if not any(figure.time is not None for figure in figures):
        return Tuned(op, figures, texts, note=next((f.note for f in figures), "nothing serves it"))
    impls = manager.registry.impls(op)
    right = {impl_id for impl_id, finding in findings.items() if finding.right}
    eager = choose(choice.eager_costs(figures), impls, right, margin=MARGIN["eager"])
    compiled = choose(choice.compiled_costs(figures), impls, right, margin=MARGIN["compiled"])
    return Tuned(op, figures, texts, eager, compiled)
