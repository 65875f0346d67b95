"""Tiny models whose logits are well separated, so that equal arithmetic gives equal tokens.

The default initialization leaves logits so close that even two runs of vLLM in different modes
disagree; matrices with a larger spread do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

SPREAD = 0.08

_COMMON = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def make(name: str, target: Path) -> None:
    """Write a checkpoint: ``qwen3`` (silu, norms of query and key) or ``gemma`` (gelu, 1 + w)."""
    import torch
    import transformers

    kinds: dict[str, tuple[Any, Any]] = {
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
    }
    make_config, make_model = kinds[name]
    torch.manual_seed(0)
    model = make_model(make_config(**_COMMON)).to(torch.bfloat16)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=SPREAD)
        else:
            # Norm weights that differ from 1 (Gemma: from 0), or losing them would go unseen.
            torch.nn.init.normal_(parameter, mean=parameter.detach().mean().item(), std=0.1)
    model.save_pretrained(target)


def greedy_tokens(model_path: Path, prompts: list[list[int]], count: int) -> list[list[int]]:
    """What Hugging Face generates greedily in float32: the truth for vLLM's tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    tokens = []
    for prompt in prompts:
        with torch.no_grad():
            out = model.generate(
                torch.tensor([prompt]),
                max_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        tokens.append(out[0, len(prompt) :].tolist())
    return tokens
