"""FlagGems is looked for, never imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_fl_dispatch import OpManager, SelectionPolicy, probing
from vllm_fl_dispatch.discovery import Source
from vllm_fl_dispatch.types import Origin
from vllm_fl_flaggems import plugin, probe

Plant = Callable[[], None]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Puts a flag_gems on the path that must not be imported."""

    def plant() -> None:
        (tmp_path / "flag_gems.py").write_text("raise SystemExit('imported')\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return plant


def test_a_missing_library_says_how_to_get_it() -> None:
    assert "pip install --no-deps flag-gems" in probe.library_installed().reason


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.6.0", ""),
        ("3.3.0", ""),
        ("3.7.1", "triton 3.7.1 is outside the range"),
        ("3.2.0", "triton 3.2.0 is outside the range"),
        (None, "triton is not installed"),
    ],
)
def test_the_version_of_triton_decides(
    planted: Plant, monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str
) -> None:
    planted()
    monkeypatch.setattr(probing, "version_of", lambda name: version)
    verdict = probe.library_installed()
    assert bool(verdict) == (not reason)
    assert reason in verdict.reason


def test_it_loads_and_registers_no_operator_yet() -> None:
    source = Source("flaggems", "vllm_fl_flaggems.plugin", Origin("vllm-fl-flaggems"))
    manager = OpManager(SelectionPolicy(), [source])
    manager.ensure_built()
    (record,) = manager.records
    assert (record.status, record.impl_count) == ("loaded", 0)


def test_diagnosis_names_library_and_device() -> None:
    assert [line.split(":")[0] for line in plugin.vllm_fl_diagnose()] == ["FlagGems", "accelerator"]
