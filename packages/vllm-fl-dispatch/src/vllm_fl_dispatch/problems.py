"""What is wrong with the plugins, the policy and the variables of a process, one line each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from vllm_fl_dispatch import discovery, probing, report_files, shadow, startup
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.effective import effective
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.logger_manager import level_named
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.platforms import platform_defaults
from vllm_fl_dispatch.registry import unknown_name

#: The distribution that serves every operator on any device.
REFERENCE = "vllm-fl-reference"
#: The name under which vLLM knows our plugin.
VLLM_PLUGIN = "fl"


def problems(manager: OpManager, scan: discovery.Scan) -> Iterator[str]:
    """Everything that is wrong. `manager` is built."""
    yield from _observing()
    for file, problem in scan.problems:
        yield f"{file}: {problem}"
    for name, used, ignored in scan.shadowed:
        yield f"{name} is installed twice: {used} is used, {ignored} is ignored; remove one"
    for record in manager.records:
        if record.status == "broken":
            yield f"plugin {record.name} of {record.source.origin} is broken: {record.error}"
    for refusal in manager.registry.snapshot().refusals:
        yield f"{refusal.origin}: refused {refusal.what}: {refusal.reason}"
    for impl in manager.registry.orphans():
        yield f"{impl}: {unknown_name('operator', impl.op_name, manager.registry.names())}"
    with contextlib.suppress(PolicyError):  # which is named already
        yield from effective(platform=platform_defaults(manager.records)).warnings
    for where, policy in (("policy", manager.policy), (shadow.VARIABLE, shadow.named())):
        for problem in startup.unknown_names(policy, manager.registry):
            yield f"{where}: {problem}"
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is not None and VLLM_PLUGIN not in parse_names(chosen):
        yield f"VLLM_PLUGINS={chosen!r} does not name {VLLM_PLUGIN!r}: vLLM will not load us"
    yield from _not_there(manager)
    unserved = [op for op in manager.registry.op_names() if manager.resolve(op).selected is None]
    if unserved:
        yield (
            f"nothing can serve {', '.join(unserved)} here but vLLM's own layers; "
            f"{_remedy(manager)}"
        )


def _observing() -> Iterator[str]:
    """What is wrong with variables that observe, and keep nothing from starting."""
    try:
        level_named(environment.read("VLLM_FL_LOG_LEVEL") or "INFO")
    except ValueError as error:
        yield f"VLLM_FL_LOG_LEVEL: {error}"
    folder = environment.read("VLLM_FL_REPORT")
    try:
        if folder is not None:
            report_files.prepare(Path(folder))
    except OSError as error:
        yield f"VLLM_FL_REPORT={folder}: no report is written: {error}"


def _not_there(manager: OpManager) -> Iterator[str]:
    """Implementations that could run here, but for the package that they name. It is looked for
    and not imported: whether the function is in it shows when it is bound, or in `verify`."""
    for impl in (impl for op in manager.registry.names() for impl in manager.registry.impls(op)):
        place = impl.fn if impl.load is None else impl.load
        package = place.partition(":")[0].partition(".")[0] if isinstance(place, str) else ""
        if package and all(manager.ask(asked, impl) for asked in ("installed", "available")):
            try:
                is_there = package in sys.modules or importlib.util.find_spec(package) is not None
            except ValueError:
                is_there = False
            if not is_there:
                yield f"{impl} cannot be loaded: there is no module {package}, which {place} names"


def _remedy(manager: OpManager) -> str:
    """How the operators that nobody serves would be served."""
    if probing.version_of("torch") is None:
        return "torch is not installed"
    status = {
        discovery.normalized(record.source.origin.distribution): record.status
        for record in manager.records
    }.get(REFERENCE)
    return {
        "disabled": f"VLLM_FL_DISABLED_PLUGINS={environment.read('VLLM_FL_DISABLED_PLUGINS')} "
                    f"disables {REFERENCE}, which would",
        "broken": f"{REFERENCE} would, but is broken",
        "loaded": f"{REFERENCE} would, but the policy leaves it out: vllm-fl explain says why",
    }.get(status or "", f"{REFERENCE} would on any device")  # fmt: skip
