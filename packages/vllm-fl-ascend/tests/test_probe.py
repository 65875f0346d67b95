"""torch_npu is looked for, never imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vllm_fl_ascend import plugin, probe
from vllm_fl_dispatch import OpManager, OpNotSupported, SelectionPolicy, policy_from_config
from vllm_fl_dispatch.discovery import Source
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.types import Origin


def test_a_missing_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
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


def test_it_registers_its_table() -> None:
    source = Source("ascend", "vllm_fl_ascend.plugin", Origin("vllm-fl-ascend"))
    manager = OpManager(SelectionPolicy(), [source])
    manager.ensure_built()
    (record,) = manager.records
    # The operators, and the attention backend, which an older core knows nothing of.
    assert (record.status, record.impl_count) == ("loaded", len(plugin.OPERATORS) + 1)
    assert {impl.op_name for impl in manager.registry.orphans()} <= {"attention_backend"}


#: What a torch_npu without a working driver was seen to raise, and worse.
RAISED = ("ImportError('libhccl.so')", "OSError('x')", "RuntimeError('aclInit')", "SystemExit(1)")


@pytest.mark.parametrize("raised", RAISED)
def test_an_import_that_raises_anything_is_a_reason_at_the_first_binding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    (tmp_path / "torch_npu.py").write_text(f"raise {raised}\n")
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setattr(probe, "DEVICE_NODES", ("null",))
    manager = OpManager(
        SelectionPolicy(),
        [
            Source("ascend", "vllm_fl_ascend.plugin", Origin("vllm-fl-ascend")),
            Source("reference", "vllm_fl_reference.plugin", Origin("vllm-fl-reference")),
        ],
    )
    selected = manager.resolve("rms_norm").selected
    assert selected is not None
    assert selected.impl_id == "vendor.ascend"
    x = torch.ones(2, 8)
    assert manager.get_op("rms_norm")(x, torch.ones(8), 1e-6).shape == x.shape
    (failure,) = manager.failures.all()
    assert f"importing torch_npu raised {raised.partition('(')[0]}" in failure.error
    selected = manager.resolve("rms_norm").selected
    assert selected is not None
    assert selected.impl_id == "reference.torch"


def test_registering_asking_and_the_limits_import_no_torch_npu(tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text("raise SystemExit('imported')\n")
    code = (
        "import sys, torch\n"
        "from vllm_fl_ascend import plugin, probe\n"
        "from vllm_fl_dispatch import OpManager, Query, SelectionPolicy\n"
        "from vllm_fl_dispatch.discovery import Source\n"
        "from vllm_fl_dispatch.types import Origin\n"
        "source = Source('ascend', 'vllm_fl_ascend.plugin', Origin('vllm-fl-ascend'))\n"
        "manager = OpManager(SelectionPolicy(), [source])\n"
        "manager.ensure_built()\n"
        "for op in manager.registry.op_names(): manager.resolve(op)\n"
        "for op in plugin.OPERATORS:\n"
        "    (impl,) = manager.registry.impls(op)\n"
        "    impl.answer(Query(op, {'dtype': torch.float16}))\n"
        "list(plugin.vllm_fl_diagnose())\n"
        "print(sorted(name for name in sys.modules if 'npu' in name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_shipped_defaults_are_a_policy_without_unknown_names() -> None:
    path = plugin.vllm_fl_platform_config("ascend")
    assert path is not None
    policy = policy_from_config(path)
    known = {spec.name for spec in SPECS} | {"attention_backend"}
    assert set(policy.per_op_order) <= known
    # What the table offers comes first.
    for op in plugin.OPERATORS:
        order = policy.per_op_order.get("rms_norm" if op == "fused_add_rms_norm" else op)
        assert order is not None
        assert str(order[0]) == "vendor:ascend"


def test_the_attention_backend_is_named_or_refused_with_the_reason() -> None:
    path = plugin.attention_backend()
    assert path == "vllm_fl_ascend.vllm.attention.AscendAttentionBackend"
    with pytest.raises(OpNotSupported, match="has no MLA, sparse attention"):
        plugin.attention_backend(True, True)
    with pytest.raises(OpNotSupported, match="has no sinks"):
        plugin.attention_backend(has_sink=True)


def test_diagnosis_names_library_and_device() -> None:
    lines = [line.split(":")[0] for line in plugin.vllm_fl_diagnose()]
    assert lines == ["torch_npu", "Ascend NPU"]
