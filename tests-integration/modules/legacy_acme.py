"""The same vendor in the older shape: a function that takes the registry."""

from __future__ import annotations

from typing import Any

from vllm_fl_acme.plugin import silu_and_mul

from vllm_fl_dispatch import BackendImplKind, OpImpl


def register_builtins(registry: Any) -> None:
    """Register with the registry that is handed in."""
    registry.register_many(
        [
            OpImpl(
                op_name="silu_and_mul",
                impl_id="vendor.acme",
                kind=BackendImplKind.VENDOR,
                fn=silu_and_mul,
                vendor="acme",
            )
        ]
    )
