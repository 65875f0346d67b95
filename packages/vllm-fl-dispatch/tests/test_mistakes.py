"""What the author of a backend gets wrong, and what is said: the server starts without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_fl_dispatch import OpManager, PolicyError
from vllm_fl_dispatch.discovery import module_sources
from vllm_fl_dispatch.doctor import diagnose

HEAD = """
from vllm_fl_dispatch import BackendImplKind, DeviceSpec, OpImpl, hookimpl

def silu_and_mul(x):
    return x

def impl(op="silu_and_mul"):
    return OpImpl(op, "vendor.acme", BackendImplKind.VENDOR, silu_and_mul, "acme")

DEVICE = DeviceSpec("acme", "cpu", "acme", "CPU", "torch.cpu", "gloo", "ACME_VISIBLE_DEVICES")
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A manager with one plugin, which this text is."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = iter(range(100))

    def load(text: str) -> OpManager:
        name = f"mistaken_{tmp_path.name}_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        return OpManager(sources=module_sources(name))

    return load


def error_of(manager: OpManager) -> str:
    manager.ensure_built()
    (record,) = manager.records
    assert record.status == "broken"
    return record.error


def test_a_hook_without_its_marker(load: Any) -> None:
    error = error_of(load("def vllm_fl_register_ops(registrar):\n    registrar.add(impl())\n"))
    assert "vllm_fl_register_ops of" in error
    assert "put @vllm_fl_dispatch.hookimpl above it" in error


def test_a_hook_with_a_parameter_of_another_name(load: Any) -> None:
    error = error_of(load("@hookimpl\ndef vllm_fl_register_ops(reg):\n    reg.add(impl())\n"))
    assert "vllm_fl_register_ops(reg) does not fit the hook" in error
    assert "vllm_fl_register_ops(registrar)" in error


def test_a_module_that_is_not_on_the_path() -> None:
    for name in ("no_such_module", "no_such_package.plugin"):
        error = error_of(OpManager(sources=module_sources(name)))
        assert f"there is no module {name.partition('.')[0]}: it is not installed" in error
        assert "PYTHONPATH" in error


def test_what_a_plugin_lacks_is_not_taken_for_the_plugin(load: Any) -> None:
    assert error_of(load("import no_such_library\n")) == (
        "ModuleNotFoundError: No module named 'no_such_library'"
    )


def test_an_operator_of_a_wrong_name_is_named_at_the_start(
    load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    load(
        "@hookimpl\ndef vllm_fl_register_ops(registrar):\n    registrar.add(impl('rms_nrom'))\n"
    ).ensure_built()
    assert "unknown operator 'rms_nrom'; did you mean 'rms_norm'?" in caplog.text


DEFAULTS = """
@hookimpl
def vllm_fl_device():
    return DEVICE

@hookimpl
def vllm_fl_platform_config(platform):
    return {}
"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("'/no/such/acme.yaml'", "acme.yaml of module mistaken"),
        ("{'prefer': 'nobody'}", "is not used: "),
        ("7", "returned 7, which is ignored; accepted: a path, a mapping or None"),
    ],
)
def test_defaults_that_cannot_be_used_are_left_out(
    load: Any, caplog: pytest.LogCaptureFixture, answer: str, said: str
) -> None:
    manager = load(DEFAULTS.format(answer))
    manager.ensure_built()
    assert manager.policy.prefer == "flagos"
    assert said in caplog.text
    if answer != "7":
        assert any("is not used: " in problem for problem in diagnose(manager).problems)


def test_a_device_of_another_type_is_named(load: Any, caplog: pytest.LogCaptureFixture) -> None:
    load("@hookimpl\ndef vllm_fl_device():\n    return {'platform': 'acme'}\n").ensure_built()
    assert "which is ignored; accepted: a DeviceSpec or None" in caplog.text


def test_after_a_start_that_failed_the_next_one_begins_anew(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = load("@hookimpl\ndef vllm_fl_register_ops(registrar):\n    registrar.add(impl())\n")
    monkeypatch.setenv("VLLM_FL_PREFER", "nobody")
    with pytest.raises(PolicyError):
        manager.ensure_built()
    monkeypatch.delenv("VLLM_FL_PREFER")
    manager.ensure_built()
    assert [record.status for record in manager.records] == ["loaded"]
    assert [impl.impl_id for impl in manager.registry.impls("silu_and_mul")] == ["vendor.acme"]


def test_a_device_without_defaults_is_no_mistake(
    load: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = "@hookimpl\ndef vllm_fl_device():\n    return DEVICE\n"
    monkeypatch.setenv("VLLM_FL_PLATFORM", "acme")
    load(device).ensure_built()
    assert "VLLM_FL_PLATFORM" not in caplog.text
    monkeypatch.setenv("VLLM_FL_PLATFORM", "acne")
    load(device).ensure_built()
    assert "VLLM_FL_PLATFORM=acne: no backend has defaults for this platform" in caplog.text
    assert "describes such a device here either; devices: acme" in caplog.text
