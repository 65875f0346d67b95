"""Every environment variable of the core, as a table, and the settings that they spell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch.config.values import (
    parse_aten,
    parse_bool,
    parse_flaggems_attention,
    parse_names,
    parse_op_config,
    parse_per_op,
    parse_sampling,
)
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.registry import nearest
from vllm_fl_dispatch.tokens import parse_preference

PREFIX = "VLLM_FL_"


@dataclass(frozen=True)
class Variable:
    """One documented variable.

    `parse` takes (text, name of the variable) and raises PolicyError; `setting` is the field of
    `SelectionPolicy` that its value replaces, if it is that simple.
    """

    name: str
    help: str
    parse: Callable[[str, str], Any] | None = None
    setting: str | None = None


def _names(text: str, where: str) -> frozenset[str]:
    names = parse_names(text)
    if not names:
        raise PolicyError(f"{where}: {text!r} names nothing; accepted: names, comma list")
    return frozenset(names)


def parse_seconds(text: str, where: str = "VLLM_FL_RANK_TIMEOUT") -> float:
    """A positive number, or PolicyError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise PolicyError(f"{where}: {text!r} is not accepted; accepted: seconds, such as 60")
    return seconds


VARIABLES: tuple[Variable, ...] = (
    Variable("VLLM_FL_PREFER_ENABLED", "0 leaves vLLM untouched", parse_bool),
    Variable("VLLM_FL_ENABLED", "same as VLLM_FL_PREFER_ENABLED", parse_bool),
    Variable("VLLM_FL_CONFIG", "path of a YAML policy; replaces all other settings"),
    Variable("VLLM_FL_PLATFORM", "asks for PlatformFL on this device (cuda, cpu ...), "
             "and for its platform defaults; by default what is detected"),
    Variable("VLLM_FL_PREFER", "flagos, vendor or reference", parse_preference, "prefer"),
    Variable("VLLM_FL_STRICT", "1: errors instead of fallback", parse_bool, "strict"),
    Variable("VLLM_FL_OP_CONFIG", "JSON or its path, operator to kind; see VLLM_FL_PER_OP",
             parse_op_config),
    Variable("VLLM_FL_PER_OP", "op1=token|token;op2=token", parse_per_op),
    Variable("VLLM_FL_ALLOW_VENDORS", "only these vendors, comma list", _names, "allow_vendors"),
    Variable("VLLM_FL_DENY_VENDORS", "never these vendors, comma list", _names, "deny_vendors"),
    Variable("USE_FLAGGEMS", "0: never FlagGems", parse_bool, "use_flagos"),
    Variable("VLLM_FL_USE_FLAGGEMS_ATTN", "1: FlagGems' attention before all others",
             parse_flaggems_attention),
    Variable("VLLM_FL_FLAGOS_WHITELIST", "only these operators by FlagGems, comma list",
             _names, "flagos_whitelist"),
    Variable("VLLM_FL_FLAGOS_BLACKLIST", "these operators never by FlagGems; replaces the list of "
             "the platform defaults", _names, "flagos_blacklist"),
    Variable("VLLM_FL_FLAGOS_BLACKLIST_APPEND", "the same, added to that list", _names),
    Variable("VLLM_FL_FLAGOS_ATEN", "ATen operators that FlagGems replaces in vLLM's workers: 0 "
             "(default), 1 (all), or a comma list", lambda text, _: parse_aten(text),
             "flagos_aten"),
    Variable("VLLM_FL_OOT_ENABLED", "0: replace no vLLM layer", parse_bool, "oot_enabled"),
    Variable("VLLM_FL_OOT_WHITELIST", "operators whose layers may be replaced, comma list",
             _names, "oot_whitelist"),
    Variable("VLLM_FL_OOT_BLACKLIST", "operators whose layers stay vLLM's, comma list",
             _names, "oot_blacklist"),
    Variable("VLLM_FL_PLUGIN_MODULES", "modules to load as plugins, comma list"),
    Variable("VLLM_FL_DISABLED_PLUGINS", "plugins not even imported, comma list"),
    Variable("VLLM_FL_REPORT", "folder for the record of what ran"),
    Variable("VLLM_FL_RANK_TIMEOUT", "seconds that ranks wait for one another at start-up; 60",
             parse_seconds),
    Variable("VLLM_FL_SHADOW", "op1=token|token;*=token: what runs beside the selected "
             "implementations, to be compared", parse_per_op),
    Variable("VLLM_FL_SHADOW_SAMPLE", "first=N;every=N: which calls of a layer are compared",
             parse_sampling),
    Variable("VLLM_FL_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR"),
    Variable("VLLM_FL_DISPATCH_DEBUG", "1: log the whole resolution at each binding", parse_bool),
    Variable("VLLM_FL_CARRIED_POLICY", "written by set_global_policy for the workers; do not set"),
    Variable("VLLM_FL_REPORT_RUN", "computed: which start of a server a report is of; do not set"),
    Variable("VLLM_FL_FINGERPRINT", "computed: identity of the selection; do not set"),
)  # fmt: skip
#: What a policy file replaces.
POLICY_VARIABLES = frozenset(variable.name for variable in VARIABLES if variable.setting) | {
    "VLLM_FL_FLAGOS_BLACKLIST_APPEND",
    "VLLM_FL_OP_CONFIG",
    "VLLM_FL_PER_OP",
    "VLLM_FL_PLATFORM",
    "VLLM_FL_USE_FLAGGEMS_ATTN",
}


def read(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value of a variable, or None where it is unset or blank."""
    value = (os.environ if environ is None else environ).get(name)
    return value if value is not None and value.strip() else None


def switch(name: str, default: bool, environ: Mapping[str, str] | None = None) -> bool:
    """A boolean variable; raises PolicyError for a spelling that is none."""
    value = read(name, environ)
    return default if value is None else parse_bool(value, name, default)


def parsed(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """The value of a variable as its row of the table parses it, or None where it is unset.

    Raises:
        PolicyError: a wrong value.
    """
    text = read(name, environ)
    parse = next(variable.parse for variable in VARIABLES if variable.name == name)
    return None if text is None or parse is None else parse(text, name)


def wrong(*, policy: bool) -> Iterator[tuple[str, PolicyError]]:
    """(name, error) of every variable whose value is not accepted; with those of a policy or not,
    which a policy file may stand for."""
    for variable in VARIABLES:
        if policy or variable.name not in POLICY_VARIABLES:
            try:
                parsed(variable.name)
            except PolicyError as error:
                yield variable.name, error


def enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Is the plugin switched on? Either name switches it off."""
    return all(
        switch(name, True, environ) for name in ("VLLM_FL_PREFER_ENABLED", "VLLM_FL_ENABLED")
    )


def unknown_variables(environ: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """(name, nearest known name or "") of every VLLM_FL_* variable that nothing here reads."""
    known = {variable.name for variable in VARIABLES}
    for name in sorted(os.environ if environ is None else environ):
        if name.startswith(PREFIX) and name not in known:
            yield name, nearest(name, known)


def with_environment(
    base: SelectionPolicy, environ: Mapping[str, str] | None = None
) -> SelectionPolicy:
    """`base` with every setting that a variable gives replaced (not merged) by its value.

    Raises:
        PolicyError: a wrong value, or two variables that exclude each other.
    """
    policy = base
    for variable in VARIABLES:
        text = read(variable.name, environ)
        if text is None or variable.setting is None or variable.parse is None:
            continue
        value = variable.parse(text, variable.name)
        policy = policy.with_values(f"environment {variable.name}", **{variable.setting: value})
    return _with_lists(_with_orders(policy, environ), environ)


def _with_orders(policy: SelectionPolicy, environ: Mapping[str, str] | None) -> SelectionPolicy:
    """`VLLM_FL_PER_OP` speaks per operator, and before the others."""
    readers: tuple[tuple[str, Callable[[str, str], Any]], ...] = (
        ("VLLM_FL_USE_FLAGGEMS_ATTN", parse_flaggems_attention),
        ("VLLM_FL_OP_CONFIG", parse_op_config),
        ("VLLM_FL_PER_OP", parse_per_op),
    )
    for name, parse in readers:
        text = read(name, environ)
        orders = {} if text is None else parse(text, name)
        if orders:
            policy = policy.with_orders(f"environment {name}", orders)
    return policy


def _with_lists(policy: SelectionPolicy, environ: Mapping[str, str] | None) -> SelectionPolicy:
    for kind in ("FLAGOS", "OOT"):
        both = [f"VLLM_FL_{kind}_WHITELIST", f"VLLM_FL_{kind}_BLACKLIST"]
        if all(read(name, environ) is not None for name in both):
            raise PolicyError(f"{both[0]} and {both[1]} exclude each other; set one of them")
    name = "VLLM_FL_FLAGOS_BLACKLIST_APPEND"
    text = read(name, environ)
    if text is None:
        return policy
    return policy.with_names(f"environment {name}", "flagos_blacklist", _names(text, name))
