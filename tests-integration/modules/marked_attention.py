"""A vendor whose attention gives half of what it should, to be told from every other."""

from __future__ import annotations

from typing import Any

from vllm_fl_dispatch import BackendImplKind, OpImpl, Registrar, hookimpl

HALF = "marked_attention.HalfBackend"


def attention_backend(use_mla: bool = False, use_sparse: bool = False) -> str:
    """One class for everything."""
    return HALF


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """The attention, and nothing else."""
    registrar.add(
        OpImpl("attention_backend", "vendor.marked", BackendImplKind.VENDOR, attention_backend,
               "marked")
    )  # fmt: skip


def __getattr__(name: str) -> Any:
    """The class, made when vLLM asks for it: this module is loaded before vLLM."""
    if name != "HalfBackend":
        raise AttributeError(name)
    from vllm_fl_reference.vllm.attention import ReferenceAttentionBackend, ReferenceAttentionImpl

    class HalfImpl(ReferenceAttentionImpl):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            return output.mul_(0.5)

    class HalfBackend(ReferenceAttentionBackend):
        @staticmethod
        def get_impl_cls() -> type[ReferenceAttentionImpl]:
            return HalfImpl

    return HalfBackend
