"""Are Acme's library and device there? Asked without importing or opening either."""

from __future__ import annotations

from vllm_fl_dispatch import Verdict, probing

#: The device nodes of the kernel driver, below /dev.
DEVICE_NODES = ("acme[0-9]*",)


def library_installed() -> Verdict:
    """Is the library that has the kernels installed? Looked up, not imported."""
    # Your library instead of torch, which is what the example is written in.
    return probing.module_installed("torch", "pip install torch")


def device_present() -> Verdict:
    """Is a device visible to this process?"""
    return probing.all_of(
        probing.device_node("Acme", DEVICE_NODES),
        probing.devices_visible("ACME_VISIBLE_DEVICES"),
    )
