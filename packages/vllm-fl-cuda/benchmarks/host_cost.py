"""What the opaque operators cost on the host, over vLLM's compiled operators called directly.

usage: python packages/vllm-fl-cuda/benchmarks/host_cost.py    (needs an NVIDIA device)

One token of a model of 8B, where nothing hides the host. The two calls of a pair alternate; quoted
are the medians, and the quartiles of the difference within a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS, CALLS = 9, 2000
#: of a model of 8B
HIDDEN = 4096


def pairs() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """name -> (the compiled operator, ``torch.ops.vllm_fl.<op>`` on it), ready to be called."""
    import torch

    from vllm_fl_dispatch import get_default_manager
    from vllm_fl_dispatch.testing import subjects
    from vllm_fl_dispatch.testing.structure import manager_of
    from vllm_fl_dispatch.torch_ops import opaque

    found, absent = subjects(get_default_manager(), impl_id="vendor.cuda", device="cuda")
    if not found:
        raise SystemExit(f"nothing to measure: {absent[0].reason}")
    by_name = {subject.spec.name: subject for subject in found}

    def ours(op: str, *args: Any) -> Callable[[], Any]:
        call = opaque(manager_of(by_name[op]), by_name[op].spec)
        return lambda: call(*args)

    x = torch.randn(1, HIDDEN, device="cuda", dtype=torch.bfloat16)
    gated, weight = torch.cat([x, x], -1), x[0].clone()
    out, compiled = torch.empty_like(x), torch.ops._C
    return {
        "silu_and_mul": (lambda: compiled.silu_and_mul(out, gated), ours("silu_and_mul", gated)),
        "rms_norm": (
            lambda: compiled.rms_norm(out, x, weight, 1e-6),
            ours("rms_norm", x, weight, 1e-6),
        ),
    }


def host_us(call: Callable[[], Any]) -> float:
    """Microseconds until a call returns."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    seconds = time.perf_counter() - begin
    torch.cuda.synchronize()
    return seconds / CALLS * 1e6


def main() -> None:
    """Print a line per operator."""
    for name, (bare, ours) in pairs().items():
        host_us(bare), host_us(ours)
        rounds = [(host_us(bare), host_us(ours)) for _ in range(ROUNDS)]
        low, middle, high = statistics.quantiles([b - a for a, b in rounds], n=4)
        print(
            f"{name}: compiled operator {statistics.median(a for a, _ in rounds):.2f} us, "
            f"opaque +{middle:.2f} ({low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    main()
