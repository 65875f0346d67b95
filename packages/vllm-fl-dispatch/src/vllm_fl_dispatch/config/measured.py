"""Does a policy file that was measured elsewhere fit this machine?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vllm_fl_dispatch import probing

#: NVIDIA's driver tells of itself and of its devices here, without being opened.
PROC = Path("/proc/driver/nvidia")


def driver(proc: Path = PROC) -> str | None:
    """The version of the NVIDIA driver; None where there is none."""
    try:
        text = (proc / "version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d[\d.]*)", text)
    return found.group(1) if found else None


def device(proc: Path = PROC) -> str | None:
    """The model of the first NVIDIA device; None where there is none."""
    for file in sorted(proc.glob("gpus/*/information")):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
        if found:
            return found.group(1)
    return None


def here(name: str) -> str | None:
    """What this machine has of something that a file names: a device, a driver, a version."""
    readers: dict[str, Callable[[], str | None]] = {"device": device, "driver": driver}
    return readers[name]() if name in readers else probing.version_of(name)


def differences(
    measured_on: Mapping[str, str], here: Callable[[str], str | None] = here
) -> Iterator[str]:
    """What is different here. What cannot be known without opening a device is passed over.

    Args:
        measured_on: ``device``, ``driver``, or the name of a distribution -> what it was.
    """
    for name, then in measured_on.items():
        now = here(name)
        if now is not None and now != then:
            yield f"{name} was {then} and is {now}"
