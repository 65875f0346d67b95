"""The real flag_gems in environments that it does not work in: each gives its reason, in a process
of its own, and none ends badly."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from vllm_fl_flaggems import probe, trial

if importlib.util.find_spec("flag_gems") is None:
    pytest.skip("needs flag-gems: nox -s flaggems", allow_module_level=True)
if probe.node_vendor() is not None:
    pytest.skip("there is a device: nothing is broken", allow_module_level=True)


@pytest.mark.parametrize(
    ("vendor", "reason"),
    [
        (None, "no device that flag-gems has a backend for; found: "),
        ("arm", "no device that flag-gems has a backend for; found: "),
        ("nvidia", "torch sees no device: torch.cuda.device_count() is 0"),
        ("ascend", "AttributeError: module 'torch' has no attribute 'npu'"),
        ("mthreads", "AttributeError: module 'torch' has no attribute 'musa'"),
        ("cambricon", "ModuleNotFoundError: No module named 'torch_mlu'"),
        ("hygon", "TypeError: Config.__init__() got an unexpected keyword argument"),
    ],
)
def test_every_failure_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: str | None, reason: str
) -> None:
    monkeypatch.setenv("FLAGGEMS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GEMS_VENDOR", raising=False)
    if vendor is not None:
        monkeypatch.setenv("GEMS_VENDOR", vendor)
    found = trial.attempt()
    assert not found
    assert reason in found.reason
