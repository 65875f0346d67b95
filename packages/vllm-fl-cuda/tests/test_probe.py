"""Availability is told without a device, and without opening a driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_fl_cuda import plugin, probe
from vllm_fl_cuda.impl import normalization, rotary
from vllm_fl_dispatch import OpManager, Query, SelectionPolicy, probing
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.types import Origin


def test_a_device_is_its_node(tmp_path: Path) -> None:
    verdict = probing.device_node("NVIDIA", probe.DEVICE_NODES, tmp_path)
    assert not verdict
    assert "no NVIDIA device node" in verdict.reason
    (tmp_path / "nvidia0").touch()
    assert probing.device_node("NVIDIA", probe.DEVICE_NODES, tmp_path)


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_devices_are_no_devices(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(probe, "DEVICE_NODES", ("null",))
    assert probe.device_present()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert f"CUDA_VISIBLE_DEVICES='{value}'" in probe.device_present().reason


def test_the_operators_need_an_extension_module_of_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "built without CUDA" in probe.operators_installed().reason
    (package / "_C_stable_libtorch.abi3.so").touch()
    assert probe.operators_installed()


def test_registering_and_asking_initialises_nothing() -> None:
    code = (
        "import sys, vllm_fl_dispatch as fl\n"
        "manager = fl.get_default_manager()\n"
        "manager.ensure_built()\n"
        "for op in manager.registry.op_names(): manager.resolve(op)\n"
        "print(sorted({'torch', 'vllm', 'torch_npu', 'flag_gems'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_every_operator_is_registered_as_the_vendor_cuda() -> None:
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    plugin.vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-cuda")))
    assert manager.registry.snapshot().refusals == ()
    for op in plugin.OPERATORS:
        (impl,) = manager.registry.impls(op)
        assert (impl.impl_id, impl.vendor, impl.priority) == ("vendor.cuda", "cuda", 100)


def test_a_cpu_platform_on_a_machine_with_a_device_gets_none_of_it() -> None:
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    plugin.vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-cuda")))
    for op in ("attention_backend", *plugin.OPERATORS):
        (impl,) = manager.registry.impls(op)
        facts = {"bias_dtype": "any"}
        assert impl.answer(Query(op, {**facts, "device": "cuda"})), op
        verdict = impl.answer(Query(op, {**facts, "device": "cpu"}))
        assert verdict.reason == "it runs on cuda, the call is on cpu", op


def test_what_is_not_known_yet_is_no_objection() -> None:
    assert normalization.supports(Query("rms_norm", {"dtype": None, "weight_dtype": None}))
    assert rotary.supports(Query("rotary_embedding", {}))


def test_heads_between_others_are_normed_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    called: list[Any] = []
    monkeypatch.setattr(
        normalization, "compiled_operator", lambda _: lambda *call: called.append(call)
    )
    monkeypatch.setattr(normalization, "takes_none", lambda *_: True)
    norm = normalization.make_rms_norm()
    qkv = torch.empty(4, 8 * 64, device="meta")
    for heads, in_place in (
        (qkv[:, :256].view(4, 4, 64), True),
        (qkv[:, :256].view(4, 4, 64).transpose(0, 1), True),
        (qkv[:, :64], True),
        (qkv[:, ::2], False),
    ):
        out = norm(heads, None, 1e-6)
        assert (called[-1][1] is heads) is in_place
        assert called[-1][1].stride(-1) == 1
        assert called[-1][0] is out
        assert out.shape == heads.shape
        assert out.is_contiguous()


def test_diagnosis_names_what_is_missing() -> None:
    lines = list(plugin.vllm_fl_diagnose())
    assert [line.split(":")[0] for line in lines] == ["vLLM's compiled operators", "NVIDIA device"]
