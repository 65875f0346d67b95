"""A make-believe NVIDIA device, as much as the import of flag_gems and its launches ask for."""

from __future__ import annotations

import contextlib
import importlib.util
import types
from typing import Any

import pytest
import torch

from vllm_fl_flaggems import probe

PROPERTIES = types.SimpleNamespace(
    major=9, minor=0, name="make-believe", multi_processor_count=4, total_memory=1 << 30,
    warp_size=32, L2_cache_size=40 << 20, regs_per_multiprocessor=65536,
    shared_memory_per_block=227 << 10, shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
)  # fmt: skip


def install() -> None:
    """Let torch.cuda tell of one device of compute capability 9.0. For the whole process.

    Skips the module that asks for it where there is no flag-gems to try with it, or a device.
    """
    if importlib.util.find_spec("flag_gems") is None:
        pytest.skip("needs flag-gems: nox -s flaggems", allow_module_level=True)
    if torch.cuda.is_available():
        pytest.skip("there is a device, which this would hide", allow_module_level=True)
    probe.NODE_VENDORS.clear()
    probe.NODE_VENDORS["null"] = "nvidia"
    answers: dict[str, Any] = {
        "device_count": 1,
        "current_device": 0,
        "get_device_name": PROPERTIES.name,
        "get_device_capability": (PROPERTIES.major, PROPERTIES.minor),
        "get_device_properties": PROPERTIES,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[assignment, misc]


def use_cpu_tensors() -> None:
    """Let the functions of flag_gems that check or allocate take the CPU for their device."""
    import sys

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flag_gems" and vars(module).get("device") == "cuda":
            module.device = "cpu"  # type: ignore[attr-defined]
