"""Where vLLM runs on `PlatformFL`, and what it is made of. vLLM itself is not needed here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import DeviceSpec, api
from vllm_fl_dispatch.errors import PluginError
from vllm_fl_dispatch.vllm import compat_platform, detection, device_check, find_platform
from vllm_fl_dispatch.vllm.generic_device import GenericDevice

CPU = DeviceSpec(
    platform="cpu",
    device_type="cpu",
    vendor="cpu",
    dispatch_key="CPU",
    torch_module="torch.cpu",
    communication_backend="gloo",
    visible_devices_variable="CPUS",
)
ACME = replace(CPU, platform="acme", device_type="acme", torch_module="torch_acme")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeviceSpec | None]:
    """Asks on a machine of this kind."""

    def ask(
        *,
        own: tuple[str, ...] = (),
        kernels: bool = False,
        rival: str | None = None,
        described: tuple[DeviceSpec, ...] = (CPU,),
        asked: str | None = None,
    ) -> DeviceSpec | None:
        monkeypatch.setattr(compat_platform, "rival_platform", lambda: rival)
        monkeypatch.setattr(compat_platform, "own_platforms", lambda: iter(own))
        monkeypatch.setattr(detection, "has_kernels", lambda: kernels)
        monkeypatch.setattr(detection, "devices", lambda _: [(None, spec) for spec in described])
        if asked is not None:
            monkeypatch.setenv("VLLM_FL_PLATFORM", asked)
        detection.device.cache_clear()
        try:
            return detection.device()
        finally:
            detection.device.cache_clear()

    return ask


@pytest.fixture(autouse=True)
def nothing_installed(default_manager: Any) -> None:
    default_manager()


def test_it_is_used_where_vllm_has_no_kernels(machine: Any) -> None:
    assert machine() is CPU
    assert machine(own=("cpu",)) is CPU
    assert machine(own=("cuda",)) is CPU


@pytest.mark.parametrize("own", ["cuda", "rocm", "cpu"])
def test_a_platform_with_kernels_stays(machine: Any, own: str) -> None:
    assert machine(own=(own,), kernels=True) is None


@pytest.mark.parametrize("own", ["tpu", "xpu"])
def test_platforms_whose_kernels_are_elsewhere_stay(machine: Any, own: str) -> None:
    assert machine(own=(own,)) is None


def test_another_plugin_stays_alone_even_where_we_are_asked_for(machine: Any) -> None:
    assert machine(rival="ascend", asked="cpu") is None


def test_a_device_comes_before_the_host(machine: Any) -> None:
    assert machine(described=(CPU, ACME)) is ACME
    assert machine(described=()) is None


def test_the_user_may_ask_for_it(machine: Any) -> None:
    assert machine(own=("cpu",), kernels=True, asked=" CPU ") is CPU
    assert machine(described=(CPU, ACME), asked="cpu") is CPU
    assert machine(own=("cpu",), kernels=True, asked="unknown") is None


@pytest.mark.parametrize("variable", ["VLLM_FL_PREFER_ENABLED", "VLLM_FL_ENABLED"])
def test_switched_off_there_is_none(
    machine: Any, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "0")
    assert machine() is None


def test_a_fault_is_said_and_not_swallowed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        "logging.Logger.error",
        lambda _, text, *args, exc_info=None: said.append((text % args, exc_info is not None)),
    )

    def broken() -> None:
        raise ModuleNotFoundError("a module that vLLM has moved")

    monkeypatch.setattr(detection, "device", broken)
    assert find_platform() is None
    assert said == [
        ("vllm-fl offers no platform in this process: a module that vLLM has moved", True)
    ]
    monkeypatch.setenv("VLLM_FL_STRICT", "1")
    with pytest.raises(ModuleNotFoundError, match="moved"):
        find_platform()
    monkeypatch.delenv("VLLM_FL_STRICT")
    monkeypatch.undo()
    api.reset_default_manager()


def test_a_wrong_setting_is_said_in_a_line_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[tuple[str, object]] = []
    monkeypatch.setattr(
        "logging.Logger.error",
        lambda _, text, *args, exc_info=None: said.append((text % args, exc_info)),
    )
    monkeypatch.setenv("VLLM_FL_ENABLED", "maybe")
    assert find_platform() is None
    ((line, trace),) = said
    assert line.startswith("vllm-fl offers no platform in this process: VLLM_FL_ENABLED: 'maybe'")
    assert trace is None


def test_slots_of_new_tokens() -> None:
    """Three requests with blocks of 4: 2 new tokens, none, and 3 across the end of a block."""
    table = SimpleNamespace(
        block_size=4,
        max_num_batched_tokens=8,
        block_table=SimpleNamespace(gpu=torch.tensor([[7, 0], [5, 0], [3, 9]], dtype=torch.int32)),
        slot_mapping=SimpleNamespace(gpu=torch.full((9,), 99, dtype=torch.int64)),
    )
    starts = torch.tensor([0, 2, 2, 5, 77], dtype=torch.int32)
    positions = torch.tensor([1, 2, 3, 4, 5, 55, 55])
    compat_platform.compute_slot_mapping(table, 3, starts, positions)
    assert table.slot_mapping.gpu.tolist() == [29, 30, 15, 36, 37, -1, -1, -1, 99]
    table.slot_mapping_mode = SimpleNamespace(name="NONE")
    table.slot_mapping.gpu.zero_()
    compat_platform.compute_slot_mapping(table, 3, starts, positions)
    assert not table.slot_mapping.gpu.any()


@pytest.mark.parametrize("mla", [False, True])
def test_limits_of_vllms_mla_kernels_are_taken_back(mla: bool) -> None:
    scheduler = SimpleNamespace(enable_chunked_prefill=True, max_num_batched_tokens=64)
    cache = SimpleNamespace(enable_prefix_caching=True)
    config = SimpleNamespace(
        model_config=SimpleNamespace(use_mla=mla), scheduler_config=scheduler, cache_config=cache
    )
    with compat_platform.mla_without_limits(config):
        scheduler.enable_chunked_prefill = cache.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = 2048
    assert scheduler.enable_chunked_prefill is cache.enable_prefix_caching is mla
    assert scheduler.max_num_batched_tokens == (64 if mla else 2048)


def test_a_device_without_a_class_in_vllm_answers_by_its_torch_module(module: Any) -> None:
    module(
        "torch_acme",
        """
        from types import SimpleNamespace
        seen = []
        def get_device_name(index): return f"acme {index}"
        def get_device_properties(index): return SimpleNamespace(total_memory=1000 + index)
        def reset_peak_memory_stats(device): seen.append(("reset", device))
        def max_memory_allocated(device): return 7
        def set_device(device): seen.append(("set", device))
        def manual_seed_all(seed): seen.append(("seed", seed))
        """,
    )

    class Platform(GenericDevice):
        fl_device = ACME

    assert Platform.get_device_name(1) == "acme 1"
    assert Platform.get_device_total_memory(2) == 1002
    assert Platform.get_current_memory_usage("acme:0") == 7.0
    Platform.set_device("acme:1")
    Platform.manual_seed_all(3)
    expected = [("reset", "acme:0"), ("set", "acme:1"), ("seed", 3)]
    assert Platform.fl_module().seen == expected


def test_a_device_whose_type_is_the_hosts_comes_before_the_host(machine: Any) -> None:
    simulated = replace(CPU, platform="simulated")
    assert machine(described=(CPU, simulated)) is simulated


def test_a_description_that_cannot_be_right_is_named_by_its_fields() -> None:
    device_check.check(CPU)
    wrong = replace(CPU, platform="acme", device_type="acme", dispatch_key="Acme")
    with pytest.raises(PluginError, match=r"platform 'acme' .* cannot be right") as info:
        device_check.check(wrong)
    assert "dispatch_key='Acme': torch has no such key" in str(info.value)
    assert "device_type='acme': torch has no such device" in str(info.value)
    gone = replace(CPU, torch_module="torch_gone.gone")
    with pytest.raises(PluginError, match=r"torch_module='torch_gone.gone': torch_gone is"):
        device_check.check(gone)


def test_the_name_of_a_platform_is_lower_case() -> None:
    with pytest.raises(ValueError, match="platform='Acme' must be lower case"):
        replace(CPU, platform="Acme")
