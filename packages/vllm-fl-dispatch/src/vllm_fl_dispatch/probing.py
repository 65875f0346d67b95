"""Questions that a backend's predicates ask, answered without side effects.

Nothing here imports the library it asks about, opens a driver or initialises a device: a process
that did could no longer fork.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from vllm_fl_dispatch.types import Verdict


def module_installed(name: str, hint: str = "") -> Verdict:
    """Is there a module of this name? `hint` tells how to get it."""
    try:
        found = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError) as error:
        return Verdict.no(f"{name} cannot be looked up: {error}")
    return Verdict.yes() if found else Verdict.no(f"{name} is not installed{hint and ': ' + hint}")


def device_node(what: str, patterns: Iterable[str], dev: Path = Path("/dev")) -> Verdict:
    """Does the kernel driver offer a device? Looks for its nodes below `dev`."""
    patterns = tuple(patterns)
    if any(next(dev.glob(pattern), None) is not None for pattern in patterns):
        return Verdict.yes()
    return Verdict.no(f"no {what} device node ({', '.join(patterns)}) in {dev}")


def devices_visible(variable: str) -> Verdict:
    """Does the vendor's variable, such as CUDA_VISIBLE_DEVICES, leave a device visible?"""
    value = os.environ.get(variable)
    if value is not None and value.strip() in ("", "-1"):
        return Verdict.no(f"{variable}={value!r} hides all devices")
    return Verdict.yes()


def all_of(*verdicts: Verdict) -> Verdict:
    """The first refusal, or yes."""
    return next((verdict for verdict in verdicts if not verdict), Verdict.yes())


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    import importlib_metadata  # costs tens of milliseconds, so not at import

    try:
        return str(importlib_metadata.version(distribution))
    except importlib_metadata.PackageNotFoundError:
        return None
