"""Generate with vLLM in this process and print JSON: tokens, report, what was registered.

usage: python generate.py '{"model": "...", ...}'    keyword arguments of vllm.LLM

The prompts are token ids, so no tokenizer is needed; the last line of the output is the JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MAX_TOKENS = 24
#: From one token to several blocks of the KV cache.
PROMPTS = [
    [1, 2, 3, 4, 5],
    list(range(20, 60)),
    [(i * 7) % 300 + 3 for i in range(200)],
    [(i * 13) % 300 + 3 for i in range(333)],
    [9],
]


def generate(llm_options: dict[str, Any]) -> dict[str, Any]:
    """Run a model, given keyword arguments of vllm.LLM."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    from vllm_fl_dispatch import SelectionPolicy, get_default_manager, set_global_policy

    manager = get_default_manager()
    if "TEST_POLICY" in os.environ:
        set_global_policy(SelectionPolicy.from_dict(**json.loads(os.environ["TEST_POLICY"])))
    manager.report.enabled = os.environ.get("TEST_REPORT") == "1"
    options = {
        "skip_tokenizer_init": True,
        "max_model_len": 512,
        "max_num_seqs": 4,
        "distributed_executor_backend": "uni",
        "dtype": "float32",
        **llm_options,
    }
    llm = LLM(**options)
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS],
        SamplingParams(temperature=0, max_tokens=MAX_TOKENS, detokenize=False, ignore_eos=True),
        use_tqdm=False,
    )
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.platforms import current_platform

    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "report": manager.report.as_dicts(),
        "out_of_tree": sorted(op_registry_oot),
        "built": manager.registry.size(),
        "platform": type(current_platform).__name__,
        "chunked": llm.llm_engine.vllm_config.scheduler_config.enable_chunked_prefill,
    }


if __name__ == "__main__":
    print(json.dumps(generate(json.loads(sys.argv[1]))))
