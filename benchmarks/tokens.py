"""The tokens of a model under several policies, one engine after the other in one process.

usage: python benchmarks/tokens.py MODEL [--policies reference vendor flagos] [--dtype float32]

The first policy gives the truth. A text is followed to where its tokens first differ: there, and
before, log-probabilities must be within the tolerance, and the token chosen must be as good as the
best within it. In float32 (``--dtype float32 --tolerance 0``) every token must be the same. In half
precision the reference is not right either: let float32 give the truth, and see whether a policy is
farther from it than the reference. ``--save`` keeps a truth for the ``--truth`` of another process,
which has another dtype, or a vLLM without its compiled modules.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import engines

#: From one token to several blocks of the KV cache, for any vocabulary of 400 and more.
PROMPTS = [
    [1, 2, 3, 4, 5],
    list(range(20, 60)),
    [(i * 7) % 300 + 3 for i in range(200)],
    [9],
    [(i * 13) % 300 + 3 for i in range(333)],
]
#: Log-probabilities kept per token.
TOP = 8

#: What the record says of how it was run.
RECORDED = ("model", "mode", "dtype", "attention", "chunk")

#: Per text, per step: the token, and the log-probabilities of the best by token.
Texts = list[list[dict[str, Any]]]


def generate(policy: str, count: int, **options: Any) -> tuple[Texts, dict[str, Any]]:
    """Texts under a policy, and what served."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    llm = engines.build(policy, max_model_len=512, max_num_seqs=8, **options)
    sampling = SamplingParams(
        temperature=0, max_tokens=count, detokenize=False, ignore_eos=True, logprobs=TOP
    )
    outputs = llm.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS], sampling, use_tqdm=False
    )
    texts = [
        [
            # JSON has text for keys.
            {"token": token, "top": {str(each): row[each].logprob for each in row}}
            for token, row in zip(
                output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True
            )
        ]
        for output in outputs
    ]
    ran = {"served": engines.served(llm), "selected": engines.selected(llm)}
    del llm
    _free()
    return texts, ran


def _attention(name: str) -> str:
    """A member of vLLM's AttentionBackendEnum; a class stands behind CUSTOM."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if "." not in name:
        return name
    register_backend(AttentionBackendEnum.CUSTOM, name)
    return "CUSTOM"


def _free() -> None:
    """The memory of an engine that is gone."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def compare(found: Texts, truth: Texts, tolerance: float) -> dict[str, Any]:
    """How far texts are from the truth.

    Returns:
        ``same``, the tokens until the texts first differ; ``of``, all tokens; ``furthest``, the
        largest difference of a log-probability among these; ``faults``, each step beyond the
        tolerance; ``mean``, the mean of these differences.
    """
    same, apart, faults = 0, [], []
    for number, (mine, theirs) in enumerate(zip(found, truth, strict=True)):
        for position, (step, right) in enumerate(zip(mine, theirs, strict=True)):
            token, where = str(step["token"]), f"text {number}, token {position}"
            chosen = right["top"].get(token)
            if chosen is None:
                faults.append(f"{where}: {token} is not among the best {TOP} of the truth")
                break
            apart.append(abs(step["top"][token] - chosen))
            short = max(right["top"].values()) - chosen
            if step["token"] != right["token"] and not short <= tolerance > 0:
                faults.append(f"{where}: {token}, {short:.4f} below {right['token']}")
            if apart[-1] > tolerance > 0:
                faults.append(
                    f"{where}: log-probability {step['top'][token]:.4f}, not {chosen:.4f}"
                )
            if step["token"] != right["token"]:
                break  # from here on the texts differ
            same += 1
    of = sum(map(len, truth))
    return {
        "same": same,
        "of": of,
        "furthest": max(apart, default=0.0),
        "mean": sum(apart) / max(len(apart), 1),
        "faults": faults,
    }


def main() -> int:
    """Generate, compare, print a line per policy; 1 where one is wrong."""
    engines.prepare()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--policies", nargs="+", type=engines.policy_name, default=["reference", "vendor", "flagos"]
    )
    parser.add_argument("--mode", choices=("eager", "graphs"), default="eager")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--attention", help="a backend of vLLM or the path of a class, for all policies"
    )
    parser.add_argument("--chunk", type=int, help="prefill at most so many tokens in a step")
    parser.add_argument("--tolerance", type=float, default=0.1, help="of a log-probability")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--save", type=Path, help="write the texts of the first policy")
    parser.add_argument("--truth", type=Path, help="texts that --save wrote, instead")
    parser.add_argument("--output", type=Path, help="file to append the result to")
    options = parser.parse_args()
    arguments = {
        "model": str(options.model),
        "dtype": options.dtype,
        "enforce_eager": options.mode == "eager",
        # Not measured: another process on the device may take or free memory meanwhile.
        "gpu_memory_utilization": 0.05,
        "kv_cache_memory_bytes": 2**30,
    }
    if options.attention:
        arguments["attention_backend"] = _attention(options.attention)
    if options.chunk:
        arguments |= {"max_num_batched_tokens": options.chunk, "enable_chunked_prefill": True}
    truth: Texts | None = json.loads(options.truth.read_text()) if options.truth else None
    record: dict[str, Any] = {"what": "tokens", "machine": engines.machine(), "policies": {}}
    record |= {k: str(v) for k, v in vars(options).items() if k in RECORDED}
    for policy in options.policies:
        begin = time.perf_counter()
        texts, ran = generate(policy, options.tokens, **arguments)
        if truth is None:
            truth = texts
            if options.save:
                options.save.write_text(json.dumps(texts))
        result = compare(texts, truth, options.tolerance)
        record["policies"][policy] = {**result, **ran}
        print(
            f"{policy:<10} {result['same']} of {result['of']} tokens until texts differ, "
            f"log-probabilities within {result['furthest']:.4f} "
            f"and {result['mean']:.4f} in the mean, {len(result['faults'])} faults, "
            f"{time.perf_counter() - begin:.0f} s"
        )
        for fault in result["faults"]:
            print(f"  {fault}", file=sys.stderr)
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    return int(any(each["faults"] for each in record["policies"].values()))


if __name__ == "__main__":
    sys.exit(main())
