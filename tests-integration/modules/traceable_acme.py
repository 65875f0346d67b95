"""The same vendor, declared as code that a compiler may look into."""

from __future__ import annotations

from vllm_fl_acme.plugin import silu_and_mul

from vllm_fl_dispatch import BackendImplKind, OpImpl, Registrar, hookimpl


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """One traceable implementation."""
    registrar.add(
        OpImpl(
            "silu_and_mul",
            "vendor.acme",
            BackendImplKind.VENDOR,
            silu_and_mul,
            "acme",
            traceable=True,
        )
    )
