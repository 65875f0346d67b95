"""What the general plugin does in a process of vLLM: replace layer classes."""

from __future__ import annotations

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.values import parse_names
from vllm_fl_dispatch.logger_manager import get_logger
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.types import BackendImplKind

logger = get_logger(__name__)


def activate() -> list[str]:
    """Replace the layer classes for which the policy chooses something other than vLLM's own.

    Idempotent. Returns the names of the classes that are replaced now. A class that another
    plugin has replaced is left to it.
    """
    if not environment.enabled() or not environment.switch("VLLM_FL_OOT_ENABLED", True):
        return []
    manager = get_default_manager()
    manager.ensure_built()
    from vllm_fl_dispatch.vllm import compat, fingerprint, layers

    fingerprint.publish(manager)
    replaced = []
    for base, family, ops in layers.replaceable():
        registry = compat.oot_registry(base)
        present = registry.get(base.__name__)
        if present is not None and not issubclass(present, layers.Dispatched):
            logger.warning(
                "%s is already replaced by %s.%s, which stays",
                base.__name__,
                present.__module__,
                present.__name__,
            )
            continue
        wanted = any(_wanted(manager, op) for op in ops)
        if wanted and present is None:
            compat.register_oot(base, layers.replacement(base, family))
        elif not wanted and present is not None:
            del registry[base.__name__]
        if wanted:
            replaced.append(base.__name__)
    if replaced:
        logger.info("layers dispatched in this process: %s", ", ".join(sorted(set(replaced))))
    return replaced


def _wanted(manager: OpManager, op: str) -> bool:
    """Shall layers with this operator be replaced?"""
    only = environment.read("VLLM_FL_OOT_WHITELIST")
    never = environment.read("VLLM_FL_OOT_BLACKLIST")
    if only is not None and op not in parse_names(only):
        return False
    if never is not None and op in parse_names(never):
        return False
    selected = manager.resolve(op, stock=True).selected
    # A report shows vLLM's own layers as well, so they are replaced in order to be seen.
    is_stock = selected is None or selected.kind is BackendImplKind.STOCK
    return manager.report.enabled or not is_stock
