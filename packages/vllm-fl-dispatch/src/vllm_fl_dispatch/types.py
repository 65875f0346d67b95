"""The records of the system: who implements what, under which contract, and whether it can.

Nothing here imports torch: front ends and command lines read these records on machines
that have no accelerator stack.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.logger_manager import get_logger

if TYPE_CHECKING:
    import torch

    from vllm_fl_dispatch.ops.cases import Case

logger = get_logger(__name__)


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
        if answer is None or isinstance(answer, str):
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


#: Fields of `OpImpl` that are called.
_FUNCTIONS = ("fn", "load", "installed", "available", "supports")


@dataclass(frozen=True)
class OpImpl:
    """One implementation of one operator.

    Attributes:
        op_name: the operator, e.g. ``rms_norm``.
        impl_id: unique per operator: ``default.flagos``, ``vendor.<name>``, ``reference.torch``.
        kind: DEFAULT, VENDOR or REFERENCE.
        fn: the function, with the parameters of the operator's contract. Keyword-only options
            of the contract may be left out: calls that need them then go elsewhere.
        vendor: name of the vendor; required for kind VENDOR.
        priority: breaks ties inside a token; by default the priority of the kind.
        load: instead of `fn`: called once, when first bound, in the process that runs the
            kernels; returns the function. Libraries that are costly or dangerous to import
            (FlagGems, torch_npu) are imported only there.
        installed: is the library there? Asked without importing it and without a device.
        available: can it run in this process? Must not initialise a device.
        supports: can it serve this query? Sees dtypes, sizes and options, never the token count.
        needs_contiguous: serves contiguous inputs only; other inputs go to the next candidate.
        max_numel: serves inputs of at most that many elements.
        empty_ok: accepts zero rows; otherwise the core answers those itself.
        mutates: names of the arguments it overwrites; each must be one that the contract donates.
        traceable: pure torch that a compiler may look into; one with data limits is called
            through its opaque operator all the same, where they can be enforced.
        batch_invariant: a row's result does not depend on the other rows of the batch.
        origin: filled in by the registrar.
    """

    op_name: str
    impl_id: str
    kind: BackendImplKind
    fn: Callable[..., Any] | None = None
    vendor: str | None = None
    priority: int | None = None
    _: KW_ONLY
    load: Callable[[], Callable[..., Any]] | None = None
    installed: Callable[[], Verdict | bool] | None = None
    available: Callable[[], Verdict | bool] | None = None
    supports: Callable[[Query], Verdict | bool] | None = None
    needs_contiguous: bool = False
    max_numel: int | None = None
    empty_ok: bool = False
    mutates: tuple[str, ...] = ()
    traceable: bool = False
    batch_invariant: bool = False
    origin: Origin | None = None

    def __post_init__(self) -> None:
        name = f"{self.op_name}[{self.impl_id}]"
        if (self.fn is None) == (self.load is None) and self.kind is not BackendImplKind.STOCK:
            raise ValueError(f"{name}: give exactly one of fn= (a function) and load= (returns it)")
        if self.kind is BackendImplKind.VENDOR and not self.vendor:
            raise ValueError(f"{name}: an implementation of kind VENDOR needs vendor='<name>'")
        for field_name in _FUNCTIONS:
            value = getattr(self, field_name)
            if value is not None and not callable(value):
                raise ValueError(
                    f"{name}: {field_name}= must be a function, which is called later; "
                    f"found {value!r}"
                )
        if isinstance(self.mutates, str):
            raise ValueError(
                f"{name}: mutates= must be a tuple of names, such as ('x',); found {self.mutates!r}"
            )
        if self.priority is None:
            object.__setattr__(self, "priority", int(BackendPriority[self.kind.name]))

    @property
    def has_data_limits(self) -> bool:
        """Does it decline calls by their data, beside those without rows?"""
        return self.needs_contiguous or self.max_numel is not None

    @property
    def inlinable(self) -> bool:
        """May a compiler look into it in place of a call?"""
        return self.traceable and not self.has_data_limits

    def verdict_on(self, query: Query) -> Verdict:
        """What `supports` says. Where it raises, that is a no, with a warning: one plugin's fault
        stays its own."""
        if self.supports is None:
            return Verdict.yes()
        try:
            return Verdict.of(self.supports(query), f"does not support {query}")
        # It may forget that a fact can be unknown, or import what is not there.
        except Exception as error:  # noqa: BLE001
            verdict = Verdict.no(f"supports raised {in_brief(error)} when asked about {query}")
            logger.warning_once(f"{self}: {verdict.reason}")
            return verdict

    def __str__(self) -> str:
        owner = f" of {self.origin}" if self.origin else ""
        return f"{self.op_name}[{self.impl_id}]{owner}"


#: A few roundings in float32; in half precision the exact result rounded once, or twice as
#: vLLM's native layers do (1.5; more where the first rounding falls among float16's subnormals).
DEFAULT_MAX_ULP: Mapping[str, float] = {"float32": 6.0, "float16": 2.25, "bfloat16": 1.75}


@dataclass(frozen=True)
class OpSpec:
    """The written contract of one operator.

    Attributes:
        name: the operator's name, as users write it in a policy.
        contract: a function without a body. Its signature is what callers use and what every
            implementation must offer; its docstring states shapes, dtypes and rounding.
        fake: same arguments -> empty outputs of the right shape, dtype and (contiguous) layout.
        schema: the torch schema of the opaque operator, without the name: ``(Tensor x) -> Tensor``.
        facts: same arguments -> tuple of hashable facts; the key of failures and of `supports`.
        fact_names: the names of that tuple, as `Query.facts` shows them.
        example: what is known about a call -> (arguments, options) of a tiny call of that kind;
            implementations are tried on it when a layer binds them.
        data: names of the tensors that limits (`needs_contiguous`, `max_numel`) look at.
        donates: names of the arguments that an implementation may overwrite in eager mode.
        inplace_schema: schema of a mutating twin, ``<name>_``, for implementations that
            overwrite whole tensors.
        group: the operator whose order and lists this one inherits.
        lower: option -> function that rewrites (args, options) so that an implementation
            without this option can serve the call.
        pack, unpack: between the contract's result and the schema's.
        oracle: same arguments -> result in float64, the truth of the conformance tests.
        cases: the conformance cases.
        canonical: (results, arguments, options) -> results, where the contract leaves something
            open, such as an order; applied to both sides before they are compared.
        max_ulp: dtype of a case -> tolerance of an implementation against the oracle, in units of
            the last place of the result's dtype, at the magnitude of the expected value.
        ulp_of: name of an argument whose dtype these units are of, where computing in it is
            accepted though the result has a wider one.
        ulp_floor: no value counts as smaller than this fraction of its row's root mean square,
            where cancellation makes small results from large operands.
        max_steps: tolerance of integer results.
    """

    name: str
    contract: Callable[..., Any]
    _: KW_ONLY
    fake: Callable[..., Any] | None = None
    schema: str | None = None
    facts: Callable[..., tuple[Any, ...]] | None = None
    fact_names: tuple[str, ...] = ()
    example: Callable[[Query], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    data: tuple[str, ...] = ()
    donates: tuple[str, ...] = ()
    inplace_schema: str | None = None
    group: str | None = None
    lower: Mapping[str, Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]] = field(
        default_factory=dict
    )
    pack: Callable[[Any], Any] | None = None
    unpack: Callable[[Any], Any] | None = None
    oracle: Callable[..., Any] | None = None
    cases: Callable[[], Iterable[Case]] | None = None
    canonical: Callable[..., tuple[Any, ...]] | None = None
    max_ulp: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_MAX_ULP))
    ulp_of: str | None = None
    ulp_floor: float = 0.0
    max_steps: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which orders and lists speak of it: its own and its group's."""
        return (self.name,) if self.group is None else (self.name, self.group)

    def query(self, *args: Any, **options: Any) -> Query:
        """What a call with these arguments looks like to `OpImpl.supports`."""
        if self.facts is None:
            return Query(self.name)
        return Query(
            self.name, dict(zip(self.fact_names, self.facts(*args, **options), strict=True))
        )
