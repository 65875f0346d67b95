"""Opaque torch operators, ``torch.ops.vllm_fl.<op>``: dispatch that compiled code calls.

They are functional: fresh outputs, no argument changed, no alias. vLLM switches
auto-functionalization v2 off, and then a mutating operator on views costs clones or gives wrong
numbers. Implementations that overwrite their arguments run on copies, or have a function that
does not (`OpImpl.load_functional`).

`Library.define` and `impl`, not `torch.library.custom_op`: a fifth of the cost per call.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from vllm_fl_dispatch.contracts import option_defaults
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.slots import Slot

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager

NAMESPACE = "vllm_fl"
#: The overload for calls that leave every keyword-only option at its default. Compiled code hands
#: over all arguments that a schema has, and torch takes each of them apart.
PLAIN = "plain"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch
_lock = ForkLock()
#: operator name -> the slot its body calls now; tests swap managers.
_slots: dict[str, Slot] = {}


def opaque(manager: OpManager, spec: OpSpec) -> Call:
    """A function with the contract's signature that calls the opaque operator.

    Raises:
        ValueError: the specification has no torch schema.
    """
    if spec.schema is None or spec.fake is None:
        raise ValueError(f"{spec.name} has no torch schema")
    with _lock:
        if spec.name not in _slots:
            _define(spec)
        slot = _slots.get(spec.name)
        if slot is None or slot.manager is not manager or slot.spec is not spec:
            _slots[spec.name] = manager.new_slot(spec, donate=False, mode="opaque")
    return _caller(spec)


def _define(spec: OpSpec) -> None:
    name, pack, fake = spec.name, spec.pack, spec.fake
    assert fake is not None

    def packed(call: Call) -> Call:
        return call if pack is None else lambda *args, **options: pack(call(*args, **options))

    def define(overload: str, schema: str, body: Call) -> None:
        _library.define(f"{overload}{schema}")  # type: ignore[no-untyped-call]  # torch
        _library.impl(overload, packed(body), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # torch
        torch.library.register_fake(f"{NAMESPACE}::{overload}", packed(fake), lib=_library)

    schema = str(spec.schema)
    define(name, schema, lambda *args, **options: _slots[name].call(*args, **options))
    if option_defaults(spec):
        plain = f"{name}.{PLAIN}"
        define(plain, without_options(schema), lambda *args: _slots[name].plain_call(*args))


def without_options(schema: str) -> str:
    """A torch schema without its keyword-only arguments."""
    return re.sub(r", \*,[^)]*", "", schema, count=1)


def _caller(spec: OpSpec) -> Call:
    overloads = getattr(getattr(torch.ops, NAMESPACE), spec.name)
    full = overloads.default
    call = _either(full, getattr(overloads, PLAIN)) if option_defaults(spec) else full
    unpack = spec.unpack
    return call if unpack is None else lambda *args, **options: unpack(call(*args, **options))


def _either(full: Call, plain: Call) -> Call:
    return lambda *args, **options: (full if options else plain)(*args, **options)
