"""Our adapters, as the core loads them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

from vllm_fl_ascend import plugin


def load(op_name: str) -> Callable[..., Any]:
    """The implementation of an operator."""
    make = pkgutil.resolve_name(f"vllm_fl_ascend.impl.{plugin.OPERATORS[op_name]}:make_{op_name}")
    function: Callable[..., Any] = make()
    return function
