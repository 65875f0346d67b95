"""Which attention backend serves a layer: the selector ``attention_backend`` inside vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm_fl_dispatch.contracts import missing_options
from vllm_fl_dispatch.errors import NoImplementation, RequestError, in_brief
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.selectors import ATTENTION_BACKEND
from vllm_fl_dispatch.types import BackendImplKind, Query
from vllm_fl_dispatch.vllm import compat, compat_attention

logger = get_logger(__name__)
NAME = ATTENTION_BACKEND.name


def is_dispatched(manager: OpManager) -> bool:
    """Does the policy choose another attention than a stock platform's own, in either mode?"""
    for compiled in (False, True):
        policy = manager.current_policy().for_mode(compiled)
        selected = manager.resolve(NAME, policy=policy, stock=True).selected
        if selected is not None and selected.kind is not BackendImplKind.STOCK:
            return True
    return False


def choose(
    manager: OpManager, explicit: Any, request: Any, own: Callable[[], str] | None = None
) -> str:
    """The import path of the class that serves a request of vLLM.

    Args:
        explicit: the member of vLLM's enumeration that the user named, or None. It is honoured or
            refused, or left to a stock platform; ``CUSTOM``, unless somebody registered a class
            for it, stands for us.
        request: vLLM's `AttentionSelectorConfig`.
        own: what a stock platform would choose; None where there is no such platform.

    Raises:
        RequestError: the user's class cannot serve the request, or nothing could.
        NoImplementation: the policy leaves no class for it; the message has every reason.
    """
    if explicit is not None and not compat_attention.is_free_custom(explicit):
        return _honoured(explicit, request) if own is None else _left_to(own, explicit)
    if explicit is None and own is not None and not is_dispatched(manager):
        return own()
    facts = {fact: getattr(request, fact, None) for fact in ATTENTION_BACKEND.fact_names}
    facts["device"] = compat.device_type()
    query = Query(NAME, facts)
    objection = ATTENTION_BACKEND.objection(query)
    policy = manager.current_policy().for_mode(compat.is_compiling_model())
    refused: dict[str, str] = {}
    while True:
        resolution = manager.resolve(
            NAME,
            query=query,
            policy=policy,
            stock=own is not None and explicit is None,
            refused=refused,
        )
        impl = resolution.selected
        if impl is not None and impl.kind is BackendImplKind.STOCK and own is not None:
            return own()
        if objection is not None:
            raise RequestError(f"{NAME}: {objection}; asked for: {query}")
        if impl is None:
            raise NoImplementation(resolution)
        try:
            path = _asked(manager, impl, facts)
            problems = compat_attention.attention_problems(compat.import_path(path), request)
        # An implementation may raise anything, from OpNotSupported to what an import raises.
        except Exception as error:  # noqa: BLE001
            path, problems = "", [in_brief(error)]
        if not problems:
            manager.announce(ATTENTION_BACKEND, resolution, impl)
            return path
        refused[impl.impl_id] = "; ".join(problems)
        warning_once(logger, f"{impl} is passed over for {query}: {refused[impl.impl_id]}")


def _asked(manager: OpManager, impl: OpImpl, facts: Mapping[str, Any]) -> str:
    """What an implementation answers; it is told those facts that it takes."""
    fn = manager.load(ATTENTION_BACKEND, impl)
    if fn is None:
        raise RequestError("it could not be loaded")
    hidden = missing_options(ATTENTION_BACKEND, fn)
    path = fn(**{name: value for name, value in facts.items() if name not in hidden})
    if not isinstance(path, str):
        raise RequestError(f"it answered {path!r}, not an import path")
    return path.replace(":", ".")


def _honoured(explicit: Any, request: Any) -> str:
    """The path of the class that the user named, if it can serve here."""
    try:
        path = str(explicit.get_path())
        problems = compat_attention.attention_problems(compat.import_path(path), request)
    # Importing a backend of another device may raise anything.
    except Exception as error:  # noqa: BLE001
        path, problems = explicit.name, [in_brief(error)]
    if problems:
        raise RequestError(
            f"--attention-backend {explicit.name} ({path}) cannot serve this model: "
            f"{'; '.join(problems)}. Accepted: a class that can, CUSTOM (what the policy selects), "
            "or nothing (the same)"
        )
    return path


def _left_to(own: Callable[[], str], explicit: Any) -> str:
    """What a stock platform makes of the user's choice, and a word where that is something else."""
    path = own()
    if path != compat_attention.path_of(explicit, path):
        warning_once(
            logger,
            f"--attention-backend {explicit.name} is not what this platform of vLLM uses: {path}. "
            f"An order for {NAME} in the policy, or CUSTOM, is left to vllm-fl",
        )
    return path


_installed: set[type] = set()


def install(manager: OpManager, platform: Any) -> None:
    """Let a stock platform ask the selector before it decides itself. Idempotent."""
    if platform in _installed:
        return
    _installed.add(platform)
    own = platform.get_attn_backend_cls

    def get_attn_backend_cls(
        _: type, selected_backend: Any, attn_selector_config: Any, *args: Any, **options: Any
    ) -> str:
        def stock() -> str:
            return str(own(selected_backend, attn_selector_config, *args, **options))

        return choose(manager, selected_backend, attn_selector_config, stock)

    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
