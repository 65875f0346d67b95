"""Which tensors are on the device, and that none is copied back: with tensors without numbers.

The device ``meta`` stands for the NPU. Reading one of its tensors on the host raises, and so does
an operator that gets a tensor from the wrong side.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("vllm", reason="vLLM is not installed: nox -s ascend")

from vllm_fl_ascend.impl import attention_mask, kv_cache
from vllm_fl_ascend.library import OPERATORS
from vllm_fl_ascend.vllm.attention import AscendAttentionImpl
from vllm_fl_ascend.vllm.metadata import AscendMetadataBuilder

#: The operators without a shape function in the wheel, and what they read on the host.
WITHOUT_META = ("atb::_npu_reshape_and_cache", "atb::_npu_paged_attention")
ON_HOST = {"context_lens"}

#: Starts of the requests, and their lengths.
STATES = {
    "prefill": ([0, 5, 9], [5, 4]),
    "prefix": ([0, 5, 9], [133, 4]),
    "chunked": ([0, 1, 5], [200, 4]),
    "decode": ([0, 1, 2], [200, 7]),
}


@pytest.fixture(scope="module", autouse=True)
def _shape_functions() -> Iterator[None]:
    library = torch.library.Library("atb", "IMPL")

    def check(operator: str, values: tuple[Any, ...]) -> None:
        for name, value in zip(OPERATORS[operator], values, strict=True):
            side = "cpu" if name in ON_HOST else "meta"
            if isinstance(value, torch.Tensor) and value.device.type != side:
                raise AssertionError(f"{operator}: {name} is on {value.device}, not on {side}")

    for each in WITHOUT_META:
        library.impl(each, lambda *values, operator=each, **_: check(operator, values), "Meta")
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def _no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it warns once, one shape function asks which device there is."""
    monkeypatch.setattr(
        "torch_npu.op_plugin.meta._meta_registrations._npu_fusion_attention_warning_printed", True
    )


def on_device(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def attend(state: str, dtype: torch.dtype) -> torch.Tensor:
    starts, lengths = STATES[state]
    spec = SimpleNamespace(dtype=dtype, head_size=128, num_kv_heads=2, block_size=128)
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=64))
    builder = AscendMetadataBuilder(spec, ["a"], config, torch.device("meta"))
    step = SimpleNamespace(
        num_reqs=len(lengths),
        causal=True,
        seq_lens=on_device(len(lengths), dtype=torch.int32),
        block_table_tensor=on_device(len(lengths), 9, dtype=torch.int32),
        slot_mapping=on_device(starts[-1], dtype=torch.int64),
        query_start_loc_cpu=torch.tensor(starts),
        seq_lens_cpu_upper_bound=torch.tensor(lengths),
    )
    query = on_device(starts[-1], 4, 128, dtype=dtype)
    key = on_device(starts[-1], 2, 128, dtype=dtype)
    cache = on_device(2, 20, 128, 2, 128, dtype=dtype)
    metadata, output = builder.build(0, step), torch.empty_like(query)
    layer = AscendAttentionImpl(4, 128, 0.1, 2)
    return layer.forward(None, query, key, key, cache, metadata, output)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_reads_nothing_back(state: str, dtype: torch.dtype) -> None:
    assert attend(state, dtype).device.type == "meta"


def test_lengths_on_the_device_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = on_device(2, dtype=torch.int32)
    monkeypatch.setattr(kv_cache.Pages, "context_lens", lengths)
    with pytest.raises(AssertionError, match="context_lens is on meta, not on cpu"):
        attend("decode", torch.float16)


def test_reading_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AscendMetadataBuilder, "_lengths", lambda self, common: common.seq_lens)
    with pytest.raises(RuntimeError, match="meta tensor"):
        attend("decode", torch.float16)


def test_a_stand_in_never_becomes_the_mask_of_others() -> None:
    attention_mask.forget_masks()
    with FakeTensorMode():
        attention_mask.compressed_mask("cpu")
    assert type(attention_mask.compressed_mask("cpu")) is torch.Tensor
