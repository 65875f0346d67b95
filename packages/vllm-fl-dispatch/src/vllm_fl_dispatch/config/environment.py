"""Every environment variable of the core, as a table, and the policy that they spell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch.config.values import parse_bool, parse_names, parse_per_op
from vllm_fl_dispatch.policy import SelectionPolicy, parse_preference

PREFIX = "VLLM_FL_"


@dataclass(frozen=True)
class Variable:
    """One documented variable; `setting` is the policy field it sets, if any."""

    name: str
    help: str
    parse: Callable[[str, str], Any] | None = None
    setting: str | None = None


def _allowed(text: str, _where: str) -> frozenset[str]:
    return frozenset(parse_names(text))


VARIABLES: tuple[Variable, ...] = (
    Variable("VLLM_FL_PREFER_ENABLED", "0 leaves vLLM untouched", parse_bool),
    Variable("VLLM_FL_ENABLED", "same as VLLM_FL_PREFER_ENABLED", parse_bool),
    Variable("VLLM_FL_CONFIG", "path of a YAML policy; replaces all other settings"),
    Variable(
        "VLLM_FL_PREFER",
        "kind that comes first: flagos, vendor, reference",
        lambda text, where: parse_preference(text, where),
        "prefer",
    ),
    Variable("VLLM_FL_STRICT", "1: errors instead of fallback", parse_bool, "strict"),
    Variable("VLLM_FL_PER_OP", "op1=token|token;op2=token", parse_per_op, "per_op_order"),
    Variable("VLLM_FL_ALLOW_VENDORS", "only these vendors, comma list", _allowed, "allow_vendors"),
    Variable("VLLM_FL_DENY_VENDORS", "never these vendors, comma list", _allowed, "deny_vendors"),
    Variable("VLLM_FL_OOT_ENABLED", "0: replace no vLLM layer", parse_bool),
    Variable("VLLM_FL_OOT_WHITELIST", "operators whose layers may be replaced, comma list"),
    Variable("VLLM_FL_OOT_BLACKLIST", "operators whose layers stay vLLM's, comma list"),
    Variable("VLLM_FL_PLUGIN_MODULES", "modules to load as plugins, comma list"),
    Variable("VLLM_FL_DISABLED_PLUGINS", "plugins not even imported, comma list"),
    Variable("VLLM_FL_REPORT", "folder for the record of what ran"),
    Variable("VLLM_FL_LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR"),
    Variable("VLLM_FL_FINGERPRINT", "computed: identity of the selection; do not set"),
)
BY_NAME: Mapping[str, Variable] = {variable.name: variable for variable in VARIABLES}


def read(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value of a variable, or None where it is unset or blank."""
    value = (os.environ if environ is None else environ).get(name)
    return value if value is not None and value.strip() else None


def switch(name: str, default: bool, environ: Mapping[str, str] | None = None) -> bool:
    """A boolean variable; raises PolicyError for a spelling that is none."""
    value = read(name, environ)
    return default if value is None else parse_bool(value, name, default)


def enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Is the plugin switched on? Either name switches it off."""
    return all(
        switch(name, True, environ) for name in ("VLLM_FL_PREFER_ENABLED", "VLLM_FL_ENABLED")
    )


def policy_from_environment(
    base: SelectionPolicy | None = None, environ: Mapping[str, str] | None = None
) -> SelectionPolicy:
    """`base` with every setting that a variable gives replaced (not merged) by its value."""
    policy = base or SelectionPolicy()
    for variable in VARIABLES:
        text = read(variable.name, environ)
        if text is None or variable.setting is None or variable.parse is None:
            continue
        value = variable.parse(text, variable.name)
        policy = policy.with_values(f"environment {variable.name}", **{variable.setting: value})
    return policy
