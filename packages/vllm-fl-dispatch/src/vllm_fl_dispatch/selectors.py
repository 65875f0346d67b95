"""The written contracts of what is selected instead of called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.types import Query


@dataclass(frozen=True)
class SelectorSpec:
    """The written contract of something that is chosen, not called: a class, by its import path.

    Registry, policy, resolution and explanations treat it as an operator. It has no handle, no
    opaque operator, no oracle, and no fallback once a class was chosen.

    Attributes:
        name: as users write it in a policy.
        contract: a function without a body: request -> import path ``package.module.Class``. Its
            options are what a request may say; an implementation takes those that matter to it.
        objection: why no class can serve a request, whoever is asked; None where one may.
    """

    name: str
    contract: Callable[..., str]
    _: KW_ONLY
    fact_names: tuple[str, ...] = ()
    objection: Callable[[Query], str | None] = lambda _: None

    group: ClassVar[None] = None
    donates: ClassVar[tuple[str, ...]] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The name under which orders and lists speak of it."""
        return (self.name,)


#: What a name of the registry stands for.
Spec = OpSpec | SelectorSpec


def attention_backend(  # type: ignore[empty-body]  # a contract
    use_mla: bool = False,
    use_sparse: bool = False,
    *,
    head_size: int | None = None,
    dtype: Any = None,
    kv_cache_dtype: str | None = None,
    block_size: int | None = None,
    has_sink: bool = False,
    has_sliding_window: bool = False,
    attn_type: str = "decoder",
    device: str | None = None,
) -> str:
    """Which class of vLLM's attention backends serves a layer.

    Args:
        use_mla: multi-head latent attention.
        use_sparse: attention to the tokens that an indexer chose; only with `use_mla`.
        head_size: elements of one head of the keys; with MLA, of one entry of the cache.
        dtype: torch dtype of query, key and value.
        kv_cache_dtype: as in vLLM's `CacheConfig.cache_dtype`, such as ``auto`` or ``fp8``.
        block_size: tokens in a block of the cache; None where vLLM is free to choose.
        has_sink: each head has a learned logit that takes part in the softmax.
        has_sliding_window: a token attends to the last tokens only.
        attn_type: ``decoder``, ``encoder``, ``encoder_only`` or ``encoder_decoder``.
        device: type of the platform's devices, such as ``cuda`` or ``cpu``.

    Returns:
        ``package.module.Class``, a subclass of `vllm.v1.attention.backend.AttentionBackend`. It is
        imported and asked (`validate_configuration`) before vLLM gets it.

    Raises:
        OpNotSupported: not this request; the next implementation is asked.
    """


def _sparse_without_mla(request: Query) -> str | None:
    if request.get("use_sparse") and not request.get("use_mla"):
        return "use_sparse without use_mla: sparse attention exists for MLA models only"
    return None


ATTENTION_BACKEND = SelectorSpec(
    "attention_backend",
    attention_backend,
    fact_names=(
        "use_mla",
        "use_sparse",
        "head_size",
        "dtype",
        "kv_cache_dtype",
        "block_size",
        "has_sink",
        "has_sliding_window",
        "attn_type",
        "device",
    ),
    objection=_sparse_without_mla,
)
SELECTORS: tuple[SelectorSpec, ...] = (ATTENTION_BACKEND,)
