"""Why an operator is served as it is: the resolution, and the settings that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch.contracts import describe
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.resolution import Resolution
from vllm_fl_dispatch.types import BackendImplKind, OpImpl


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


def explain(manager: OpManager, op_name: str, *, layer: bool = True) -> Explanation:
    """Say who would serve an operator here, under the policy in force, and why.

    Args:
        layer: for a layer of vLLM, for which vLLM's own code is a candidate; otherwise for a
            call through a handle.

    Raises:
        UnknownOp: no such operator.
    """
    resolution = manager.resolve(op_name, stock=layer)
    spec = manager.registry.spec(op_name)
    return Explanation(
        op_name,
        describe(spec),
        resolution,
        policy_settings(manager.current_policy()),
    )


def policy_settings(policy: SelectionPolicy) -> tuple[Setting, ...]:
    """Every setting of a policy with its origin."""
    allowed = policy.allow_vendors
    values = {
        "prefer": policy.prefer,
        "strict": str(policy.strict).lower(),
        "allow_vendors": "(all)" if allowed is None else ", ".join(sorted(allowed)) or "(none)",
        "deny_vendors": ", ".join(sorted(policy.deny_vendors)) or "(none)",
        **{f"per_op_order.{op}": "|".join(order) for op, order in policy.per_op_order.items()},
    }
    return tuple(Setting(name, value, policy.origin_of(name)) for name, value in values.items())


def compiled_mode(impl: OpImpl) -> str:
    """How code that vLLM compiles would reach an implementation."""
    if impl.kind is BackendImplKind.STOCK:
        return "stock"
    return "inlined" if impl.traceable else "opaque"
