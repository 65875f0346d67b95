"""Is a `DeviceSpec` possible? Where it is not, torch and vLLM name neither field nor backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from vllm_fl_dispatch import probing
from vllm_fl_dispatch.errors import PluginError
from vllm_fl_dispatch.types import DeviceSpec


def check(spec: DeviceSpec) -> None:
    """Look at what can be known without importing the library of the device.

    Raises:
        PluginError: with every field that cannot be right.
    """
    problems = list(_problems(spec))
    if problems:
        raise PluginError(
            f"the DeviceSpec of platform {spec.platform!r} (vendor {spec.vendor}) cannot be right: "
            f"{'; '.join(problems)}"
        )


def _problems(spec: DeviceSpec) -> Iterator[str]:
    library = spec.torch_module.partition(".")[0]
    installed = probing.module_installed(library)
    if library not in sys.modules and not installed:
        yield f"torch_module={spec.torch_module!r}: {installed.reason}"
    if torch._C._parse_dispatch_key(spec.dispatch_key) is None:
        yield (
            f"dispatch_key={spec.dispatch_key!r}: torch has no such key; it has CPU, CUDA, XPU, "
            "and PrivateUse1 for devices that torch does not know"
        )
    if library in sys.modules:
        try:
            torch.device(spec.device_type)
        except RuntimeError:
            yield (
                f"device_type={spec.device_type!r}: torch has no such device with {library} "
                "imported"
            )
