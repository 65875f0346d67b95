"""What this backend tells the core. It registers no operator yet."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_fl_dispatch import hookimpl
from vllm_fl_flaggems.probe import device_present, library_installed

vllm_fl_api = 1


@hookimpl
def vllm_fl_diagnose() -> Iterable[str]:
    """Library and device, each with its reason."""
    for what, verdict in (("FlagGems", library_installed()), ("accelerator", device_present())):
        yield f"{what}: {'found' if verdict else verdict.reason}"
