"""What this backend tells the core. It registers no operator yet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vllm_fl_ascend.probe import device_present, library_installed
from vllm_fl_dispatch import DeviceSpec, hookimpl

vllm_fl_api = 1
CONFIG = Path(__file__).parent / "config"

DEVICE = DeviceSpec(
    platform="ascend",
    device_type="npu",
    vendor="ascend",
    dispatch_key="PrivateUse1",
    torch_module="torch_npu.npu",
    communication_backend="hccl",
    visible_devices_variable="ASCEND_RT_VISIBLE_DEVICES",
)


@hookimpl
def vllm_fl_device() -> DeviceSpec | None:
    """The Ascend NPU, where there is one."""
    return DEVICE if device_present() else None


@hookimpl
def vllm_fl_platform_config(platform: str) -> Path | None:
    """The defaults for this platform."""
    return CONFIG / f"{platform}.yaml" if platform == DEVICE.platform else None


@hookimpl
def vllm_fl_diagnose() -> Iterable[str]:
    """Library and device, each with its reason."""
    for what, verdict in (("torch_npu", library_installed()), ("Ascend NPU", device_present())):
        yield f"{what}: {'found' if verdict else verdict.reason}"
