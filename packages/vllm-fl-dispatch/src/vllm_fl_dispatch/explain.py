"""Why an operator is served as it is: the resolution, and the settings that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch.contracts import describe
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.registry import unknown_name
from vllm_fl_dispatch.resolution import Resolution
from vllm_fl_dispatch.types import BackendImplKind, Query


@dataclass(frozen=True)
class Setting:
    """One value of the policy in force, and where it came from."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Explanation:
    """Everything `vllm-fl explain` shows about one operator."""

    op: str
    signature: str
    resolution: Resolution
    settings: tuple[Setting, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            **self.resolution.as_dict(),
            "signature": self.signature,
            "settings": [vars(setting) for setting in self.settings],
        }


def explain(
    manager: OpManager,
    op_name: str,
    *,
    layer: bool = True,
    compiled: bool = False,
    facts: Mapping[str, Any] | None = None,
    numel: int | None = None,
) -> Explanation:
    """Say who would serve an operator here, under the policy in force, and why.

    Args:
        layer: for a layer of vLLM, for which vLLM's own code is a candidate; otherwise for a
            call through a handle.
        compiled: for a model that vLLM compiles.
        facts: what is known about a hypothetical call, see `OpSpec.fact_names`.
        numel: how many elements its largest input has.

    Raises:
        UnknownOp: no such operator.
        PolicyError: a fact that the operator's contract does not know.
    """
    manager.ensure_built()
    spec = manager.registry.contract(op_name)
    for name in facts or ():
        if name not in spec.fact_names:
            raise PolicyError(unknown_name(f"fact of {op_name}", name, spec.fact_names))
    policy = manager.current_policy().for_mode(compiled)
    query = None if facts is None else Query(op_name, dict(facts))
    resolution = manager.resolve(op_name, query=query, policy=policy, stock=layer, numel=numel)
    return Explanation(
        op_name,
        describe(spec),
        resolution,
        policy_settings(policy),
    )


def policy_settings(policy: SelectionPolicy) -> tuple[Setting, ...]:
    """Every setting of a policy with its origin."""
    rows = [Setting(name, _text(getattr(policy, name)), policy.origin_of(name)) for name in _PLAIN]
    for name in _LISTS:
        names = getattr(policy, name)
        origins = {policy.origin_of(f"{name}.{each}") for each in names or ()} - {"default"}
        origin = "; ".join(sorted(origins)) or policy.origin_of(name)
        rows.append(Setting(name, _text(names), origin))
    for op, order in policy.per_op_order.items():
        setting = f"per_op_order.{op}"
        rows.append(Setting(setting, "|".join(order), policy.origin_of(setting)))
    for name, value in policy.compiled.items():
        rows.append(Setting(f"compiled.{name}", _text(value), policy.origin_of("compiled")))
    return tuple(rows)


_PLAIN = ("prefer", "strict", "use_flagos", "oot_enabled")
_LISTS = (
    "allow_vendors",
    "deny_vendors",
    "flagos_whitelist",
    "flagos_blacklist",
    "flagos_aten",
    "oot_whitelist",
    "oot_blacklist",
)


def _text(value: Any) -> str:
    if value is None:
        return "(all)"
    if isinstance(value, frozenset):
        return ", ".join(sorted(value)) or "(none)"
    if isinstance(value, Mapping):
        return "; ".join(f"{op}={'|'.join(order)}" for op, order in value.items())
    return str(value).lower()


def compiled_mode(impl: OpImpl) -> str:
    """How code that vLLM compiles would reach an implementation."""
    if impl.kind is BackendImplKind.STOCK:
        return "stock"
    return "inlined" if impl.inlinable else "opaque"
