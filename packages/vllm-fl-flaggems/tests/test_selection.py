"""Which attention is offered for which request."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_flaggems import selection

NAME = selection.NAME


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"head_size": 128, "dtype": "torch.bfloat16", "kv_cache_dtype": "auto", "block_size": 16},
        {"head_size": 80, "dtype": "torch.float16", "has_sliding_window": True},
        {"use_mla": True, "head_size": 576, "dtype": "torch.bfloat16"},
    ],
)
def test_what_flaggems_serves(request_: dict[str, Any]) -> None:
    assert selection.supports_flaggems(Query(NAME, request_)) == Verdict.yes()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"use_sparse": True}, "no sparse attention"),
        ({"has_sink": True}, "no sinks"),
        ({"attn_type": "encoder_only"}, "decoders only"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "no quantized cache"),
        ({"dtype": "torch.float32"}, "dtype torch.float32"),
        ({"head_size": 512}, "head size 512"),
        ({"head_size": 100}, "head size 100"),
        ({"use_mla": True, "head_size": 320}, "head size 320"),
        ({"use_mla": True, "has_sliding_window": True}, "no window"),
    ],
)
def test_what_falls_through_says_why(request_: dict[str, Any], reason: str) -> None:
    assert reason in selection.supports_flaggems(Query(NAME, request_)).reason


def test_a_cpu_platform_on_a_machine_with_a_device_gets_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for row in selection.implementations():
        assert "the call is on cpu" in row.answer(Query(NAME, {"device": "cpu"})).reason
        assert row.answer(Query(NAME, {"device": "cuda"}))


def test_vllms_kernel_stands_before_flaggems() -> None:
    rows = sorted(selection.implementations(), key=lambda impl: -(impl.priority or 0))
    assert [row.impl_id for row in rows] == ["default.triton", "default.flagos"]


@pytest.mark.parametrize("choose", [selection.flaggems_attention, selection.triton_attention])
def test_each_kind_of_attention_has_a_class(choose: Any) -> None:
    paths = {choose(), choose(use_mla=True)}
    assert len(paths) == 2
    assert all(path.count(".") > 2 for path in paths)
    with pytest.raises(OpNotSupported):
        choose(use_mla=True, use_sparse=True)
