"""The sizes of a model that its operators see, read from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_fl_dispatch.errors import PolicyError


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a transformer, in elements.

    By default those of an 8B dense model, and a small mixture of experts of the same width, so
    that every operator has arguments.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the gated MLP (after the gate).
        heads, kv_heads, head_size: of attention.
        rotary: how many channels of a head are rotated.
        experts, top_k: of the mixture; 0 experts: a dense model.
        expert_intermediate: width of one expert.
        expert_groups, top_groups: routing by groups; 0: none.
    """

    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 128
    rotary: int = 128
    experts: int = 16
    top_k: int = 2
    expert_intermediate: int = 1024
    expert_groups: int = 4
    top_groups: int = 2


#: What models of different makers call a size.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "intermediate": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_size": ("head_dim", "qk_rope_head_dim"),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok", "moe_topk", "top_k_experts"),
    "expert_intermediate": ("moe_intermediate_size",),
    "expert_groups": ("n_group",),
    "top_groups": ("topk_group",),
}


def read_shape(path: Path) -> ModelShape:
    """The sizes in a ``config.json``, or in that of a model's folder.

    Raises:
        PolicyError: not readable, not JSON, or without a size that every model has.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"--model: cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise PolicyError(f"--model: {file} holds no object")
    return shape_of(config, str(file))


def shape_of(config: Mapping[str, Any], where: str = "config") -> ModelShape:
    """The sizes that a configuration states. Multimodal ones keep those of text apart.

    Raises:
        PolicyError: a size that every model has is missing.
    """
    for section in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(section), Mapping):
            config = config[section]
    found = {size: _first(config, names) for size, names in _NAMES.items()}
    for size in ("hidden", "heads"):
        if not found[size]:
            raise PolicyError(
                f"--model: {where} states no {size} size; known names: {', '.join(_NAMES[size])}"
            )
    heads = found["heads"]
    head_size = found["head_size"] or found["hidden"] // heads
    intermediate = found["intermediate"] or 4 * found["hidden"]
    return ModelShape(
        hidden=found["hidden"],
        intermediate=intermediate,
        heads=heads,
        kv_heads=found["kv_heads"] or heads,
        head_size=head_size,
        rotary=_rotary(config, head_size),
        experts=found["experts"],
        top_k=found["top_k"] if found["experts"] else 0,
        expert_intermediate=(found["expert_intermediate"] or intermediate)
        if found["experts"]
        else 0,
        expert_groups=found["expert_groups"] if found["expert_groups"] > 1 else 0,
        top_groups=found["top_groups"] if found["expert_groups"] > 1 else 0,
    )


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _rotary(config: Mapping[str, Any], head_size: int) -> int:
    rotary = _first(config, ("rotary_dim", "qk_rope_head_dim"))
    parameters = config.get("rope_parameters") or {}
    factor = config.get("partial_rotary_factor") or parameters.get("partial_rotary_factor") or 1.0
    return min(rotary or int(head_size * float(factor)), head_size)
