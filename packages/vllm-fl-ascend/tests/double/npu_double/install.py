"""Putting the model behind torch_npu's dispatcher, and recording what is called."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from . import activation, attention, cache, moe, normalization, quantization, rotary, stubs

#: operator -> its model
MODEL: dict[str, Callable[..., Any]] = {
    "npu::npu_swiglu": activation.npu_swiglu,
    "npu::npu_geglu": activation.npu_geglu,
    "npu::npu_clipped_swiglu": activation.npu_clipped_swiglu,
    "npu::npu_rms_norm": normalization.npu_rms_norm,
    "npu::npu_add_rms_norm": normalization.npu_add_rms_norm,
    "npu::npu_rotary_mul": rotary.npu_rotary_mul,
    "npu::npu_moe_gating_top_k_softmax": moe.npu_moe_gating_top_k_softmax,
    "npu::npu_moe_gating_top_k": moe.npu_moe_gating_top_k,
    "npu::npu_moe_init_routing_v2": moe.npu_moe_init_routing_v2,
    "npu::npu_moe_finalize_routing": moe.npu_moe_finalize_routing,
    "npu::npu_grouped_matmul": moe.npu_grouped_matmul,
    "npu::npu_dynamic_quant": quantization.npu_dynamic_quant,
    "npu::npu_fused_infer_attention_score": attention.npu_fused_infer_attention_score,
    "npu::npu_fusion_attention": attention.npu_fusion_attention,
    "atb::_npu_reshape_and_cache": cache.npu_reshape_and_cache,
    "atb::_npu_paged_attention": attention.npu_paged_attention,
    # Not called by the backend: here to show what it would do to it.
    "atb::_npu_rotary_embedding": rotary.npu_rotary_embedding,
}

_libraries: dict[str, torch.library.Library] = {}
_recorders: list[list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = []


def why_not() -> str | None:
    """Why the double cannot run here, or None."""
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed: nox -s ascend has an environment with it"
    tools = stubs.missing_tools()
    return f"not found: {', '.join(tools)}" if tools else None


def wheel() -> Path:
    """The folder of the installed package; looked up, not imported."""
    spec = importlib.util.find_spec("torch_npu")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def install(folder: Path) -> None:
    """Import torch_npu on stand-ins built in `folder`, and register the model for the CPU."""
    os.environ.setdefault("TASK_QUEUE_ENABLE", "0")
    stubs.preload(stubs.build(wheel(), folder))
    import torch_npu  # registers operators
    import torch_npu.op_plugin.atb._atb_ops  # noqa: F401  # same

    for name, function in MODEL.items():
        namespace, _, op = name.partition("::")
        library = _libraries.setdefault(namespace, torch.library.Library(namespace, "IMPL"))
        library.impl(op, _recorded(name, function), "CPU")


@contextmanager
def recording() -> Iterator[list[tuple[str, tuple[Any, ...], dict[str, Any]]]]:
    """Collects (operator, arguments, options) of the calls made inside."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    _recorders.append(calls)
    try:
        yield calls
    finally:
        _recorders.remove(calls)


def _recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **options: Any) -> Any:
        for calls in _recorders:
            calls.append((name, args, options))
        return function(*args, **options)

    return called
