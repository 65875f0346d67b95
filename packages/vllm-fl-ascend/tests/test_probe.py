"""torch_npu is looked for, never imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_fl_ascend import plugin, probe
from vllm_fl_dispatch import OpManager, SelectionPolicy
from vllm_fl_dispatch.discovery import Source
from vllm_fl_dispatch.types import Origin


def test_a_missing_library_says_how_to_get_it() -> None:
    assert "torch_npu is not installed: pip install torch-npu" in probe.library_installed().reason


def test_without_cann_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_npu.py").write_text("raise OSError('libascendcl.so')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in (*probe.CANN_VARIABLES, "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert "libascendcl.so (CANN) was not found" in probe.library_installed().reason
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").touch()
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert probe.library_installed()


def test_a_device_is_its_node_and_may_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no Ascend NPU device node" in probe.device_present().reason
    assert plugin.vllm_fl_device() is None
    monkeypatch.setattr(probe, "DEVICE_NODES", ("null",))
    assert probe.device_present()
    assert plugin.vllm_fl_device() is plugin.DEVICE
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    assert "ASCEND_RT_VISIBLE_DEVICES" in probe.device_present().reason


def test_it_loads_and_registers_no_operator_yet() -> None:
    source = Source("ascend", "vllm_fl_ascend.plugin", Origin("vllm-fl-ascend"))
    manager = OpManager(SelectionPolicy(), [source])
    manager.ensure_built()
    (record,) = manager.records
    assert (record.status, record.impl_count) == ("loaded", 0)


def test_diagnosis_names_library_and_device() -> None:
    lines = [line.split(":")[0] for line in plugin.vllm_fl_diagnose()]
    assert lines == ["torch_npu", "Ascend NPU"]
