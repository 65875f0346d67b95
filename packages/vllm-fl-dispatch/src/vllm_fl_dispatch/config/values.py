"""Parsers of single values: one spelling of each kind for the environment and for YAML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.tokens import DEFAULT_ORDERS, parse_order, parse_preference

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def parse_bool(text: str, where: str, default: bool = False) -> bool:
    """Read a switch. Case and blanks do not matter; empty means `default`."""
    value = text.strip().lower()
    if not value:
        return default
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise PolicyError(
        f"{where}: {text!r} is not a switch; accepted: "
        f"{', '.join(sorted(_TRUE))} or {', '.join(sorted(_FALSE))}"
    )


def parse_names(text: str) -> tuple[str, ...]:
    """Read a comma list of names; blanks around names and empty items do not count."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_flaggems_attention(text: str, where: str) -> dict[str, tuple[str, ...]]:
    """Read the switch that puts FlagGems' attention before all others; off says nothing."""
    order = ("impl:default.flagos", "flagos", "vendor", "stock", "reference")
    return {"attention_backend": order} if parse_bool(text, where) else {}


def parse_aten(value: bool | str | Iterable[str]) -> frozenset[str]:
    """Read which ATen operators FlagGems replaces: a switch for all or none, or names."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in _TRUE | _FALSE:
            return frozenset(parse_names(value))
        value = word in _TRUE
    if isinstance(value, bool):
        return frozenset({"*"} if value else ())
    return frozenset(value)


def parse_per_op(text: str, where: str) -> dict[str, tuple[str, ...]]:
    """Read ``op1=a|b;op2=x``.

    Raises:
        PolicyError: an item without ``=``, an operator named twice, or a bad token.
    """
    orders: dict[str, tuple[str, ...]] = {}
    for item in filter(str.strip, text.split(";")):
        name, equals, order = (part.strip() for part in item.partition("="))
        if not equals or not name:
            raise PolicyError(
                f"{where}: {item.strip()!r} is not of the form op=token|token; "
                "example: rms_norm=vendor:cuda|reference;silu_and_mul=flagos"
            )
        if name in orders:
            raise PolicyError(f"{where}: {name!r} is named twice")
        orders[name] = parse_order(order, f"{where}, {name}")
    return orders


def parse_sampling(text: str, where: str) -> dict[str, int]:
    """Read ``first=8;every=100``; either may be left out.

    Raises:
        PolicyError: another name, one given twice, or no whole number from 0 on.
    """
    values: dict[str, int] = {}
    for item in filter(str.strip, text.split(";")):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in ("first", "every") or not value.isdecimal():
            raise PolicyError(
                f"{where}: {item.strip()!r} is not accepted; accepted: first=N (the first N calls "
                "of each layer) and every=N (every n-th after them; 0: none)"
            )
        if name in values:
            raise PolicyError(f"{where}: {name!r} is named twice")
        values[name] = int(value)
    return values


def _without_repetition(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise PolicyError(f"{where}: {name!r} is named twice")
    return dict(pairs)


def parse_op_config(text: str, where: str) -> dict[str, tuple[str, ...]]:
    """Read ``{"rms_norm": "vendor"}``, or a path to a file with that: the kind that comes first.

    Raises:
        PolicyError: not readable, not JSON, not an object, or a kind that does not exist.
    """
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text.strip()).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PolicyError(
                f"{where}: neither a JSON object nor a readable file: {error}"
            ) from error
    try:
        data = json.loads(text, object_pairs_hook=partial(_without_repetition, where=where))
    except PolicyError:
        raise
    except ValueError as error:
        raise PolicyError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise PolicyError(f"{where}: expected an object, operator to kind; found {data!r}")
    return {
        str(op): DEFAULT_ORDERS[parse_preference(str(kind), f"{where}, {op}")]
        for op, kind in data.items()
    }
