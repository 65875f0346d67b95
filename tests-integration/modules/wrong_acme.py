"""A vendor with every operator of the reference; `TEST_WRONG_OP` names the one that is wrong."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from vllm_fl_dispatch import BackendImplKind, OpImpl, Registrar, hookimpl
from vllm_fl_reference.plugin import OPERATORS

vllm_fl_api = 1
#: What the first result of the wrong operator is multiplied by.
FACTOR = 1.1


def _wrong(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrong(*args: Any, **options: Any) -> Any:
        result = fn(*args, **options)
        if isinstance(result, tuple):
            return (result[0] * FACTOR, *result[1:])
        return result * FACTOR

    return wrong


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """The reference's functions under this vendor's name."""
    for op, module in OPERATORS.items():
        fn = getattr(importlib.import_module(f"vllm_fl_reference.impl.{module}"), op)
        fn = _wrong(fn) if op == os.environ.get("TEST_WRONG_OP") else fn
        registrar.add(OpImpl(op, "vendor.wrong", BackendImplKind.VENDOR, fn, "wrong"))
