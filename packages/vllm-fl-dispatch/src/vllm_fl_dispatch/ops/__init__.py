"""The written contracts of the operators, one module per family."""

from __future__ import annotations

from vllm_fl_dispatch.ops import activation, normalization, rotary
from vllm_fl_dispatch.types import OpSpec

SPECS: tuple[OpSpec, ...] = (*activation.SPECS, *normalization.SPECS, *rotary.SPECS)
