"""The attention classes of vllm-fl-flaggems as vLLM sees them, without a kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the kernel that writes the cache is written in it")

from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheLayout, MLAAttentionSpec
from vllm.v1.worker.worker_base import WorkerWrapperBase

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_flaggems.vllm import plugin
from vllm_fl_flaggems.vllm.attention import AttentionFLBackend
from vllm_fl_flaggems.vllm.mla import MLAFLBackend

REQUEST: dict[str, Any] = {
    "head_size": 128,
    "dtype": torch.bfloat16,
    "kv_cache_dtype": "auto",
    "block_size": 16,
    "use_mla": False,
    "has_sink": False,
    "use_sparse": False,
    "use_mm_prefix": False,
    "use_per_head_quant_scales": False,
    "device_capability": DeviceCapability(9, 0),
    "attn_type": "decoder",
}
MLA = {"head_size": 576, "use_mla": True}


@pytest.mark.parametrize("backend", [AttentionFLBackend, MLAFLBackend])
def test_vllm_can_use_the_class(backend: Any) -> None:
    assert not backend.__abstractmethods__
    assert not backend.get_impl_cls().__abstractmethods__
    assert not backend.get_builder_cls().__abstractmethods__
    assert backend.get_name() in AttentionBackendEnum.__members__


@pytest.mark.parametrize(
    ("backend", "change", "problem"),
    [
        (AttentionFLBackend, {}, None),
        (AttentionFLBackend, {"has_sliding_window": True, "head_size": 80}, None),
        (AttentionFLBackend, {"head_size": 260}, "head_size not supported"),
        (AttentionFLBackend, {"dtype": torch.float32}, "dtype not supported"),
        (AttentionFLBackend, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype not supported"),
        (AttentionFLBackend, {"has_sink": True}, "attention sinks not supported"),
        (AttentionFLBackend, {"attn_type": "encoder_only"}, "attention type"),
        (AttentionFLBackend, {"use_non_causal": True}, "non-causal attention not supported"),
        (AttentionFLBackend, {"use_batch_invariant": True}, "batch invariance not supported"),
        (AttentionFLBackend, MLA, "MLA not supported"),
        (MLAFLBackend, MLA, None),
        (MLAFLBackend, {**MLA, "head_size": 320}, "head_size not supported"),
        (MLAFLBackend, {**MLA, "device_capability": DeviceCapability(10, 0)}, "compute capability"),
        (MLAFLBackend, {**MLA, "kv_cache_dtype": "fp8"}, "kv_cache_dtype not supported"),
        (MLAFLBackend, {**MLA, "use_dcp": True}, "DCP not supported"),
    ],
)
def test_what_the_class_refuses(backend: Any, change: dict[str, Any], problem: str | None) -> None:
    found = backend.validate_configuration(**{**REQUEST, **change})
    if problem is None:
        assert found == []
    else:
        assert any(problem in each for each in found), found


def test_the_cache_has_the_tokens_before_the_heads_in_memory() -> None:
    """What both contracts of vLLM's cache lead to."""
    from vllm_fl_flaggems.impl.attention import views

    shape = AttentionFLBackend.get_kv_cache_shape(5, 16, 2, 64)
    order = AttentionFLBackend.get_kv_cache_stride_order()
    memory = torch.zeros([shape[axis] for axis in order])
    cache = memory.permute([order.index(axis) for axis in range(4)])
    assert cache.shape == shape
    views(cache, 64)  # which refuses every other layout
    assert AttentionFLBackend.supported_kv_cache_layouts() == (KVCacheLayout.LBNHC,)
    assert KVCacheLayout.LBNHC.layer_view_order == order


@pytest.mark.parametrize("backend", [AttentionFLBackend, MLAFLBackend])
def test_a_cache_that_the_kernels_cannot_index_is_refused_before_it_is_allocated(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mla = backend is MLAFLBackend
    heads, size, element = (1, 576, 576) if mla else (8, 128, 8 * 2 * 128)
    kind = MLAAttentionSpec if mla else FullAttentionSpec
    spec = kind(block_size=16, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16)
    fitting = (2**31 - 1) // (16 * element)
    builder = backend.get_builder_cls()
    built: list[Any] = []
    above = builder.__mro__[1]
    monkeypatch.setattr(above, "__init__", lambda *arguments: built.append(arguments))

    def build(blocks: int | None) -> None:
        config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=blocks))
        builder(spec, ["layer"], config, torch.device("cpu"))

    build(fitting)
    build(None)
    assert len(built) == 2
    with pytest.raises(OpNotSupported, match=f"--num-gpu-blocks-override {fitting}"):
        build(fitting + 1)


def test_a_worker_replaces_aten_operators_after_its_device_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(WorkerWrapperBase, "init_device", lambda self: happened.append("device"))
    monkeypatch.setattr(plugin, "replace", lambda: happened.append("operators"))
    plugin.install()
    plugin.install()
    WorkerWrapperBase.init_device(object())
    assert happened == ["device", "operators"]
