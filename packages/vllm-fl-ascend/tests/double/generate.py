"""Generate with vLLM on `PlatformFL`, operators and attention of this backend on the double.

usage: python generate.py FOLDER '{"model": "...", "dtype": "float16", ...}'

FOLDER is for the stand-ins and gets ``result.json``; the rest are keyword arguments of vllm.LLM.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from npu_double import install

MAX_TOKENS = 24
#: From one token to several blocks of the cache; the last two share more than a block.
PROMPTS = [
    [1, 2, 3, 4, 5],
    list(range(20, 60)),
    [9],
    [(i * 7) % 300 + 3 for i in range(200)],
    [(i * 7) % 300 + 3 for i in range(160)] + [5, 6, 7],
]
ENVIRON = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The processor of the host stands for the device: its tensors are what the model computes on.
    "VLLM_FL_PLATFORM": "cpu",
    "VLLM_FL_PREFER": "vendor",
}


def main(folder: Path, options: dict[str, Any]) -> None:
    """Run the model named on the command line."""
    os.environ.update(ENVIRON)
    install.install(folder)

    from vllm_fl_ascend import plugin
    from vllm_fl_dispatch import Verdict, get_default_manager

    # As on a machine with the device, but for the device itself: vLLM runs on the host's.
    plugin.device_present = plugin.library_installed = Verdict.yes  # type: ignore[assignment]  # a test
    plugin.DEVICE = replace(plugin.DEVICE, device_type="cpu")
    del plugin.vllm_fl_device
    manager = get_default_manager()
    manager.report.enabled = True

    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.platforms import current_platform

    llm = LLM(
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=4,
        distributed_executor_backend="uni",
        enforce_eager=True,
        **options,
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, detokenize=False, ignore_eos=True
    )
    with install.recording() as calls:
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS], sampling, use_tqdm=False
        )
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "platform": type(current_platform).__name__,
        "block_size": llm.llm_engine.vllm_config.cache_config.block_size,
        "called": sorted({call.name for call in calls}),
        "failures": [str(failure) for failure in manager.failures.all()],
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
