"""Start vLLM with two ranks, kill the second one, and ask for an answer.

usage: VLLM_FL_REPORT=folder python kill_worker.py MODEL

The worker is found by the report that it wrote when it was ready.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Never returns normally: the engine is dead."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    from vllm_fl_dispatch import report_reading

    llm = LLM(
        sys.argv[1],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=4,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
    )
    reports = report_reading.read(Path(os.environ["VLLM_FL_REPORT"]))
    (pid,) = [report["pid"] for report in reports if report["rank"] == 1]
    os.kill(pid, signal.SIGKILL)
    llm.generate(
        TokensPrompt(prompt_token_ids=[1, 2, 3]),
        SamplingParams(max_tokens=4, detokenize=False),
        use_tqdm=False,
    )


if __name__ == "__main__":
    main()
