"""What this backend registers: a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_fl_acme.probe import device_present, library_installed
from vllm_fl_dispatch import BackendImplKind, DeviceSpec, OpImpl, Registrar, hookimpl

#: The level of the hook interface that this plugin is written for.
vllm_fl_api = 1

CONFIG = Path(__file__).parent / "config"

#: Names that vLLM and torch have for the device. Here the host's processor stands for it: for a
#: device of its own, device_type, dispatch_key and torch_module are others ("acme",
#: "PrivateUse1", "torch_acme"), and the two classes are left out.
DEVICE = DeviceSpec(
    platform="acme",
    device_type="cpu",
    vendor="acme",
    dispatch_key="CPU",
    torch_module="torch.cpu",
    communication_backend="gloo",
    visible_devices_variable="ACME_VISIBLE_DEVICES",
    platform_class="vllm.platforms.cpu:CpuPlatform",
    worker_class="vllm.v1.worker.cpu_worker:CPUWorker",
)

#: operator -> (module of `impl/` that has a function of that name, what else is known about it;
#: see `vllm_fl_dispatch.OpImpl`)
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "silu_and_mul": ("activation", {"empty_ok": True}),
}


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """The operators of the table."""
    registrar.add_many(
        OpImpl(
            op_name,
            "vendor.acme",
            BackendImplKind.VENDOR,
            # Imported in the process that runs the kernels, when an operator is first bound.
            f"vllm_fl_acme.impl.{module}:{op_name}",
            "acme",
            installed=library_installed,
            # The example runs everywhere; kernels need the device: available=device_present.
            **more,
        )
        for op_name, (module, more) in OPERATORS.items()
    )


@hookimpl
def vllm_fl_device() -> DeviceSpec | None:
    """The device, where there is one."""
    return DEVICE if device_present() else None


@hookimpl
def vllm_fl_platform_config(platform: str) -> Path | None:
    """The defaults for this platform."""
    return CONFIG / "acme.yaml" if platform == DEVICE.platform else None


@hookimpl
def vllm_fl_diagnose() -> Iterable[str]:
    """What `vllm-fl doctor` says about this backend."""
    for what, verdict in (
        ("library", library_installed()),
        ("device", device_present()),
    ):
        yield f"{what}: {'found' if verdict else verdict.reason}"
