"""The words that a policy is written in: tokens, orders, preferences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.types import BackendImplKind

#: Tokens of kinds; ``vendor:NAME`` and ``impl:ID`` name one vendor and one implementation.
KIND_TOKENS = tuple(kind.value for kind in BackendImplKind)
ACCEPTED_TOKENS = "flagos, vendor, vendor:NAME, reference, stock, impl:ID"
PREFERENCES = ("flagos", "vendor", "reference")

#: The order of tokens when nothing is said about an operator. `stock` concerns layers only; it
#: stands before `reference` because vLLM's own layer is never worse, except when the reference
#: was asked for.
DEFAULT_ORDERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flagos": ("flagos", "vendor", "stock", "reference"),
        "vendor": ("vendor", "flagos", "stock", "reference"),
        "reference": ("reference", "flagos", "vendor", "stock"),
    }
)

_NAMED = re.compile(r"^(vendor|impl):([A-Za-z0-9_.\-]+)$")


def parse_token(text: str, where: str = "order") -> str:
    """Return the token in its canonical form, or raise `PolicyError` naming what is accepted."""
    token = re.sub(r"\s*:\s*", ":", text.strip())
    head, colon, name = token.partition(":")
    token = head.lower() + colon + (name.lower() if head.lower() == "vendor" else name)
    if token in KIND_TOKENS or _NAMED.match(token):
        return token
    raise PolicyError(f"{where}: {text!r} is not a token of an order; accepted: {ACCEPTED_TOKENS}")


def parse_order(value: str | Iterable[str], where: str = "order") -> tuple[str, ...]:
    """Take ``"vendor:acme|reference"`` or a list of tokens; repeated tokens count once."""
    parts = value.split("|") if isinstance(value, str) else list(value)
    for part in parts:
        if not isinstance(part, str):
            raise PolicyError(f"{where}: {part!r} is no text; accepted: {ACCEPTED_TOKENS}")
    tokens = tuple(dict.fromkeys(parse_token(part, where) for part in parts))
    if not tokens:
        raise PolicyError(f"{where}: an empty order; accepted: one or more of {ACCEPTED_TOKENS}")
    return tokens


def parse_preference(text: str, where: str = "prefer") -> str:
    """Return one of `PREFERENCES`, or raise `PolicyError`."""
    value = text.strip().lower() if isinstance(text, str) else ""
    if value not in PREFERENCES:
        raise PolicyError(f"{where}: {text!r} is not accepted; accepted: {', '.join(PREFERENCES)}")
    return value


def token_matches(token: str, impl: OpImpl) -> bool:
    """Does this (canonical) token stand for this implementation?"""
    head, _, name = token.partition(":")
    if head == "impl":
        return name == impl.impl_id
    if name:
        return impl.kind is BackendImplKind.VENDOR and name == (impl.vendor or "").lower()
    return head == impl.kind.value
