"""What the general plugin does in a process of vLLM: replace layer classes."""

from __future__ import annotations

import os

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.scopes import open_scope
from vllm_fl_dispatch.types import BackendImplKind

logger = get_logger(__name__)


def activate() -> list[str]:
    """Replace the layer classes for which the policy chooses something other than vLLM's own.

    Idempotent. Returns the names of the classes that are replaced now. A class that another
    plugin has replaced is left to it.
    """
    if not environment.enabled():
        logger.info("vllm-fl is switched off by a variable: vLLM runs as without it")
        return []
    manager = get_default_manager()
    manager.ensure_built()
    if open_scope(manager) is not None and os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
        logger.warning(
            "a policy scope is open around vLLM's start; it does not reach the processes that vLLM "
            "starts: use set_global_policy, which does"
        )
    from vllm_fl_dispatch.vllm import (
        attention,
        compat,
        compat_attention,
        fingerprint,
        layers,
        ranks,
    )
    from vllm_fl_dispatch.vllm.replaceable import replaceable

    fingerprint.publish(manager)
    ranks.watch(manager)
    if not compat.is_ours():
        # Always: CUSTOM may name it where the policy does not.
        attention.install(manager, compat.platform_class())
    replaced = []
    for layer in replaceable():
        name, present = layer.base.__name__, layer.site.current()
        if present is not None and not issubclass(present, layers.Dispatched):
            logger.warning(
                "%s is already replaced by %s.%s, which stays",
                name,
                present.__module__,
                present.__name__,
            )
            continue
        wanted = any(_wanted(manager, op, layer.family.fl_has_stock()) for op in layer.ops)
        if wanted and present is None:
            layer.site.put(layers.replacement(layer.base, layer.family))
        elif not wanted and present is not None:
            layer.site.remove()
        if wanted:
            replaced.append(name)
    compat.forget_rotary_layers()
    compat_attention.forget_choices()
    if replaced:
        logger.debug("layers dispatched in this process: %s", ", ".join(sorted(set(replaced))))
    return replaced


def _wanted(manager: OpManager, op: str, stock: bool) -> bool:
    """Shall layers with this operator be replaced? `stock`: can vLLM's own code serve them?"""
    policy = manager.current_policy()
    if policy.layer_objection(manager.registry.spec(op).names):
        return False
    # A report shows vLLM's own layers as well, so they are replaced in order to be seen; a shadow
    # needs them to be called through us.
    if manager.report.enabled or (manager.shadow is not None and manager.shadow.order_for(op)):
        return True
    return any(_is_dispatched(manager, op, compiled, stock) for compiled in (False, True))


def _is_dispatched(manager: OpManager, op: str, compiled: bool, stock: bool) -> bool:
    """Does the policy choose something other than vLLM's own layer in this mode?"""
    policy = manager.current_policy().for_mode(compiled)
    resolution = manager.resolve(op, policy=policy, stock=stock)
    if resolution.selected is not None:
        return resolution.selected.kind is not BackendImplKind.STOCK
    if not policy.strict:
        warning_once(
            logger,
            f"{op}: no implementation fits the policy, vLLM's own layers stay\n"
            f"{resolution.table()}",
        )
    # Under a strict policy the layer is replaced, and raises when it is built.
    return policy.strict
