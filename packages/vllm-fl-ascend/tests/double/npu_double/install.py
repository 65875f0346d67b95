"""Putting the model behind torch_npu's dispatcher, and recording what is called."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Recorded:
    """A call as the dispatcher passed it on: the operator, and its arguments by name."""

    name: str
    arguments: dict[str, Any]


_recorders: list[list[Recorded]] = []


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
    stubs.preload(stubs.build(wheel(), folder))
    # For the processes that this one starts, and for the probes: both find CANN there.
    os.environ["LD_LIBRARY_PATH"] = str(folder)
    import_operators()
    for name in MODEL:
        namespace, _, op = name.partition("::")
        library = _libraries.setdefault(namespace, torch.library.Library(namespace, "IMPL"))
        library.impl(op, _recorded(name), "CPU")


def import_operators() -> None:
    """Import torch_npu, on stand-ins that are loaded already."""
    for name in ("torch_npu", "torch_npu.op_plugin.atb._atb_ops"):
        importlib.import_module(name)


def overload(name: str) -> Any:
    """The operator of torch for a name of `MODEL`."""
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op).default


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Collects the calls made inside."""
    calls: list[Recorded] = []
    _recorders.append(calls)
    try:
        yield calls
    finally:
        _recorders.remove(calls)


def _recorded(name: str) -> Callable[..., Any]:
    names = [argument.name for argument in overload(name)._schema.arguments]

    def called(*args: Any, **options: Any) -> Any:
        for calls in _recorders:
            calls.append(Recorded(name, {**dict(zip(names, args, strict=False)), **options}))
        return MODEL[name](*args, **options)

    return called
