"""What differs between vLLM releases for attention backends."""

from __future__ import annotations

import inspect
import sys
from typing import Any


def forget_choices() -> None:
    """vLLM remembers which class it got for a request; under another policy it must ask again."""
    selector = sys.modules.get("vllm.v1.attention.selector")
    remembered = getattr(selector, "_cached_get_attn_backend", None)
    if remembered is not None:
        remembered.cache_clear()


def is_free_custom(member: Any) -> bool:
    """Is this the member ``CUSTOM`` of vLLM's attention backends, and registered by nobody?"""
    return member.name == "CUSTOM" and not member.is_overridden()


def path_of(member: Any, otherwise: str) -> str:
    """The path of the class that a member stands for; some, for vision only, have none."""
    try:
        return str(member.get_path())
    except ValueError:
        return otherwise


def attention_problems(candidate: Any, request: Any = None) -> list[str]:
    """Why vLLM could not use a class as attention backend; nothing where it could.

    Args:
        request: an `AttentionSelectorConfig` that it must be able to serve; None asks about the
            class alone.
    """
    from vllm.platforms import current_platform
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if not inspect.isclass(candidate) or not issubclass(candidate, AttentionBackend):
        return [f"{candidate!r} is no subclass of vllm.v1.attention.backend.AttentionBackend"]
    backend: Any = candidate
    missing = sorted(backend.__abstractmethods__)
    if missing:
        return [f"it lacks {', '.join(missing)}, which this vLLM calls"]
    if backend.get_name() not in AttentionBackendEnum.__members__:
        return [f"its name {backend.get_name()!r} is no member of AttentionBackendEnum: CUSTOM is"]
    if request is None:
        return []
    known = inspect.signature(backend.validate_configuration).parameters
    facts = {name: value for name, value in request._asdict().items() if name in known}
    if "device_capability" in known:
        facts["device_capability"] = current_platform.get_device_capability()
    return list(backend.validate_configuration(**facts))
