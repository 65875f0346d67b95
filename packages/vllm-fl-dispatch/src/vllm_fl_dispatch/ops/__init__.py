"""The written contracts of the operators, one module per family.

Oracles and conformance cases of a family are in its ``<family>_cases`` module.
"""

from __future__ import annotations

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops import (
    activation,
    alignment,
    experts,
    normalization,
    quantization,
    rotary,
    routing,
)

SPECS: tuple[OpSpec, ...] = (
    *activation.SPECS,
    *normalization.SPECS,
    *rotary.SPECS,
    *routing.SPECS,
    *alignment.SPECS,
    *experts.SPECS,
    *quantization.SPECS,
)
