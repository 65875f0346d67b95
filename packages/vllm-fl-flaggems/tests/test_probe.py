"""FlagGems is looked for, never imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_fl_dispatch import OpManager, SelectionPolicy, Verdict, probing
from vllm_fl_dispatch.discovery import Source
from vllm_fl_dispatch.types import Origin
from vllm_fl_flaggems import plugin, probe, selection

Plant = Callable[[], None]


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides a flag_gems that is installed."""
    monkeypatch.setitem(sys.modules, "flag_gems", None)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Puts a flag_gems on the path that must not be imported."""

    def plant() -> None:
        (tmp_path / "flag_gems.py").write_text("raise SystemExit('imported')\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return plant


def test_a_missing_library_says_how_to_get_it(no_library: None) -> None:
    assert "pip install --no-deps flag-gems" in probe.library_installed().reason


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.6.0", ""),
        ("3.3.0", ""),
        ("3.7.1", ""),
        ("3.8.0", "its generated pointwise kernels do not compile"),
        ("3.2.0", "triton 3.2.0 is outside the range"),
        (None, "triton is not installed"),
    ],
)
def test_the_version_of_triton_decides(
    planted: Plant, monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str
) -> None:
    planted()
    monkeypatch.setattr(probe, "REQUIREMENTS", ())
    monkeypatch.setattr(probing, "version_of", {"triton": version}.get)
    verdict = probe.library_installed()
    assert bool(verdict) == (not reason)
    assert reason in verdict.reason


def test_every_operator_of_the_table_is_registered() -> None:
    source = Source("flaggems", "vllm_fl_flaggems.plugin", Origin("vllm-fl-flaggems"))
    manager = OpManager(SelectionPolicy(), [source])
    manager.ensure_built()
    (record,) = manager.records
    assert (record.status, manager.registry.snapshot().refusals) == ("loaded", ())
    rows = len(plugin.OPERATORS) + len(plugin.TRITON) + len(list(selection.implementations()))
    assert record.impl_count == rows


def test_what_is_missing_is_the_reason_of_every_operator(no_library: None) -> None:
    source = Source("flaggems", "vllm_fl_flaggems.plugin", Origin("vllm-fl-flaggems"))
    manager = OpManager(SelectionPolicy(), [source])
    for op in plugin.OPERATORS:
        (reason,) = (
            decision.reason
            for decision in manager.resolve(op).decisions
            if decision.impl.impl_id == "default.flagos"
        )
        assert "pip install --no-deps flag-gems" in reason


def test_without_flaggems_our_kernels_serve_where_vllm_uses_triton(
    no_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "node_vendor", lambda: "nvidia")
    wanted = ["default.triton"] if probing.module_installed("triton") else []
    source = Source("flaggems", "vllm_fl_flaggems.plugin", Origin("vllm-fl-flaggems"))
    manager = OpManager(SelectionPolicy(), [source])
    for op in plugin.TRITON:
        assert [impl.impl_id for impl in manager.resolve(op).accepted] == wanted


@pytest.mark.parametrize(
    ("vendor", "reason"), [("nvidia", ""), ("ascend", "say ascend"), (None, "say nothing")]
)
def test_plain_triton_is_for_devices_that_vllm_uses_it_on(
    monkeypatch: pytest.MonkeyPatch, vendor: str | None, reason: str
) -> None:
    monkeypatch.setattr(probe, "node_vendor", lambda: vendor)
    found = probe.triton_available()
    assert bool(found) == (not reason)
    assert reason in found.reason


def test_diagnosis_names_library_and_device() -> None:
    lines = [line.split(":")[0] for line in plugin.vllm_fl_diagnose()]
    assert lines[:2] == ["FlagGems", "accelerator"]


def test_a_function_of_newer_releases_is_looked_up_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = tmp_path / "flag_gems" / "fused"
    fused.mkdir(parents=True)
    (fused.parent / "__init__.py").write_text("raise SystemExit('imported')\n")
    (fused / "__init__.py").write_text("from flag_gems.fused.new import newer_out\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(probe, "library_installed", Verdict.yes)
    assert probe.offers("newer_out")()
    assert "has no newer" in probe.offers("newer")().reason


def test_the_vendor_of_a_device_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in probe.VISIBLE.values():
        monkeypatch.delenv(variable, raising=False)
    assert probe.node_vendor(tmp_path) is None
    (tmp_path / "davinci3").touch()
    assert probe.node_vendor(tmp_path) == "ascend"
    (tmp_path / "nvidia0").touch()
    assert probe.node_vendor(tmp_path) == "nvidia"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe.node_vendor(tmp_path) == "ascend"


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_devices_are_no_devices(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(probe, "NODE_VENDORS", {"null": "nvidia"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert probe.device_present()
    assert probe.triton_available()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert f"CUDA_VISIBLE_DEVICES='{value}'" in probe.device_present().reason
    assert not probe.triton_available()
