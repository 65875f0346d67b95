"""A model answers through vLLM in this process; then a line per operator says what served it.

usage: python offline_inference.py MODEL [QUESTION]
"""

from __future__ import annotations

import os
import sys

import vllm_fl_dispatch as fl


def main(model: str, question: str = "What is the capital of France?") -> None:
    # One process, so that what ran can be asked here; servers write VLLM_FL_REPORT instead.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    manager = fl.get_default_manager()
    manager.report.enabled = True
    fl.set_global_policy(fl.get_policy().with_values("this example", prefer="reference"))

    from vllm import LLM, SamplingParams

    llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=4)
    chat = [{"role": "user", "content": question}]
    (output,) = llm.chat(chat, SamplingParams(temperature=0, max_tokens=32), use_tqdm=False)
    print(output.outputs[0].text.strip())
    for row in manager.report.rows():
        print(f"{row.op}: {row.impl_id}, {row.calls} calls")


if __name__ == "__main__":
    main(*sys.argv[1:])
