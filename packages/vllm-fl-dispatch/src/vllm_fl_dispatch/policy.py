"""What the user wants: an immutable policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.tokens import DEFAULT_ORDERS, parse_order, parse_preference
from vllm_fl_dispatch.types import BackendImplKind

#: How the origins of shipped platform defaults begin. They yield to any preference that a user
#: states; what a user wrote himself does not.
PLATFORM = "platform defaults"


@dataclass(frozen=True)
class SelectionPolicy:
    """Which implementation is wanted for which operator.

    Attributes:
        prefer: ``flagos``, ``vendor`` or ``reference``: which kind comes first by default.
        strict: errors instead of fallback, and instead of warnings about unknown names.
        per_op_order: operator -> order of tokens. It lists all that may be tried.
        deny_vendors: vendors never used.
        allow_vendors: if not None, the only vendors used.
        use_flagos: False excludes kind DEFAULT.
        flagos_blacklist: operators (and ATen operators of FlagGems) that kind DEFAULT leaves out.
        flagos_aten: ATen operators of torch that FlagGems replaces in a worker of vLLM, by the
            names of its functions; ``*``: all that it has.
        flagos_whitelist: if not None, the only operators that kind DEFAULT serves.
        oot_enabled: False replaces no layer of vLLM.
        oot_blacklist: operators whose layers stay vLLM's.
        oot_whitelist: if not None, the only operators whose layers may be replaced.
        compiled: settings that replace the ones above where vLLM compiles the model.
        origins: setting -> where its value came from; not part of the identity of a policy.
    """

    prefer: str = "flagos"
    strict: bool = False
    per_op_order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deny_vendors: frozenset[str] = frozenset()
    allow_vendors: frozenset[str] | None = None
    use_flagos: bool = True
    flagos_blacklist: frozenset[str] = frozenset()
    flagos_whitelist: frozenset[str] | None = None
    flagos_aten: frozenset[str] = frozenset()
    oot_enabled: bool = True
    oot_blacklist: frozenset[str] = frozenset()
    oot_whitelist: frozenset[str] | None = None
    compiled: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise PolicyError(
                    f"{name}: {getattr(self, name)!r} is not accepted; accepted: True, False"
                )
        set_(self, "prefer", parse_preference(self.prefer))
        orders = {op: parse_order(v, f"order of {op}") for op, v in self.per_op_order.items()}
        set_(self, "per_op_order", MappingProxyType(orders))
        for name in _NAMES:
            names = getattr(self, name)
            if names is not None:
                set_(self, name, _names(names, name))
        set_(self, "compiled", MappingProxyType(_checked(self.compiled)))
        set_(self, "origins", MappingProxyType(dict(self.origins)))

    def __hash__(self) -> int:
        return hash(self.identity())

    def __reduce__(self) -> tuple[Any, ...]:
        # Mapping proxies cannot be pickled, and a policy travels to other processes.
        return (_rebuild, (_plain_values(self),))

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
        return cls().with_values(
            origin,
            prefer=prefer,
            strict=strict,
            per_op_order={k: parse_order(v) for k, v in (per_op_order or {}).items()},
            deny_vendors=_names(deny_vendors or (), "deny_vendors"),
            allow_vendors=None if allow_vendors is None else _names(allow_vendors, "allow_vendors"),
        )

    def with_values(self, origin: str, **values: Any) -> SelectionPolicy:
        """A copy with some settings replaced, each remembering `origin`.

        A preference that a user states makes the orders of shipped platform defaults yield, and
        any setting makes the same setting of their `compiled` section yield.
        """
        return self._replaced(origin, values, frozenset(values.get("per_op_order", ())))

    def _replaced(
        self, origin: str, values: Mapping[str, Any], named: frozenset[str] | None
    ) -> SelectionPolicy:
        """See `with_values`.

        Args:
            named: the operators whose orders are given here; None: nothing yields.
        """
        origins = dict(self.origins)
        if named is not None and not origin.startswith(PLATFORM):
            values = self._with_yielding_defaults(values, named)
        for name, value in values.items():
            if isinstance(value, Mapping | frozenset):
                kept = {f"{name}.{key}": origins.get(f"{name}.{key}") for key in value}
                origins = {k: v for k, v in origins.items() if not k.startswith(f"{name}.")}
                old = getattr(self, name)
                for key in value:
                    same = isinstance(value, Mapping) and (old or {}).get(key) == value[key]
                    known = kept[f"{name}.{key}"] if same else None
                    origins[f"{name}.{key}"] = known or origin
            origins[name] = origin
        return replace(self, **values, origins=origins)

    def with_orders(self, origin: str, orders: Mapping[str, tuple[str, ...]]) -> SelectionPolicy:
        """A copy with the orders of some operators replaced; those of others stay."""
        merged = {**self.per_op_order, **orders}
        changed = self._replaced(origin, {"per_op_order": merged}, frozenset(orders))
        given = dict.fromkeys((f"per_op_order.{op}" for op in orders), origin)
        return replace(changed, origins={**changed.origins, **given})

    def with_names(self, origin: str, setting: str, names: frozenset[str]) -> SelectionPolicy:
        """A copy with names added to a list; those that were there keep their origin."""
        before = getattr(self, setting) or frozenset()
        kept = {f"{setting}.{name}": self.origin_of(f"{setting}.{name}") for name in before}
        changed = self.with_values(origin, **{setting: before | names})
        return replace(changed, origins={**changed.origins, **kept})

    def _with_yielding_defaults(
        self, values: Mapping[str, Any], named: frozenset[str]
    ) -> dict[str, Any]:
        changed = dict(values)
        if "prefer" in values and "per_op_order" not in values:
            kept = {
                op: order
                for op, order in self.per_op_order.items()
                if not self.origin_of(f"per_op_order.{op}").startswith(PLATFORM)
            }
            if kept != dict(self.per_op_order):
                changed["per_op_order"] = kept
        if "compiled" not in values and self.origin_of("compiled").startswith(PLATFORM):
            compiled = {k: v for k, v in self.compiled.items() if k not in values}
            orders = self.compiled.get("per_op_order", {})
            if "prefer" not in values and orders:
                compiled["per_op_order"] = {
                    op: order for op, order in orders.items() if op not in named
                }
            else:
                compiled.pop("per_op_order", None)
            if compiled != dict(self.compiled):
                changed["compiled"] = compiled
        return changed

    def for_mode(self, compiled: bool) -> SelectionPolicy:
        """The policy for a model that vLLM compiles, or runs eagerly."""
        if not compiled or not self.compiled:
            return self
        values = dict(self.compiled)
        if "per_op_order" in values:
            values["per_op_order"] = {**self.per_op_order, **values["per_op_order"]}
        origin = f"compiled section of {self.origin_of('compiled')}"
        # Whose section it is has been settled: nothing yields to it.
        return replace(self, compiled={})._replaced(origin, values, named=None)

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

    def objection(self, impl: OpImpl, names: Iterable[str] = ()) -> tuple[str, str] | None:
        """(``denied`` | ``not allowed``, why) if the lists exclude an implementation.

        Args:
            names: names under which lists may speak of its operator: its own and its group's.
        """
        if impl.kind is BackendImplKind.VENDOR and impl.vendor:
            return self._excluded("vendor", [impl.vendor.lower()], "deny_vendors", "allow_vendors")
        if impl.kind is BackendImplKind.DEFAULT:
            if not self.use_flagos:
                return "denied", f"FlagGems is switched off by {self.origin_of('use_flagos')}"
            listed = list(names) or [impl.op_name]
            return self._excluded("operator", listed, "flagos_blacklist", "flagos_whitelist")
        return None

    def layer_objection(self, names: Iterable[str]) -> str | None:
        """Why the layers of an operator stay vLLM's, if the out-of-tree lists say so."""
        if not self.oot_enabled:
            return f"layers are left alone by {self.origin_of('oot_enabled')}"
        found = self._excluded("operator", list(names), "oot_blacklist", "oot_whitelist")
        return None if found is None else found[1]

    def _excluded(
        self, what: str, names: list[str], never: str, only: str
    ) -> tuple[str, str] | None:
        denied, allowed = getattr(self, never), getattr(self, only)
        for name in names:
            if name in denied:
                origin = self.origins.get(f"{never}.{name}") or self.origin_of(never)
                return "denied", f"{what} {name} is denied by {origin}"
        if allowed is not None and not any(name in allowed for name in names):
            return "not allowed", f"{what} {names[0]} is not allowed by {self.origin_of(only)}"
        return None

    def identity(self) -> tuple[Any, ...]:
        """All that changes a selection, as plain values in a fixed order."""
        return tuple(_frozen(getattr(self, f.name)) for f in fields(self) if f.name != "origins")


_SWITCHES = ("strict", "use_flagos", "oot_enabled")
_VENDORS = ("deny_vendors", "allow_vendors")
_NAMES = (*_VENDORS, "flagos_blacklist", "flagos_whitelist", "flagos_aten", "oot_blacklist",
          "oot_whitelist")  # fmt: skip


def _names(value: Iterable[str], setting: str) -> frozenset[str]:
    if isinstance(value, str):  # a set of letters otherwise
        raise PolicyError(f"{setting}: expected names, such as {{{value!r}}}; found {value!r}")
    names = frozenset(name.strip() for name in value if name.strip())
    return frozenset(map(str.lower, names)) if setting in _VENDORS else names


def _checked(section: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a compiled section, as a policy holds them."""
    accepted = {f.name for f in fields(SelectionPolicy)} - {"compiled", "origins"}
    unknown = sorted(set(section) - accepted)
    if unknown:
        raise PolicyError(f"compiled: unknown {unknown}; accepted: {', '.join(sorted(accepted))}")
    checked = SelectionPolicy(**section) if section else None
    return {name: _plain(getattr(checked, name)) for name in section}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((key, _frozen(each)) for key, each in value.items()))
    return tuple(sorted(value)) if isinstance(value, frozenset) else value


def _plain_values(policy: SelectionPolicy) -> dict[str, Any]:
    return {f.name: _plain(getattr(policy, f.name)) for f in fields(policy)}


def _rebuild(values: Mapping[str, Any]) -> SelectionPolicy:
    return SelectionPolicy(**values)
