"""Generate with vLLM on the CPU, attention by FlagGems in Triton's interpreter; print JSON.

usage: python flaggems_attention.py MODEL HELPERS TOKENS_PER_STEP

HELPERS is the folder with the interpreter harness of vllm-fl-flaggems; TOKENS_PER_STEP bounds a
step of the scheduler, so that long prompts are prefilled in chunks. With "" for HELPERS it is the
stock attention that generates.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

PROMPTS = [[1, 2, 3, 4, 5], list(range(20, 60)), [9], [(i * 7) % 300 + 3 for i in range(50)]]


def use_flaggems(helpers: str) -> list[int]:
    """Put our class in the place of the CPU's attention; counts the tokens of its calls."""
    sys.path.insert(0, helpers)
    warnings.simplefilter("ignore")
    import interpreted

    interpreted.load()
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from vllm_fl_flaggems.vllm.attention import AttentionFLImpl

    served: list[int] = []
    forward = AttentionFLImpl.forward

    def counted(self: Any, layer: Any, query: Any, *args: Any, **options: Any) -> Any:
        served.append(query.shape[0])
        return forward(self, layer, query, *args, **options)

    AttentionFLImpl.forward = counted  # type: ignore[method-assign]  # counts
    register_backend(
        AttentionBackendEnum.CPU_ATTN, "vllm_fl_flaggems.vllm.attention.AttentionFLBackend"
    )
    return served


def main() -> None:
    """Run the model named on the command line."""
    model, helpers, tokens_per_step = sys.argv[1:]
    served = use_flaggems(helpers) if helpers else []
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        model,
        skip_tokenizer_init=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=int(tokens_per_step),
        distributed_executor_backend="uni",
        dtype="float16",
        enforce_eager=True,
    )
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS],
        SamplingParams(temperature=0, max_tokens=6, detokenize=False, ignore_eos=True),
        use_tqdm=False,
    )
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    print(json.dumps({"tokens": tokens, "served": served}))


if __name__ == "__main__":
    main()
