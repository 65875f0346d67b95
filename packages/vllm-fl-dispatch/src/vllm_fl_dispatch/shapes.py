"""Do the shapes of a call fit the contract? Asked only after an implementation raised."""

from __future__ import annotations

from typing import Any

from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.op_spec import OpSpec


def misfit(spec: OpSpec, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
    """What is wrong with the shapes of a call by `OpSpec.shapes`, or None."""
    values = dict(zip(positional_names(spec), args, strict=False)) | options
    found = {
        name: tuple(values[name].shape)
        for name in spec.shapes
        if hasattr(values.get(name), "shape")
    }
    sizes: dict[str, Any] = {}
    if all(_fits(spec.shapes[name].split(), shape, sizes) for name, shape in found.items()):
        return None
    called = ", ".join(f"{name} {list(shape)}" for name, shape in found.items())
    accepted = ", ".join(
        f"{name} [{', '.join(pattern.split())}]" for name, pattern in spec.shapes.items()
    )
    return f"{spec.name} was called with {called}; accepted: {accepted}"


def _fits(pattern: list[str], shape: tuple[int, ...], sizes: dict[str, Any]) -> bool:
    """Can the sizes be those of the pattern, given what is known of them? Notes what it finds."""
    if pattern[-1] == "*":
        pattern, shape = pattern[:-1], shape[: len(pattern) - 1]
    if pattern[0] == "...":
        pattern = pattern[1:]
        leading, shape = shape[: -len(pattern)], shape[-len(pattern) :]
        if sizes.setdefault("...", leading) != leading:
            return False
    if len(pattern) != len(shape):
        return False
    for name, size in zip(pattern, shape, strict=True):
        factor, _, letter = name.rpartition("*")
        count, rest = divmod(size, int(factor or 1))
        if rest or sizes.setdefault(letter, count) != count:
            return False
    return True
