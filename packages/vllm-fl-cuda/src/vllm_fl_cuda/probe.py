"""Is there an NVIDIA device, and are vLLM's compiled operators there? Asked without CUDA."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from vllm_fl_dispatch import Verdict, get_logger, probing

logger = get_logger(__name__)

#: Extension modules that may hold the operators; vLLM moved them between releases.
EXTENSIONS = ("_C_stable_libtorch", "_C", "_moe_C_stable_libtorch", "_moe_C")
#: The kernel driver's device nodes (WSL has one node for all devices).
DEVICE_NODES = ("nvidia[0-9]*", "dxg")


def operators_installed() -> Verdict:
    """Does the installed vLLM carry one of the extension modules? Looked up, not imported."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return Verdict.no("vllm is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    if any(next(root.glob(f"{name}.*so"), None) for name in EXTENSIONS):
        return Verdict.yes()
    return Verdict.no(f"the installed vllm has none of {', '.join(EXTENSIONS)}: built without CUDA")


def device_present() -> Verdict:
    """Is an NVIDIA device visible to this process?"""
    return probing.all_of(
        probing.device_node("NVIDIA", DEVICE_NODES),
        probing.devices_visible("CUDA_VISIBLE_DEVICES"),
    )


def import_extensions() -> list[str]:
    """Import what is there of the extension modules, each on its own; returns their names.

    One that cannot be imported is named in the log and takes only its own operators along.
    """
    imported = []
    for name in EXTENSIONS:
        if importlib.util.find_spec(f"vllm.{name}") is None:
            continue
        try:
            importlib.import_module(f"vllm.{name}")
        except (ImportError, OSError) as error:
            logger.warning("vllm.%s cannot be imported: %s", name, error)
        else:
            imported.append(name)
    return imported
