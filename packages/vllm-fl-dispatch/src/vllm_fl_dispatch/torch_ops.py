"""Opaque torch operators, ``torch.ops.vllm_fl.<op>``: dispatch that compiled code calls.

They are functional: fresh outputs, no argument changed, no alias. vLLM switches
auto-functionalization v2 off, and then a mutating operator on split views costs clones or gives
wrong numbers. The one exception is the mutating twin of `fused_add_rms_norm`, which layers choose
for implementations that overwrite whole tensors.

`Library.define` and `impl`, not `torch.library.custom_op`: a fifth of the cost per call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.slots import Slot

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager

NAMESPACE = "vllm_fl"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]  # torch
_lock = ForkLock()
#: operator name -> the slot its body calls now; tests swap managers.
_slots: dict[str, Slot] = {}


def opaque(manager: OpManager, spec: OpSpec, *, inplace: bool = False) -> Call:
    """A function with the contract's signature that calls the opaque operator.

    Args:
        inplace: the mutating twin, which overwrites and returns the donated arguments.

    Raises:
        ValueError: the specification has no torch schema.
    """
    schema = spec.inplace_schema if inplace else spec.schema
    if schema is None or spec.fake is None:
        raise ValueError(f"{spec.name} has no {'in-place ' if inplace else ''}torch schema")
    name = f"{spec.name}_" if inplace else spec.name
    with _lock:
        if name not in _slots:
            _define(spec, name, schema, inplace)
        slot = _slots.get(name)
        if slot is None or slot.manager is not manager or slot.spec is not spec:
            _slots[name] = manager.new_slot(spec, donate=inplace, mode="opaque")
    return _caller(spec, name, inplace)


def _define(spec: OpSpec, name: str, schema: str, inplace: bool) -> None:
    _library.define(name + schema)  # type: ignore[no-untyped-call]  # torch
    body, fake = (_inplace if inplace else _functional)(spec, name)
    _library.impl(name, body, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]  # torch
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


def _functional(spec: OpSpec, name: str) -> tuple[Call, Call]:
    pack, fake = spec.pack, spec.fake
    assert fake is not None
    if pack is None:
        return (lambda *args, **options: _slots[name].call(*args, **options)), fake
    return (
        lambda *args, **options: pack(_slots[name].call(*args, **options)),
        lambda *args, **options: pack(fake(*args, **options)),
    )


def _inplace(spec: OpSpec, name: str) -> tuple[Call, Call]:
    donated = _donated(spec)

    def body(*args: Any, **options: Any) -> None:
        results = _slots[name].call(*args, **options)
        # The implementation that served this call may have made new tensors.
        for position, result in zip(donated, results, strict=True):
            if args[position] is not result:
                args[position].copy_(result)

    return body, lambda *args, **options: None


def _donated(spec: OpSpec) -> tuple[int, ...]:
    names = positional_names(spec)
    return tuple(names.index(name) for name in spec.donates)


def _caller(spec: OpSpec, name: str, inplace: bool) -> Call:
    op = getattr(getattr(torch.ops, NAMESPACE), name).default
    unpack = spec.unpack
    if inplace:
        donated = _donated(spec)

        def call_inplace(*args: Any, **options: Any) -> Any:
            op(*args, **options)
            return tuple(args[position] for position in donated)

        return call_inplace
    if unpack is None:
        return op  # type: ignore[no-any-return]  # an OpOverload is a callable
    return lambda *args, **options: unpack(op(*args, **options))
