"""Small records that everything speaks in: kinds, verdicts, origins, devices, queries.

Neither here nor in `op_impl` and `op_spec` is torch imported: front ends and command lines read
these records on machines that have no accelerator stack.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class BackendImplKind(str, enum.Enum):
    """Where an implementation comes from. The value is the token that a policy uses."""

    DEFAULT = "flagos"
    VENDOR = "vendor"
    REFERENCE = "reference"
    #: vLLM's own layer, left as it is. Offered to layers only; no backend registers it.
    STOCK = "stock"


class BackendPriority(enum.IntEnum):
    """Default priority of each kind; the higher one wins inside a token."""

    DEFAULT = 150
    VENDOR = 100
    REFERENCE = 50
    STOCK = 0


@dataclass(frozen=True)
class Verdict:
    """Yes or no, with the reason a person reads when it is no."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok

    @classmethod
    def yes(cls, reason: str = "") -> Verdict:
        return cls(True, reason)

    @classmethod
    def no(cls, reason: str) -> Verdict:
        return cls(False, reason)

    @classmethod
    def of(cls, answer: Verdict | bool, otherwise: str) -> Verdict:
        """Take a plain boolean for a verdict; `otherwise` is the reason of a plain False.

        Raises:
            TypeError: it is neither; a function that forgets to return answers None.
        """
        if isinstance(answer, Verdict):
            return answer
        # NumPy's booleans are of a type of their own.
        if not isinstance(answer, bool) and type(answer).__name__ not in ("bool", "bool_"):
            raise TypeError(f"the answer {answer!r} is neither a Verdict nor a boolean")
        return cls(bool(answer), "" if answer else otherwise)


@dataclass(frozen=True)
class Origin:
    """Which distribution an implementation or operator came from."""

    distribution: str
    version: str = ""
    entry_point: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True)
class DeviceSpec:
    """What a backend knows about its device, as data.

    `platform` names the defaults that a backend ships (``cuda``, ``ascend``). Source of the other
    names: `vllm.platforms.interface.Platform`.

    Attributes:
        platform_class, worker_class: the classes of vLLM (``module:Class``) that `PlatformFL` and
            its worker refine on this device; by default those that know no device.
    """

    platform: str
    device_type: str
    vendor: str
    dispatch_key: str
    torch_module: str
    communication_backend: str
    visible_devices_variable: str
    _: KW_ONLY
    platform_class: str = "vllm.platforms.interface:Platform"
    worker_class: str = "vllm.v1.worker.gpu_worker:Worker"

    def __post_init__(self) -> None:
        if self.platform != self.platform.lower():
            raise ValueError(
                f"DeviceSpec: platform={self.platform!r} must be lower case, as VLLM_FL_PLATFORM "
                f"is read: {self.platform.lower()!r}"
            )


@dataclass(frozen=True)
class Query:
    """What is known about a call before it is made. Never the number of tokens.

    `facts` are named by the operator's contract (`OpSpec.fact_names`); a fact that is not
    known yet, such as the width of an activation when a layer is built, is None.
    """

    op_name: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype | None:
        dtype: torch.dtype | None = self.facts.get("dtype")
        return dtype

    @property
    def device_type(self) -> str | None:
        device = self.facts.get("device")
        return getattr(device, "type", device)

    @property
    def last_dim(self) -> int | None:
        size: int | None = self.facts.get("last_dim")
        return size

    def get(self, fact: str, default: Any = None) -> Any:
        return self.facts.get(fact, default)

    def __str__(self) -> str:
        known = (f"{k}={v}" for k, v in self.facts.items() if v is not None)
        return f"{self.op_name}({', '.join(known)})"
