"""One variant of `serving.py`: loads a model, then does a window of work for each line it reads.

usage: python serving_worker.py MODEL    lines of the input: number of sequences
"""

from __future__ import annotations

import json
import sys
import time

#: Of a window, prompts apart; a sequence gets at most `LENGTH` of them.
TOKENS = 512
LENGTH = 64
PROMPT = 64


def main() -> None:
    """Serve until the input ends."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.model_executor.custom_op import op_registry_oot

    llm = LLM(
        sys.argv[1],
        dtype="bfloat16",
        max_model_len=512,
        max_num_seqs=32,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
    )
    layers = llm.apply_model(lambda model: [type(m).__qualname__ for m in model.modules()])[0]
    facts = {"layers": sorted(set(layers)), "out_of_tree": sorted(op_registry_oot)}
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        sequences = int(line)
        count = min(LENGTH, TOKENS // sequences)
        prompts = [
            TokensPrompt(prompt_token_ids=[(i * 31 + j * 7) % 20_000 + 100 for j in range(PROMPT)])
            for i in range(sequences)
        ]
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        started = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        speed = sequences * count / (time.perf_counter() - started)
        print(json.dumps({"tokens_per_second": speed}), flush=True)


if __name__ == "__main__":
    main()
