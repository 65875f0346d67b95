"""Measure the implementations of operators at the sizes of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch.benching import inputs, timing
from vllm_fl_dispatch.benching.figures import Figure, ratio, summary
from vllm_fl_dispatch.benching.shapes import ModelShape
from vllm_fl_dispatch.benching.variants import Variant, available, variants
from vllm_fl_dispatch.errors import OpNotSupported, in_brief
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.resolution import Decision, Outcome


@dataclass(frozen=True)
class Setting:
    """What is measured, and how often.

    Attributes:
        tokens: rows of the inputs; each is measured.
        modes: see `variants.MODES`.
        rounds: each variant is timed once a round.
    """

    shape: ModelShape
    tokens: Sequence[int]
    dtype: torch.dtype
    device: str
    modes: Sequence[str] = ("eager",)
    rounds: int = 9


#: Called with a text about what runs now.
Tell = Callable[[str], object]


def bench(manager: OpManager, op_name: str, setting: Setting, tell: Tell) -> list[Figure]:
    """Measure every available implementation of an operator.

    The baseline of the ratios is the implementation that the policy selects, in the first of the
    modes that it has; at a token count that it cannot be measured at there are no ratios.

    Returns:
        A figure for each token count and variant; those without figures say why in their note.

    Raises:
        UnknownOp: no such operator.
    """
    spec = manager.registry.spec(op_name)
    objection = inputs.objection(spec, setting.shape)
    if objection:
        return [Figure(op_name, "", "", "", 0, note=objection)]
    candidates, resolution = available(manager, spec)
    selected = manager.resolve(op_name).selected
    candidates.sort(key=lambda c: c.impl is not selected)
    figures = [
        Figure(op_name, d.impl.impl_id, d.impl.impl_id, "", 0, note=_objection(d))
        for d in resolution.decisions
        if not d.accepted
    ]
    policy = manager.policy
    try:
        with torch.inference_mode():
            each = variants(manager, spec, candidates, setting.modes)
            own = (v.label for v in each if selected and v.impl_id == selected.impl_id)
            baseline = next(own, None)
            for tokens in setting.tokens:
                figures += _at(spec, each, baseline, tokens, setting, tell)
    finally:
        if manager.policy is not policy:
            manager.set_policy(policy)
    return figures


def _objection(decision: Decision) -> str:
    # Of the failures only that to load it stands for every call.
    failed = decision.outcome is Outcome.FAILED
    return f"{'cannot be loaded' if failed else decision.outcome.value}: {decision.reason}"


def _at(
    spec: OpSpec,
    each: list[Variant],
    baseline: str | None,
    tokens: int,
    setting: Setting,
    tell: Tell,
) -> list[Figure]:
    """The figures of all variants at one token count."""
    maker = inputs.Maker(setting.shape, tokens, setting.dtype, setting.device)
    by_label = {variant.label: variant for variant in each}
    batches: dict[str, timing.Batch] = {}
    notes: dict[str, str] = {}
    moved: int | None = None
    for label, variant in by_label.items():
        tell(f"{spec.name}, {tokens} tokens: {label} is prepared")
        try:
            # Of its own: some implementations overwrite their arguments.
            args, options = inputs.make(spec, maker)
            variant.before()
            call = variant.on(args, options, tokens)
            moved = inputs.moved_bytes(spec.name, args, call())
            batches[label] = timing.prepare(call, setting.device)
        except OpNotSupported as error:
            notes[label] = str(error)
        # One that fails is a line of the table; the others are measured.
        except Exception as error:  # noqa: BLE001
            notes[label] = in_brief(error)
    tell(f"{spec.name}, {tokens} tokens")
    samples = timing.measure(
        batches,
        setting.rounds,
        before=lambda label: by_label[label].before(),
    )
    found = []
    for label, variant in by_label.items():
        values: dict[str, Any] = {"note": notes.get(label, "")}
        if label in samples:
            values = {
                **summary(samples[label]),
                "ratio": ratio(samples[label], samples[baseline]) if baseline in samples else None,
                "bytes": moved,
                "note": _note(batches[label]),
            }
        found.append(Figure(spec.name, label, variant.impl_id, variant.mode, tokens, **values))
    return found


def _note(batch: timing.Batch) -> str:
    if isinstance(batch, timing.DeviceBatch) and not batch.captured:
        return "not captured: the host may delay the device"
    return ""
