"""A vendor's kernel in one file; `VLLM_FL_PLUGIN_MODULES=vendor_plugin` loads it from `PYTHONPATH`.

`vllm-fl new-backend NAME` writes the same as a distribution, with tests.
"""

from __future__ import annotations

import torch

from vllm_fl_dispatch import BackendImplKind, OpImpl, Registrar, hookimpl

vllm_fl_api = 1


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Stands for a kernel of the chip: one rounding, of the product in float32."""
    gate, up = x.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype).contiguous()


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    registrar.add(
        OpImpl(
            "silu_and_mul",
            "vendor.example",
            BackendImplKind.VENDOR,
            silu_and_mul,
            "example",
            empty_ok=True,
        )
    )
