"""What callers hold: a function with the contract's exact signature over rebindable cells.

The function is generated once per operator from the contract. On its way to the kernel it costs
one Python frame: no lock, no environment, no dictionary, no `*args`. The `try` costs nothing
until an implementation raises.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_fl_dispatch.contracts import signature_of
from vllm_fl_dispatch.op_spec import OpSpec

Call = Callable[..., Any]
#: (error, the function that raised, positional arguments, options) -> result
Recover = Callable[[Exception, Call, tuple[Any, ...], dict[str, Any]], Any]

_MODULE = """\
def make(_fl_plain, _fl_optioned, _fl_recover{defaults}):
    def {name}({parameters}):
{body}
    def rebind(plain, optioned):
        nonlocal _fl_plain, _fl_optioned
        _fl_plain = plain
        _fl_optioned = optioned
    return {name}, rebind
"""

_CALL = """\
_fl_fn = {cell}
try:
    return _fl_fn({arguments})
except Exception as _fl_error:
    return _fl_recover(_fl_error, _fl_fn, ({positional}), dict({options}))
"""


@dataclass(frozen=True)
class Handle:
    """A call, and the way to point it elsewhere.

    `rebind(plain, optioned)` sets the function for calls that leave every keyword-only option
    of the contract at its default, and the one for all other calls.
    """

    call: Call
    rebind: Callable[[Call, Call], None]


def make_handle(
    spec: OpSpec, target: Call, recover: Recover, *, with_options: bool = True
) -> Handle:
    """A handle of an operator that first points at `target`.

    When its target raises, `recover(error, target, args, options)` answers instead, and raises
    what the caller shall see. It is told which function raised because the handle may have been
    pointed elsewhere in between.

    Args:
        with_options: does the function take the keyword-only options of the contract? Having
            them in the signature costs about as much as the rest of the handle.
    """
    make, defaults = _factory(spec.name, spec.contract, with_options)
    call, rebind = make(target, target, recover, *defaults)
    call.__doc__ = spec.contract.__doc__
    call.__module__ = spec.contract.__module__
    call.__annotations__ = dict(spec.contract.__annotations__)
    return Handle(call, rebind)


def reraise(error: Exception, fn: Call, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The `recover` of a handle whose target has recovered from what it could."""
    raise error


@cache
def _factory(
    name: str, contract: Call, with_options: bool
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Compile the factory of an operator's handles; returns it with the contract's defaults."""
    parameters = [
        p
        for p in signature_of(contract).parameters.values()
        if with_options or p.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    options = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    positional = [p for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    defaults = [p for p in parameters if p.default is not inspect.Parameter.empty]

    def declared(p: inspect.Parameter) -> str:
        return f"{p.name}=_fl_default_{p.name}" if p in defaults else p.name

    signature = [declared(p) for p in positional]
    if options:
        signature += ["*", *map(declared, options)]
    args = "".join(f"{p.name}, " for p in positional)
    keywords = ", ".join(f"{p.name}={p.name}" for p in options)
    body = _call("_fl_plain", args, "", 8)
    if options:
        unchanged = " and ".join(
            f"{p.name} {'is' if p.default in (None, True, False) else '=='} _fl_default_{p.name}"
            for p in options
        )
        body = f"        if {unchanged}:\n{_call('_fl_plain', args, '', 12)}"
        body += _call("_fl_optioned", args, keywords, 8)
    source = _MODULE.format(
        name=name,
        parameters=", ".join(signature),
        defaults="".join(f", _fl_default_{p.name}" for p in defaults),
        body=body,
    )
    filename = f"<{'handle' if with_options else 'plain handle'} of {name}>"
    # So that tracebacks and debuggers show the generated lines.
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    namespace: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), namespace)  # noqa: S102  # our own text
    return namespace["make"], tuple(p.default for p in defaults)


def _call(cell: str, args: str, keywords: str, indent: int) -> str:
    text = _CALL.format(cell=cell, arguments=args + keywords, positional=args, options=keywords)
    return "".join(" " * indent + line for line in text.splitlines(True))
