"""Does a function fit the contract of its operator?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from vllm_fl_dispatch.errors import ContractError, OpNotSupported
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.selectors import Spec

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def describe(spec: Spec) -> str:
    """The contract's signature as people read it."""
    return f"{spec.name}{signature_of(spec.contract)}".replace("'", "")


@cache
def signature_of(contract: Callable[..., Any]) -> inspect.Signature:
    """The signature of a contract function."""
    return inspect.signature(contract)


def positional_names(spec: Spec) -> tuple[str, ...]:
    """Names of the contract's positional parameters."""
    parameters = signature_of(spec.contract).parameters.values()
    return tuple(p.name for p in parameters if p.kind in _POSITIONAL)


def option_defaults(spec: Spec) -> dict[str, Any]:
    """The contract's keyword-only options and their defaults."""
    parameters = signature_of(spec.contract).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def missing_options(spec: Spec, fn: Callable[..., Any]) -> frozenset[str]:
    """Options of the contract that this function does not take."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return frozenset()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return frozenset()
    return frozenset(option_defaults(spec)) - frozenset(parameters)


def lower(
    spec: OpSpec, missing: frozenset[str], args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Rewrite a call so that it needs none of the `missing` options.

    Options that stand at their default are dropped; the contract says how others are lowered.
    """
    defaults = option_defaults(spec)
    options = dict(options)
    for name in missing & set(options):
        if options[name] != defaults[name]:
            args, options = spec.lower[name](*args, **options)
        options.pop(name, None)
    return args, options


def lowered(
    spec: OpSpec, fn: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call as this function can take it.

    Raises:
        OpNotSupported: it lacks an option that cannot be lowered.
    """
    missing, defaults = missing_options(spec, fn), option_defaults(spec)
    for name in missing & set(options):
        if options[name] != defaults[name] and name not in spec.lower:
            raise OpNotSupported(f"it has no option {name}")
    return lower(spec, missing, args, options)


def check_contract(spec: Spec, impl: OpImpl, fn: Callable[..., Any] | None = None) -> None:
    """Raise ContractError unless the implementation fits; lazily loaded ones are checked later.

    The positional parameters must be the contract's, by name and order; further parameters need
    defaults; options of the contract may be missing. A function without an inspectable
    signature (built-ins) passes.
    """
    wrong = set(impl.mutates) - set(spec.donates)
    if wrong:
        raise ContractError(
            f"{impl} declares that it overwrites {sorted(wrong)}; the contract of {spec.name} "
            f"lets it overwrite {sorted(spec.donates) or 'nothing'}"
        )
    checked = fn or impl.fn
    if not callable(checked):
        return
    try:
        found = inspect.signature(checked)
    except (TypeError, ValueError):
        return
    problem = _misfit(spec, found)
    if problem:
        raise ContractError(
            f"{impl} does not fit the contract of {spec.name}: {problem}\n"
            f"  expected: {describe(spec)}\n"
            f"  found:    {getattr(checked, '__name__', checked)!s}{found}"
        )


def _misfit(spec: Spec, found: inspect.Signature) -> str | None:
    expected = positional_names(spec)
    parameters = list(found.parameters.values())
    names = [p.name for p in parameters if p.kind in _POSITIONAL]
    has_var = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    if has_var and names == list(expected[: len(names)]):
        return None
    if names[: len(expected)] != list(expected):
        return f"its positional parameters are {names}, not {list(expected)}"
    known = {*expected, *option_defaults(spec)}
    extra = [
        p.name
        for p in parameters
        if p.name not in known
        and p.default is inspect.Parameter.empty
        and p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    return f"it needs {extra}, which the contract does not have" if extra else None
