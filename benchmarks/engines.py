"""Engines of vLLM in this process, each built under a policy of its own; what they ran on."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from vllm_fl_dispatch.vllm.detection import has_kernels

OFF = {"VLLM_FL_PREFER_ENABLED": "0"}
#: name -> what to set on top of the defaults of the platform; None: the plugin is not active
POLICIES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "off": {"environ": OFF},
    "default": {},
    "vendor": {"prefer": "vendor", "orders": "vendor|reference"},
    "flagos": {"prefer": "flagos", "orders": "flagos|reference"},
    "reference": {"prefer": "reference", "orders": "reference"},
}


def prepare() -> None:
    """Set up this process for several engines, before vLLM is imported."""
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # Engines are built under one policy each, below; vLLM's own loading would activate just
        # one. A vLLM without its compiled modules needs our platform, which bears the same name.
        "VLLM_PLUGINS": "" if has_kernels() else "fl",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def policy_name(text: str) -> str:
    """An argument that names one of `POLICIES`, or a policy file as `vllm-fl tune` writes it."""
    if text not in POLICIES and not Path(text).is_file():
        known = ", ".join(POLICIES)
        raise argparse.ArgumentTypeError(f"{text!r} is no file and none of {known}")
    return text


def build(policy: str, **options: Any) -> Any:
    """A `vllm.LLM` whose layers are bound under a `policy`, which stays that of the process."""
    import vllm

    from vllm_fl_dispatch.vllm.plugin import activate

    settings = POLICIES.get(policy, {})
    clear()
    with mock.patch.dict(os.environ, (settings or {}).get("environ", {})):
        use(policy)
        if settings is not None:
            print(f"{policy}: layers replaced: {activate()}", file=sys.stderr)
        llm = vllm.LLM(
            skip_tokenizer_init=True,
            distributed_executor_backend="uni",
            enable_prefix_caching=False,
            **options,
        )
    clear()
    return llm


def use(policy: str) -> None:
    """Make a `policy` that of the process: no scope reaches opaque operators of compiled code."""
    from vllm_fl_dispatch import (
        get_default_manager,
        policy_from_config,
        reset_global_policy,
        set_global_policy,
    )

    reset_global_policy()
    manager = get_default_manager()
    manager.report.enabled = False
    if policy not in POLICIES:
        set_global_policy(policy_from_config(policy))
    elif "orders" in (settings := POLICIES[policy] or {}):
        ops = [op for op in manager.registry.op_names() if manager.registry.impls(op)]
        orders: Any = dict.fromkeys(ops, settings["orders"])
        chosen = manager.policy.with_values("benchmark", prefer=settings["prefer"])
        set_global_policy(chosen.with_values("benchmark", per_op_order=orders))


def clear() -> None:
    """Let vLLM construct its own classes again."""
    from vllm_fl_dispatch.vllm.layers import Dispatched
    from vllm_fl_dispatch.vllm.replaceable import replaceable

    for layer in replaceable():
        if issubclass(layer.site.current() or object, Dispatched):
            layer.site.remove()


def runner(llm: Any) -> Any:
    """The model runner of an engine."""
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def served(llm: Any) -> dict[str, str]:
    """class of a layer -> the function it runs, as a check that policies were in force."""
    found = {}
    for module in runner(llm).model.modules():
        method = getattr(module, "_forward_method", None)
        if method is not None:
            found[type(module).__name__] = getattr(method, "__qualname__", str(method))
    return found


def selected(llm: Any) -> dict[str, str]:
    """operator -> the implementation that the policy in use selects for calls of no layer."""
    from vllm_fl_dispatch import get_default_manager

    manager = get_default_manager()
    compiled = not llm.llm_engine.vllm_config.model_config.enforce_eager
    policy = manager.policy.for_mode(compiled)
    found = {op: manager.resolve(op, policy=policy).selected for op in manager.registry.op_names()}
    return {op: impl.impl_id for op, impl in found.items() if impl is not None}


def machine() -> dict[str, str]:
    """What it ran on."""
    import torch
    import vllm

    from vllm_fl_dispatch.probing import version_of

    on_device = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if on_device else platform.machine(),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "triton": version_of("triton") or "",
        "vllm": vllm.__version__,
        "compiled": "with kernels" if has_kernels() else "without kernels",
        "flag_gems": version_of("flag-gems") or version_of("flag_gems") or "",
        "python": platform.python_version(),
    }


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().split("  ")[1].strip() if path.exists() else "none"
