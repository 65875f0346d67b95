"""What this backend registers: a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm_fl_dispatch import (
    BackendImplKind,
    BackendPriority,
    OpImpl,
    Registrar,
    hookimpl,
)
from vllm_fl_flaggems import diagnosis, selection
from vllm_fl_flaggems.probe import (
    device_present,
    library_installed,
    offers,
    triton_available,
    triton_installed,
)

vllm_fl_api = 1

#: operator -> (module of `impl/`, what else is known about the implementation)
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "silu_and_mul": ("activation", {}),
    "gelu_and_mul": ("activation", {}),
    "silu_and_mul_with_clamp": (
        "activation",
        {"installed": offers("silu_and_mul_with_clamp_out")},
    ),
    "rms_norm": ("normalization", {}),
    "fused_add_rms_norm": (
        "normalization",
        {
            "mutates": ("x", "residual"),
            "load_functional": (
                "vllm_fl_flaggems.impl.normalization:make_functional_fused_add_rms_norm"
            ),
        },
    ),
    "rotary_embedding": ("rotary", {}),
    "topk_softmax": ("routing", {}),
    "grouped_topk": ("routing", {}),
    "moe_align_block_size": ("routing", {}),
    "moe_sum": ("experts", {}),
    "fused_experts": ("experts", {}),
}
#: Kernels of ours that are faster than FlagGems', or that FlagGems has not.
BEFORE = BackendPriority.DEFAULT + 1
#: For calls that FlagGems' does not serve, and where it is not installed.
BEHIND = BackendPriority.DEFAULT - 1
#: operator -> (module of `kernels/`, priority, what else is known about the implementation)
TRITON: dict[str, tuple[str, int, dict[str, Any]]] = {
    "silu_and_mul": ("gated", BEFORE, {}),
    "gelu_and_mul": ("gated", BEFORE, {}),
    "silu_and_mul_with_clamp": ("gated", BEFORE, {}),
    "rotary_embedding": ("rotary", BEFORE, {}),
    "rms_norm": ("normalization", BEHIND, {}),
    "fused_add_rms_norm": ("normalization", BEHIND, {}),
}


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """Attention, FlagGems' fused functions, and kernels of ours beside them."""
    registrar.add_many(selection.implementations())
    registrar.add_many(
        OpImpl(
            op_name,
            "default.flagos",
            BackendImplKind.DEFAULT,
            load=f"vllm_fl_flaggems.impl.{module}:make_{op_name}",
            available=device_present,
            supports=f"vllm_fl_flaggems.impl.{module}:supports",
            empty_ok=True,
            **{"installed": library_installed, **more},
        )
        for op_name, (module, more) in OPERATORS.items()
    )
    registrar.add_many(
        OpImpl(
            op_name,
            "default.triton",
            BackendImplKind.DEFAULT,
            priority=priority,
            load=f"vllm_fl_flaggems.kernels.{module}:make_{op_name}",
            installed=triton_installed,
            available=triton_available,
            supports=f"vllm_fl_flaggems.kernels.{module}:supports",
            empty_ok=True,
            batch_invariant=True,  # one program for a row, or a part of one
            **more,
        )
        for op_name, (module, priority, more) in TRITON.items()
    )


@hookimpl
def vllm_fl_diagnose() -> Iterable[str]:
    """Library, device, and whether the one can be imported for the other."""
    return diagnosis.lines()
