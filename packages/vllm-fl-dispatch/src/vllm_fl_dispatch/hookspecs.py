"""The hooks that a backend may implement: signatures and documentation, nothing else.

A backend is any object or module one of whose functions carries the `hookimpl` marker::

    from vllm_fl_dispatch import hookimpl

    @hookimpl
    def vllm_fl_register_ops(registrar):
        registrar.add(OpImpl("silu_and_mul", "vendor.acme", BackendImplKind.VENDOR, fn, "acme"))

It is announced under the entry-point group ``vllm_fl.plugin``. All hooks run once per process,
at start-up, one plugin at a time: what a plugin registered before it raised is taken back, and
the other plugins go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from vllm_fl_dispatch.registry import Registrar
    from vllm_fl_dispatch.types import DeviceSpec

PROJECT = "vllm_fl"
#: The level of this interface. A plugin states the level it was written for: `vllm_fl_api = 1`.
API_LEVEL = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function as the implementation of the hook of its name."""


@hookspec
def vllm_fl_register_specs(registrar: Registrar) -> None:
    """Add operators of your own (`registrar.add_spec`). Runs before `vllm_fl_register_ops`."""


@hookspec
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """Add implementations (`registrar.add`, `registrar.add_many`).

    Do not import a device library here: name the place of the function, ``fn="module:name"``, and
    say in `available=` whether it can run.
    """


@hookspec
def vllm_fl_device() -> DeviceSpec | None:
    """Describe the device of this backend; None where there is none."""


@hookspec
def vllm_fl_platform_config(platform: str) -> Path | Mapping[str, Any] | None:
    """Policy defaults for a platform (``cuda``, ``ascend``): a YAML path, a mapping, or None."""


@hookspec
def vllm_fl_diagnose() -> Iterable[str]:  # type: ignore[empty-body]  # a specification
    """Lines for `vllm-fl doctor`: versions, what was found, why this backend is unavailable."""
