"""What the user wants: an immutable policy, and the words it is written in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.types import BackendImplKind, OpImpl

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
    tokens = tuple(dict.fromkeys(parse_token(part, where) for part in parts))
    if not tokens:
        raise PolicyError(f"{where}: an empty order; accepted: one or more of {ACCEPTED_TOKENS}")
    return tokens


def parse_preference(text: str, where: str = "prefer") -> str:
    """Return one of `PREFERENCES`, or raise `PolicyError`."""
    value = text.strip().lower()
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


@dataclass(frozen=True)
class SelectionPolicy:
    """Which implementation is wanted for which operator.

    Attributes:
        prefer: ``flagos``, ``vendor`` or ``reference``: which kind comes first by default.
        strict: errors instead of fallback, and instead of warnings about unknown names.
        per_op_order: operator -> order of tokens. It lists all that may be tried.
        deny_vendors: vendors never used.
        allow_vendors: if not None, the only vendors used.
        origins: setting -> where its value came from; not part of the identity of a policy.
    """

    prefer: str = "flagos"
    strict: bool = False
    per_op_order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deny_vendors: frozenset[str] = frozenset()
    allow_vendors: frozenset[str] | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "prefer", parse_preference(self.prefer))
        orders = {
            op: parse_order(order, f"order of {op}") for op, order in self.per_op_order.items()
        }
        set_(self, "per_op_order", MappingProxyType(orders))
        set_(self, "deny_vendors", _vendors(self.deny_vendors))
        if self.allow_vendors is not None:
            set_(self, "allow_vendors", _vendors(self.allow_vendors))
        set_(self, "origins", MappingProxyType(dict(self.origins)))

    def __hash__(self) -> int:
        return hash(self.identity())

    def __reduce__(self) -> tuple[Any, ...]:
        # Mapping proxies cannot be pickled, and a policy travels to other processes.
        state = {
            "prefer": self.prefer,
            "strict": self.strict,
            "per_op_order": dict(self.per_op_order),
            "deny_vendors": self.deny_vendors,
            "allow_vendors": self.allow_vendors,
            "origins": dict(self.origins),
        }
        return (_rebuild, (state,))

    @classmethod
    def from_dict(
        cls,
        prefer: str = "flagos",
        strict: bool = False,
        per_op_order: Mapping[str, Iterable[str] | str] | None = None,
        deny_vendors: Iterable[str] | None = None,
        allow_vendors: Iterable[str] | None = None,
        origin: str = "code",
    ) -> SelectionPolicy:
        """Build a policy from plain values; every given value gets `origin`."""
        given: dict[str, Any] = {
            "prefer": prefer,
            "strict": strict,
            "per_op_order": {k: parse_order(v) for k, v in (per_op_order or {}).items()},
            "deny_vendors": frozenset(deny_vendors or ()),
            "allow_vendors": None if allow_vendors is None else frozenset(allow_vendors),
        }
        return cls().with_values(origin, **given)

    def with_values(self, origin: str, **values: Any) -> SelectionPolicy:
        """A copy with some settings replaced, each remembering `origin`."""
        origins = dict(self.origins)
        for name, value in values.items():
            if name == "per_op_order":
                origins = {k: v for k, v in origins.items() if not k.startswith("per_op_order.")}
                origins.update({f"per_op_order.{op}": origin for op in value})
            else:
                origins[name] = origin
        return replace(self, **values, origins=origins)

    def order_for(self, op_name: str, group: str | None = None) -> tuple[tuple[str, ...], str]:
        """The order of tokens for an operator, and which setting it came from."""
        for name in (op_name, group):
            if name is not None and name in self.per_op_order:
                setting = f"per_op_order.{name}"
                return self.per_op_order[name], f"{setting} ({self.origin_of(setting)})"
        return DEFAULT_ORDERS[self.prefer], f"prefer={self.prefer} ({self.origin_of('prefer')})"

    def origin_of(self, setting: str) -> str:
        """Where the value of a setting came from, e.g. ``environment VLLM_FL_PREFER``."""
        return self.origins.get(setting, "default")

    def vendor_objection(self, vendor: str) -> tuple[str, str] | None:
        """(``denied`` | ``not allowed``, origin) if the lists exclude this vendor."""
        name = vendor.lower()
        if name in self.deny_vendors:
            return "denied", self.origin_of("deny_vendors")
        if self.allow_vendors is not None and name not in self.allow_vendors:
            return "not allowed", self.origin_of("allow_vendors")
        return None

    def identity(self) -> tuple[Any, ...]:
        """All that changes a selection, as plain values in a fixed order."""
        allowed = None if self.allow_vendors is None else tuple(sorted(self.allow_vendors))
        orders = tuple(sorted(self.per_op_order.items()))
        return (self.prefer, self.strict, orders, tuple(sorted(self.deny_vendors)), allowed)


def _vendors(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names if name.strip())


def _rebuild(state: Mapping[str, Any]) -> SelectionPolicy:
    return SelectionPolicy(**cast("Any", state))
