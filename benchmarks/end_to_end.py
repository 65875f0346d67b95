"""Whole models through vLLM under several policies, resident side by side in one process.

usage: python benchmarks/end_to_end.py --shape 8b --mode graphs --policies stock default vendor

Weights are dummies: they tell time, not tokens. One engine per policy is built, then windows of
decoding alternate among the engines. Quoted, as ratios to the first policy of the same window:

* ``device_ms_per_step``: between CUDA events around the model runner's step, the median; in eager
  mode the device waits for the host, and this says what the host takes;
* ``busy_ms_per_step``: the sum of the kernels' own times, where the profiler works;
* ``launch_ms_per_step``: until the runner's step returns on the host, the median: in eager mode
  what all launches of a step cost;
* ``tokens_per_second``, from the wall-clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engines

#: name -> configuration of a Hugging Face model
SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
    "0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    },
}  # fmt: skip


@dataclass
class Engine:
    """One engine and what was measured on it: (batch, window) in the order of the windows."""

    name: str
    llm: Any
    served: dict[str, str]
    selected: dict[str, str]
    steps: list[tuple[Any, Any]] = field(default_factory=list)
    launches: list[float] = field(default_factory=list)
    results: dict[int, list[dict[str, float]]] = field(default_factory=dict)


def build(name: str, model: Path, mode: str) -> Engine:
    """An engine under a policy, its layers bound to it."""
    llm = engines.build(
        name,
        model=str(model),
        load_format="dummy",
        enforce_eager=mode == "eager",
        # The cache of 64 short texts; measured, it would take what the next engine needs.
        gpu_memory_utilization=0.05,
        kv_cache_memory_bytes=2**31,
        max_model_len=1024,
        max_num_seqs=64,
    )
    engine = Engine(name, llm, engines.served(llm), engines.selected(llm))
    _watch(engine)
    return engine


def _watch(engine: Engine) -> None:
    """Events and a clock around each pure decode step."""
    import torch

    runner = engines.runner(engine.llm)
    original: Callable[..., Any] = runner.execute_model

    def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        counts = scheduler_output.num_scheduled_tokens.values()
        if not counts or max(counts) > 1:
            return original(scheduler_output, *args, **kwargs)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        started = time.perf_counter()
        result = original(scheduler_output, *args, **kwargs)
        engine.launches.append((time.perf_counter() - started) * 1e3)
        end.record()
        engine.steps.append((begin, end))
        return result

    runner.execute_model = execute_model


def window(engine: Engine, batch: int, tokens: int, profiled: bool = False) -> dict[str, float]:
    """One window of decoding."""
    import torch
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    prompts = [TokensPrompt(prompt_token_ids=[(i * 7 + j) % 1000 + 3 for j in range(32)])
               for i in range(batch)]  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    engines.use(engine.name)
    # Under another policy layers bind again at their first call, which is not of the window.
    short = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, detokenize=False)
    engine.llm.generate(prompts[:1], short, use_tqdm=False)
    engine.steps.clear()
    engine.launches.clear()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    if profiled:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            engine.llm.generate(prompts, sampling, use_tqdm=False)
            torch.cuda.synchronize()
        busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e3
        return {"busy_ms_per_step": busy / tokens}
    engine.llm.generate(prompts, sampling, use_tqdm=False)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    steps = [first.elapsed_time(last) for first, last in engine.steps]
    return {
        "device_ms_per_step": statistics.median(steps),
        "launch_ms_per_step": statistics.median(engine.launches),
        "host_ms_per_step": seconds * 1e3 / tokens,
        "tokens_per_second": batch * tokens / seconds,
    }


def measure(built: list[Engine], batches: list[int], windows: int, tokens: int) -> None:
    """Alternate windows among the engines; the first round is thrown away."""
    for batch in batches:
        for number in range(windows + 1):
            order = built if number % 2 else built[::-1]
            for engine in order:
                result = window(engine, batch, tokens)
                if number:
                    engine.results.setdefault(batch, []).append(result)
        for engine in built:
            try:
                profiled = window(engine, batch, tokens, profiled=True)
            except RuntimeError as error:  # a machine without the profiler's interface
                print(f"no profile: {error}", file=sys.stderr)
                continue
            for result in engine.results[batch]:
                result.update(profiled)


def summary(built: list[Engine], batches: list[int]) -> list[dict[str, Any]]:
    """Medians, and ratios to the first engine window by window."""
    rows = []
    for batch in batches:
        base = built[0].results[batch]
        for engine in built:
            results = engine.results[batch]
            row: dict[str, Any] = {"policy": engine.name, "batch": batch}
            for key in results[0]:
                row[key] = statistics.median(r[key] for r in results)
                ratios = [r[key] / b[key] for r, b in zip(results, base, strict=True) if b[key]]
                row[f"{key}_ratio"] = statistics.median(ratios) if ratios else None
            rows.append(row)
    return rows


def main() -> None:
    """Build, measure, print a table and append the raw figures to a file."""
    engines.prepare()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--mode", choices=("eager", "graphs"), default="graphs")
    parser.add_argument("--policies", nargs="+", type=engines.policy_name,
                        default=["stock", "default"], metavar="POLICY",
                        help=f"{', '.join(engines.POLICIES)} or a policy file")  # fmt: skip
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, help="fewer layers, for a trial of the script")
    parser.add_argument("--output", type=Path, help="file to append the raw figures to")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    config = dict(SHAPES[options.shape])
    if options.layers:
        config["num_hidden_layers"] = options.layers
    (folder / "config.json").write_text(json.dumps(config))
    built = []
    for name in options.policies:
        begin = time.perf_counter()
        built.append(build(name, folder, options.mode))
        print(f"{name}: built in {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    measure(built, options.batches, options.windows, options.tokens)
    rows = summary(built, options.batches)
    for row in rows:
        figures = "  ".join(
            f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float)
        )
        print(
            f"{options.shape} {options.mode} batch {row['batch']:<3} {row['policy']:<10} {figures}"
        )
    if options.output:
        record = {
            "machine": engines.machine(),
            "shape": options.shape,
            "mode": options.mode,
            "tokens": options.tokens,
            "served": {engine.name: engine.served for engine in built},
            "selected": {engine.name: engine.selected for engine in built},
            "windows": {engine.name: engine.results for engine in built},
            "summary": rows,
        }
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
