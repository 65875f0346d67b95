"""Which classes of vLLM are replaced, by which family, for which operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_fl_dispatch.vllm import compat, layers, moe_layers, routers
from vllm_fl_dispatch.vllm.layers import Dispatched

_LAYERS = "vllm.model_executor.layers"
_AGNOSTIC = "vllm.model_executor.hw_agnostic.layers"
_MOE = f"{_LAYERS}.fused_moe"
_ROUTER = f"{_MOE}.router"


@dataclass(frozen=True)
class Replaceable:
    """One class of vLLM.

    Attributes:
        site: where vLLM looks for the class to construct.
    """

    base: type
    family: type[Dispatched]
    ops: tuple[str, ...]
    site: compat.Registry | compat.Attribute


_NORMS = ("rms_norm", "fused_add_rms_norm")

#: (module, class, family, operators). The classes of `hw_agnostic` have a registry of their own.
TABLE: tuple[tuple[str, str, type[Dispatched], tuple[str, ...]], ...] = (
    (f"{_LAYERS}.activation", "SiluAndMul", layers.SiluAndMulLayer, ("silu_and_mul",)),
    (f"{_LAYERS}.activation", "GeluAndMul", layers.GeluAndMulLayer, ("gelu_and_mul",)),
    (
        f"{_LAYERS}.activation",
        "SiluAndMulWithClamp",
        layers.SiluAndMulWithClampLayer,
        ("silu_and_mul_with_clamp",),
    ),
    (f"{_LAYERS}.layernorm", "RMSNorm", layers.RMSNormLayer, _NORMS),
    (f"{_LAYERS}.layernorm", "GemmaRMSNorm", layers.GemmaRMSNormLayer, _NORMS),
    (f"{_AGNOSTIC}.activation", "SiluAndMul", layers.SiluAndMulLayer, ("silu_and_mul",)),
    (f"{_AGNOSTIC}.layernorm", "RMSNorm", layers.RMSNormLayer, _NORMS),
)

#: The same for experts, on platforms whose experts are ours to choose.
EXPERTS: tuple[tuple[str, str, type[Dispatched], tuple[str, ...]], ...] = (
    (
        f"{_MOE}.unquantized_fused_moe_method",
        "UnquantizedFusedMoEMethod",
        moe_layers.FusedExpertsLayer,
        ("fused_experts",),
    ),
)

_BOTH = ("topk_softmax", "grouped_topk")
#: Routers, which a factory makes.
ROUTERS: tuple[tuple[str, str, type[Dispatched], tuple[str, ...]], ...] = (
    (f"{_ROUTER}.fused_topk_router", "FusedTopKRouter", routers.TopKLayer, _BOTH[:1]),
    (f"{_ROUTER}.fused_topk_bias_router", "FusedTopKBiasRouter", routers.TopKLayer, _BOTH[:1]),
    (f"{_ROUTER}.grouped_topk_router", "GroupedTopKRouter", routers.GroupedTopKLayer, _BOTH),
    (f"{_ROUTER}.cpu_router", "CPURouter", routers.CPURouterLayer, _BOTH),
)
FACTORY = f"{_ROUTER}.router_factory"


def replaceable() -> Iterator[Replaceable]:
    """Every class that this release of vLLM has and that may be replaced on this platform."""
    for table in (TABLE, *([EXPERTS] if moe_layers.are_dispatched() else [])):
        for module, name, family, ops in table:
            base = compat.import_attribute(module, name)
            if base is not None:
                yield Replaceable(base, family, ops, compat.Registry(base))
    for base in compat.rotary_classes():
        family = layers.RotaryEmbeddingLayer
        yield Replaceable(base, family, ("rotary_embedding",), compat.Registry(base))
    if moe_layers.are_dispatched():
        for module, name, family, ops in ROUTERS:
            base = compat.import_attribute(module, name)
            if base is not None and compat.import_attribute(FACTORY, name) is not None:
                yield Replaceable(base, family, ops, compat.Attribute(base, FACTORY))
