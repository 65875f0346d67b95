"""What the opaque operators cost on the host, over vLLM's compiled operators called directly.

usage: python packages/vllm-fl-cuda/benchmarks/host_cost.py [--device cpu] [--output FILE]

One token of a model of 8B, where nothing hides the host; on the CPU, whose build of vLLM has the
same operators, few channels, so that the kernel itself is short. Each operator is called in steps,
from the bare kernel to our operator; quoted is what a step adds to the one before, the median over
the rounds, in which the steps alternate. Only the adapter and the dispatch are ours:

* ``allocation``: a result to write to, made as vLLM's own layer does;
* ``adapter``: our function on the kernel, which also allocates, instead of the two;
* ``dispatch``: the slot, which finds the function and sees whether it serves this call;
* ``operator``: torch's call of a Python function, here with the slot as that function;
* beside them a Python operator of the same signature that does nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Few calls in a batch, so that a device's queue never fills and a slow phase meets all steps.
ROUNDS, CALLS = 101, 200
#: device -> channels
HIDDEN = {"cuda": 4096, "cpu": 64}
STEPS = ("allocation", "adapter", "dispatch", "operator")
Calls = dict[str, Callable[[], Any]]


def calls(device: str) -> dict[str, Calls]:
    """operator -> step -> the call."""
    import torch

    x = torch.randn(1, HIDDEN[device], device=device, dtype=torch.bfloat16)
    gated, weight, out = torch.cat([x, x], -1), x[0].clone(), torch.empty_like(x)
    kernels = torch.ops._C

    def stock_silu() -> Any:
        shape = gated.shape[:-1] + (gated.shape[-1] // 2,)  # noqa: RUF005  # vLLM's own words
        made = torch.empty(shape, dtype=gated.dtype, device=gated.device)
        kernels.silu_and_mul(made, gated)
        return made

    def stock_norm() -> Any:
        made = torch.empty_like(x)
        kernels.rms_norm(made, x, weight, 1e-6)
        return made

    subjects = {subject.spec.name: subject for subject in found(device)}
    return {
        "silu_and_mul": {
            "kernel": lambda: kernels.silu_and_mul(out, gated),
            "allocation": stock_silu,
            **ours(subjects["silu_and_mul"], out, gated),
        },
        "rms_norm": {
            "kernel": lambda: kernels.rms_norm(out, x, weight, 1e-6),
            "allocation": stock_norm,
            **ours(subjects["rms_norm"], out, x, weight, 1e-6),
        },
    }


def found(device: str) -> list[Any]:
    """Our implementations; on the CPU they are told that they can run there."""
    from dataclasses import replace

    from vllm.platforms import current_platform

    from vllm_fl_cuda.plugin import vllm_fl_register_ops
    from vllm_fl_dispatch import OpManager, SelectionPolicy
    from vllm_fl_dispatch.registry import Registrar
    from vllm_fl_dispatch.testing import subjects
    from vllm_fl_dispatch.types import Origin

    current_platform.import_kernels()
    planned, manager = (OpManager(SelectionPolicy(), sources=()) for _ in range(2))
    for each in (planned, manager):
        each.ensure_built()
    vllm_fl_register_ops(Registrar(planned.registry, Origin("vllm-fl-cuda")))
    for op in ("silu_and_mul", "rms_norm"):
        for impl in planned.registry.impls(op):
            here = replace(impl, available=None, installed=None, device_types=())
            manager.registry.register_impl(here)
    return subjects(manager, impl_id="vendor.cuda", device=device)[0]


def ours(subject: Any, out: Any, *args: Any) -> Calls:
    """From the adapter to the opaque operator; and the operator that does nothing."""
    import torch

    from vllm_fl_dispatch.testing.subjects import manager_of
    from vllm_fl_dispatch.torch_ops import NAMESPACE, PLAIN, opaque, without_options

    manager, spec = manager_of(subject), subject.spec
    slot = manager.new_slot(spec, donate=False, mode="opaque")
    opaque(manager, spec)
    # What compiled code calls.
    overloads = getattr(getattr(torch.ops, NAMESPACE), spec.name)
    operator = getattr(overloads, PLAIN, overloads.default)
    library = torch.library.Library("host_cost", "FRAGMENT")
    library.define(f"{spec.name}{without_options(spec.schema)}")
    library.impl(spec.name, lambda *_, **__: out, "CompositeExplicitAutograd")
    nothing = getattr(torch.ops.host_cost, spec.name).default
    return {
        "adapter": lambda: subject.fn(*args),
        "dispatch": lambda: slot.plain_call(*args),
        "operator": lambda: operator(*args),
        # Holds the library as well, without which the operator would be gone.
        "nothing": lambda keep=library: nothing(*args),
    }


def host_us(call: Callable[[], Any], device: str) -> float:
    """Microseconds until a call returns; on the CPU those of this thread alone."""
    import torch

    clock = time.perf_counter if device == "cuda" else time.thread_time
    begin = clock()
    for _ in range(CALLS):
        call()
    seconds = clock() - begin
    if device == "cuda":
        torch.cuda.synchronize()
    return seconds / CALLS * 1e6


def measure(steps: Calls, device: str) -> dict[str, Any]:
    """Medians over the rounds: the bare kernel, what each step adds, and the whole of it."""
    rounds = [
        {name: host_us(call, device) for name, call in steps.items()} for _ in range(ROUNDS + 5)
    ][5:]
    before = {"allocation": "kernel", "adapter": "allocation"}
    before |= {"dispatch": "adapter", "operator": "dispatch"}
    low, middle, high = statistics.quantiles(
        [each["operator"] - each["kernel"] for each in rounds], n=4
    )
    return {
        "kernel": statistics.median(each["kernel"] for each in rounds),
        "steps": {
            step: statistics.median(each[step] - each[before[step]] for each in rounds)
            for step in STEPS
        },
        "nothing": statistics.median(each["nothing"] for each in rounds),
        "over kernel": {"p25": low, "median": middle, "p75": high},
        "over kernel and allocation": statistics.median(
            each["operator"] - each["allocation"] for each in rounds
        ),
    }


def main() -> None:
    """Print a line per operator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=HIDDEN, default="cuda")
    parser.add_argument("--output", type=Path, help="file to append the figures to")
    options = parser.parse_args()
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no NVIDIA device; --device cpu")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    record = {"what": "host cost, us", "device": name, "torch": torch.__version__, "operators": {}}
    for operator, steps in calls(options.device).items():
        figures = record["operators"][operator] = measure(steps, options.device)
        spread = figures["over kernel"]
        added = ", ".join(f"{step} {us:+.2f}" for step, us in figures["steps"].items())
        print(
            f"{operator}: kernel {figures['kernel']:.2f} us; {added}; in all "
            f"{spread['median']:+.2f} ({spread['p25']:.2f} to {spread['p75']:.2f}), over kernel "
            f"and allocation {figures['over kernel and allocation']:+.2f}; an operator that does "
            f"nothing {figures['nothing']:.2f}"
        )
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
