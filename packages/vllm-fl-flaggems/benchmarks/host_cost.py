"""What our adapters cost on the host, over FlagGems' functions called directly, per call.

usage: python packages/vllm-fl-flaggems/benchmarks/host_cost.py [--gate MICROSECONDS]
       [--output FILE]

One token of a model of 8B, where nothing hides the host. The calls compared run in alternating
batches of one process; quoted is the median over the rounds of the difference within a round.
FlagGems' function is called as a layer of vLLM would have to: on views of the layer's tensors, with
results made for it, and brought back to the layer's shape. Beside it, the difference to a call on
results that are there already.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = 200
#: of a model of 8B
HIDDEN, INNER, HEADS, KEY_HEADS, HEAD = 4096, 14336, 32, 8, 128


def calls(device: str) -> dict[str, dict[str, Callable[[], Any]]]:
    """name -> our adapter, FlagGems' function, and the same on results that are there."""
    import flag_gems
    import torch

    from vllm_fl_flaggems.impl import activation, normalization, rotary, routing

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    gated, x, residual, weight = (
        random(1, 2 * INNER),
        random(1, HIDDEN),
        random(1, HIDDEN),
        random(HIDDEN),
    )
    query, key = random(1, HEADS * HEAD), random(1, KEY_HEADS * HEAD)
    table, positions = random(4096, HEAD), torch.zeros(1, dtype=torch.int64, device=device)
    cos, sin = table.chunk(2, dim=-1)
    out, gating = random(1, INNER), random(1, 64)
    weights = torch.empty(1, 8, device=device)
    ids, rows = (torch.empty(1, 8, dtype=torch.int32, device=device) for _ in range(2))
    silu = activation.make_silu_and_mul()
    norm = normalization.make_rms_norm()
    added = normalization.make_fused_add_rms_norm()
    rope = rotary.make_rotary_embedding()
    topk = routing.make_topk_softmax()
    forward = sys.modules["flag_gems.ops.rms_norm"].rms_norm_forward

    def rotated() -> Any:
        return flag_gems.apply_rotary_pos_emb(
            query.view(1, HEADS, HEAD), key.view(1, KEY_HEADS, HEAD), cos, sin, positions
        )

    return {
        "silu_and_mul": {
            "adapter": lambda: silu(gated),
            "FlagGems": lambda: flag_gems.silu_and_mul_out(
                gated[:, :INNER], gated[:, INNER:], gated.new_empty(1, INNER)
            ),
            "prepared": lambda: flag_gems.silu_and_mul_out(gated[:, :INNER], gated[:, INNER:], out),
        },
        "rms_norm": {
            "adapter": lambda: norm(x, weight, 1e-6),
            "FlagGems": lambda: forward(x, [HIDDEN], weight, 1e-6),
        },
        "fused_add_rms_norm": {
            "adapter": lambda: added(x, residual, weight, 1e-6),
            "FlagGems": lambda: flag_gems.fused_add_rms_norm(x, residual, [HIDDEN], weight, 1e-6),
        },
        "rotary_embedding": {
            "adapter": lambda: rope(positions, query, key, HEAD, table, True),
            "FlagGems": lambda: [each.view(1, -1) for each in rotated()],
            "prepared": rotated,
        },
        "topk_softmax": {
            "adapter": lambda: topk(gating, 8, True),
            "FlagGems": lambda: flag_gems.topk_softmax(
                gating.new_empty(1, 8, dtype=torch.float32),
                gating.new_empty(1, 8, dtype=torch.int32),
                gating.new_empty(1, 8, dtype=torch.int32),
                gating,
                True,
            ),
            "prepared": lambda: flag_gems.topk_softmax(weights, ids, rows, gating, True),
        },
    }


def batch(call: Callable[[], Any]) -> float:
    """Microseconds per call on the host."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds = time.perf_counter() - begin
    torch.cuda.synchronize()
    return seconds / CALLS * 1e6


def measure(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians over the rounds: each call, and what our adapter costs more than each other."""
    for call in steps.values():
        call()
    found = []
    for number in range(rounds):
        order = list(steps)[:: 1 if number % 2 else -1]
        found.append({name: batch(steps[name]) for name in order})

    def median(figure: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(figure, found))

    return {
        **{name: median(lambda each, name=name: each[name]) for name in steps},
        **{
            f"over {name}": median(lambda each, name=name: each["adapter"] - each[name])
            for name in steps
            if name != "adapter"
        },
    }


def main() -> int:
    """Measure and print; 1 where the gate is given and an adapter costs more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--gate", type=float, help="microseconds that an adapter may cost")
    parser.add_argument("--output", type=Path, help="file to append the figures to")
    options = parser.parse_args()
    import torch

    torch.cuda.set_device(0)
    torch.set_grad_enabled(False)
    from vllm_fl_flaggems import library

    print(
        f"flag-gems {library.version()}, {torch.cuda.get_device_name()}, torch {torch.__version__}"
    )
    operators = {name: measure(steps, options.rounds) for name, steps in calls("cuda").items()}
    for name, figures in operators.items():
        print(f"{name:<20}", "   ".join(f"{what} {us:7.2f} us" for what, us in figures.items()))
    if options.output:
        record = {
            "what": "host cost over FlagGems, us",
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "flag_gems": str(library.version()),
            "operators": operators,
        }
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    costs = {name: figures["over FlagGems"] for name, figures in operators.items()}
    over = {name: cost for name, cost in costs.items() if options.gate and cost > options.gate}
    for name, cost in over.items():
        print(f"{name} costs {cost:.2f} us, accepted {options.gate:.2f}")
    return 1 if over else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("FLAGGEMS_CACHE_DIR", f"{folder}/flaggems")
        os.environ.setdefault("TRITON_CACHE_DIR", f"{folder}/triton")
        sys.exit(main())
