"""Generate with vLLM on a device under a given attention; print JSON: tokens and log-probabilities.

usage: python attention_logprobs.py '{"model": "...", "attention": "TRITON_ATTN", ...}'

`attention` is a member of vLLM's AttentionBackendEnum or the import path of a class; the other keys
are arguments of vllm.LLM.
"""

from __future__ import annotations

import json
import sys

PROMPTS = [
    [1, 2, 3, 4, 5],
    list(range(20, 60)),
    [(i * 7) % 300 + 3 for i in range(200)],
    [9],
    [(i * 13) % 300 + 3 for i in range(333)],
]


def main() -> None:
    """Run the model named on the command line."""
    options = json.loads(sys.argv[1])
    attention = options.pop("attention")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if "." in attention:
        register_backend(AttentionBackendEnum.CUSTOM, attention)
        attention = "CUSTOM"
    llm = LLM(
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=8,
        dtype="bfloat16",
        distributed_executor_backend="uni",
        gpu_memory_utilization=0.2,
        attention_backend=attention,
        **options,
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=24, detokenize=False, ignore_eos=True, logprobs=5
    )
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS], sampling, use_tqdm=False
    )
    runs = [
        [
            {"token": token, "top": {each: row[each].logprob for each in row}}
            for token, row in zip(
                output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True
            )
        ]
        for output in outputs
    ]
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
