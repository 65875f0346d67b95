"""Policies and ranks on a device: the same tokens, whoever serves and on however many.

What runs on NVIDIA devices runs on the CPU as well, as far as implementations are there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_fl_dispatch import report_reading

from .conftest import HERE, Compare, Run

Truth = Callable[[str], list[list[int]]]
#: device -> what runs of vLLM are given there
OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {},
    # vLLM's attention that has float32.
    "cuda": {
        "attention_backend": "TRITON_ATTN",
        # Not measured: another process on the device may take or free memory meanwhile.
        "gpu_memory_utilization": 0.05,
        "kv_cache_memory_bytes": 2**30,
    },
}
PROCESSES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def devices(needed: int) -> int:
    """How many devices of NVIDIA there are; skips where they are fewer than needed."""
    import torch

    count = torch.cuda.device_count()
    if count < needed:
        pytest.skip(f"needs {needed} NVIDIA devices, found {count}")
    return count


def on(device: str, *values: str) -> Any:
    mark = pytest.mark.gpu if device == "cuda" else pytest.mark.slow
    return pytest.param(device, *values, marks=mark, id="-".join([device, *values]))


@pytest.mark.parametrize(
    ("device", "prefer"), [on("cpu", "reference"), on("cuda", "vendor"), on("cuda", "flagos")]
)
def test_two_ranks_choose_alike_and_give_the_tokens_of_one(
    run_vllm: Run, truth: Truth, tmp_path: Path, device: str, prefer: str
) -> None:
    if device == "cuda":
        devices(2)
    environ = {"VLLM_FL_PREFER": prefer}
    options = {"enforce_eager": True, **OPTIONS[device]}
    alone = run_vllm(environ=environ, **options)
    environ |= {**PROCESSES, "VLLM_FL_REPORT": str(tmp_path / "reports")}
    two = run_vllm(
        environ=environ, tensor_parallel_size=2, distributed_executor_backend="mp", **options
    )
    if device == "cpu":  # Triton's attention multiplies float32 as TF32
        assert alone["tokens"] == truth("qwen3")
    assert two["tokens"] == alone["tokens"]
    served = {
        report["rank"]: sorted(
            (row["op"], row["impl_id"], row["mode"]) for row in report["rows"] if row["layers"]
        )
        for report in report_reading.read(tmp_path / "reports")
        if any(row["layers"] for row in report["rows"])
    }
    assert served.keys() == {0, 1}
    assert served[0] == served[1]
    kinds = {"reference": "reference.", "vendor": "vendor.", "flagos": "default."}
    assert {op for op, impl_id, _ in served[0] if impl_id.startswith(kinds[prefer])} >= {
        "silu_and_mul",
        "rms_norm",
    }


@pytest.mark.gpu
def test_a_device_with_another_selection_ends_the_start(run_vllm: Run) -> None:
    devices(2)
    failed = run_vllm(
        environ={
            **PROCESSES,
            "VLLM_FL_PLUGIN_MODULES": "odd_rank",
            "VLLM_FL_PER_OP": "silu_and_mul=vendor:odd|vendor|reference",
        },
        fails=True,
        enforce_eager=True,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        **OPTIONS["cuda"],
    )
    assert (
        "the ranks of group tp:0 (ranks 0,1) chose differently"
        in failed["stdout"] + failed["stderr"]
    )


EXACT = ("--dtype", "float32", "--tolerance", "0")
#: vLLM's experts in Triton multiply float32 as TF32, the reference does not.
NEAR = ("--dtype", "float32", "--tolerance", "0.02")


@pytest.mark.parametrize(
    ("device", "mode"), [on("cpu", "eager"), on("cuda", "eager"), on("cuda", "graphs")]
)
@pytest.mark.parametrize("name", ["qwen3", "gemma", "moe"])
def test_every_policy_gives_the_same_tokens(
    tiny: Callable[[str], Path], compare_tokens: Compare, device: str, mode: str, name: str
) -> None:
    policies = ["reference", "stock"]
    exact = device == "cpu" or name != "moe"
    arguments = [*(EXACT if exact else NEAR), "--mode", mode]
    if device == "cuda":
        devices(1)
        policies += ["vendor", "flagos"]
        arguments += ["--attention", "TRITON_ATTN"]
    done, found = compare_tokens(tiny(name), *arguments, "--policies", *policies)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    for policy in policies:
        assert found[policy]["of"] == 120
        assert found[policy]["same"] == 120 or not exact


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "graphs"])
def test_a_wrong_implementation_is_told_by_its_tokens(
    tiny: Callable[[str], Path], compare_tokens: Compare, mode: str
) -> None:
    # Compiled code calls it behind an opaque operator, which follows the policy of the process.
    done, found = compare_tokens(
        tiny("qwen3"),
        *EXACT,
        "--mode",
        mode,
        "--policies",
        "reference",
        "vendor",
        environ={
            "VLLM_FL_PLUGIN_MODULES": "wrong_acme",
            "TEST_WRONG_OP": "silu_and_mul",
            "VLLM_FL_PREFER": "reference",  # where no policy reaches, it would not be called
        },
    )
    assert done.returncode == 1
    assert found["vendor"]["faults"]
    assert found["vendor"]["selected"]["silu_and_mul"] == "vendor.wrong"
    assert not found["reference"]["faults"]


def step(token: int, **top: float) -> dict[str, Any]:
    return {"token": token, "top": {name.removeprefix("t"): value for name, value in top.items()}}


@pytest.mark.parametrize(
    ("found", "same", "fault"),
    [
        ([step(1, t1=-0.1, t2=-3.0), step(2, t2=-0.5, t3=-0.52)], 2, None),
        ([step(1, t1=-0.1, t2=-3.0), step(3, t2=-0.5, t3=-0.49)], 1, None),
        ([step(2, t1=-3.0, t2=-2.95)], 0, "2.9000 below 1"),
        ([step(1, t1=-0.3, t2=-3.0), step(2, t2=-0.5, t3=-0.52)], 2, "-0.3000, not -0.1000"),
        ([step(7, t7=-0.1, t1=-0.2)], 0, "not among the best"),
    ],
    ids=["equal", "as good", "worse", "another probability", "not considered"],
)
def test_what_counts_as_the_same_text(
    monkeypatch: pytest.MonkeyPatch, found: Any, same: int, fault: str | None
) -> None:
    monkeypatch.syspath_prepend(str(HERE.parent / "benchmarks"))
    import tokens

    truth = [step(1, t1=-0.1, t2=-3.0), step(2, t2=-0.5, t3=-0.52)]
    result = tokens.compare([found], [truth], 0.1)
    assert result["same"] == same
    assert result["of"] == 2
    assert [fault in line for line in result["faults"]] == ([True] if fault else [])
