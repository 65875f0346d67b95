"""Which attention serves a layer: FlagGems' own, or vLLM's in Triton.

Neither needs a compiled kernel of vLLM. What both cannot do falls through to another backend.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_fl_dispatch import (
    BackendImplKind,
    BackendPriority,
    OpImpl,
    OpNotSupported,
    Query,
    Verdict,
    probing,
)
from vllm_fl_flaggems.probe import (
    device_present,
    library_installed,
    on_accelerator,
    triton_available,
    triton_installed,
)

NAME = "attention_backend"
#: Half precision, by the names that torch prints.
DTYPES = ("torch.float16", "torch.bfloat16")
CACHE_DTYPES = (None, "auto", "float16", "bfloat16")
MAX_HEAD_SIZE = 256
#: Elements of an entry of the latent cache that the decoding kernel is made for.
LATENT_ENTRY = 576


def supports_flaggems(request: Query) -> Verdict:
    """What FlagGems' attention serves, as far as it is known."""
    refusals = (
        (request.get("use_sparse"), "no sparse attention"),
        (request.get("has_sink"), "no sinks: its function takes them and does nothing with them"),
        (request.get("attn_type") not in (None, "decoder"), "decoders only"),
        (request.get("kv_cache_dtype") not in CACHE_DTYPES, "no quantized cache"),
        (
            request.get("dtype") is not None and str(request.get("dtype")) not in DTYPES,
            f"dtype {request.get('dtype')}, only float16 and bfloat16",
        ),
        (_wrong_size(request), f"head size {request.get('head_size')}"),
        (
            request.get("use_mla") and request.get("has_sliding_window"),
            "no window in latent attention",
        ),
    )
    reasons = (Verdict.no(reason) for refused, reason in refusals if refused)
    return probing.all_of(on_accelerator(request), *reasons)


def _wrong_size(request: Query) -> bool:
    size = request.get("head_size")
    if size is None:
        return False
    if request.get("use_mla"):
        return bool(size != LATENT_ENTRY)
    return bool(size % 8 or size > MAX_HEAD_SIZE)


def flaggems_attention(use_mla: bool = False, use_sparse: bool = False) -> str:
    """The class of FlagGems' attention."""
    if use_sparse:
        raise OpNotSupported("no sparse attention")
    if use_mla:
        return "vllm_fl_flaggems.vllm.mla.MLAFLBackend"
    return "vllm_fl_flaggems.vllm.attention.AttentionFLBackend"


def triton_attention(use_mla: bool = False, use_sparse: bool = False) -> str:
    """vLLM's own attention in Triton."""
    if use_sparse:
        raise OpNotSupported("vLLM has no sparse attention in Triton")
    if use_mla:
        return "vllm.v1.attention.backends.mla.triton_mla.TritonMLABackend"
    return "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"


def implementations() -> Iterator[OpImpl]:
    """The rows of the registry.

    vLLM's kernel stands first: FlagGems' gives a request of a decode to one program per head of the
    keys, however long its context is, where vLLM's splits it over the device.
    VLLM_FL_USE_FLAGGEMS_ATTN=1 is an order that names FlagGems' before.
    """
    yield OpImpl(
        NAME,
        "default.triton",
        BackendImplKind.DEFAULT,
        triton_attention,
        priority=BackendPriority.DEFAULT + 1,
        installed=triton_installed,
        available=triton_available,
        supports=on_accelerator,
    )
    yield OpImpl(
        NAME,
        "default.flagos",
        BackendImplKind.DEFAULT,
        flaggems_attention,
        installed=library_installed,
        available=device_present,
        supports=supports_flaggems,
    )
