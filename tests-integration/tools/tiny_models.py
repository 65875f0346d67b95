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

#: name -> (architecture of transformers, what its configuration has besides the common part)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3", {}),  # silu, norms of query and key
    "gemma": ("Gemma", {}),  # gelu, 1 + weight
    "window": ("Mistral", {"sliding_window": 32}),
    "moe": (
        "Qwen3Moe",
        {
            "moe_intermediate_size": 128,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    ),
    "mla": (
        "DeepseekV2",
        {
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            # No layer reaches this one: the model is dense.
            "first_k_dense_replace": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 128,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "head_dim": 64,
        },
    ),
}


def make(name: str, target: Path) -> None:
    """Write the checkpoint of one of `MODELS`."""
    import torch
    import transformers

    family, more = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**_COMMON, **more})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
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
