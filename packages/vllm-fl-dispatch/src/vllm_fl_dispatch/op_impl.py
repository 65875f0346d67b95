"""The record of an implementation: who implements an operator, and whether it can."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from types import NoneType
from typing import Any

from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.types import BackendImplKind, BackendPriority, Origin, Query, Verdict

logger = get_logger(__name__)

#: Where a function is: ``module:name``.
_PLACE = re.compile(r"[\w.]+:[\w.]+")
#: Fields of `OpImpl` that are called, and whether they may say where the function is.
_FUNCTIONS = {
    "fn": True, "load": True, "load_functional": True,
    "installed": False, "available": False, "supports": True,
}  # fmt: skip


#: Fields of other types would be found out much later, and by somebody else.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "op_name": ((str,), "the name of an operator"),
    "impl_id": ((str,), "text, such as 'vendor.acme'"),
    "kind": ((BackendImplKind,), "a BackendImplKind"),
    "vendor": ((str, NoneType), "the vendor's name"),
    "priority": ((int, NoneType), "a whole number"),
    "max_numel": ((int, NoneType), "a whole number"),
    "mutates": ((tuple, list), "a tuple of names, such as ('x',)"),
    "device_types": ((tuple, list), "a tuple of device types, such as ('cuda',)"),
}


def function(named: Callable[..., Any] | str) -> Callable[..., Any]:
    """A function, imported if ``module:name`` says where it is.

    Raises:
        Exception: whatever importing raises; AttributeError where the module has no such name.
    """
    if not isinstance(named, str):
        return named
    import pkgutil  # an import less where nothing is bound

    found: Callable[..., Any] = pkgutil.resolve_name(named)
    return found


@dataclass(frozen=True)
class OpImpl:
    """One implementation of one operator.

    Attributes:
        op_name: the operator, e.g. ``rms_norm``.
        impl_id: unique per operator: ``default.flagos``, ``vendor.<name>``, ``reference.torch``.
        kind: DEFAULT, VENDOR or REFERENCE.
        fn: the function, with the parameters of the operator's contract, or ``module:name``,
            which is imported when it is first bound, in the process that runs the kernels.
            Libraries that are costly or dangerous to import (FlagGems, torch_npu) are imported
            only there. Keyword-only options of the contract may be left out: calls that need
            them then go elsewhere.
        vendor: name of the vendor; required for kind VENDOR.
        priority: breaks ties inside a token; by default the priority of the kind.
        load: instead of `fn`: a function without parameters, or ``module:name``, that is called
            once, when first bound, and returns the function.
        load_functional: where it `mutates`: as `load`, of a function that overwrites nothing. It is
            called where the arguments must stay, as in compiled code; without it, the other one
            runs on copies.
        installed: is the library there? Asked without importing it and without a device.
        available: can it run in this process? Must not initialise a device.
        device_types: types of the torch devices it runs on, such as ``("cuda",)``; none: any.
        supports: can it serve this query? Sees dtypes, sizes and options, never the token count.
            A function, or ``module:name``, imported when first asked.
        needs_contiguous: serves calls all of whose tensors are contiguous, weights included;
            other calls go to the next candidate.
        max_numel: serves calls whose tensors have at most that many elements each.
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
    fn: Callable[..., Any] | str | None = None
    vendor: str | None = None
    priority: int | None = None
    _: KW_ONLY
    load: Callable[[], Callable[..., Any]] | str | None = None
    load_functional: Callable[[], Callable[..., Any]] | str | None = None
    installed: Callable[[], Verdict | bool] | None = None
    available: Callable[[], Verdict | bool] | None = None
    device_types: tuple[str, ...] = ()
    supports: Callable[[Query], Verdict | bool] | str | None = None
    needs_contiguous: bool = False
    max_numel: int | None = None
    empty_ok: bool = False
    mutates: tuple[str, ...] = ()
    traceable: bool = False
    batch_invariant: bool = False
    origin: Origin | None = None

    def __post_init__(self) -> None:
        name = f"{self.op_name}[{self.impl_id}]"
        for field_name, (types, accepted) in _TYPES.items():
            value = getattr(self, field_name)
            if not isinstance(value, types):
                raise ValueError(f"{name}: {field_name}= must be {accepted}; found {value!r}")
        if self.impl_id == BackendImplKind.STOCK.value and self.kind is not BackendImplKind.STOCK:
            raise ValueError(f"{name}: the id {self.impl_id!r} stands for vLLM's own layers")
        if (self.fn is None) == (self.load is None) and self.kind is not BackendImplKind.STOCK:
            raise ValueError(f"{name}: give exactly one of fn= (a function) and load= (returns it)")
        if self.load_functional is not None and not self.mutates:
            raise ValueError(f"{name}: load_functional= is for one that mutates= its arguments")
        if self.kind is BackendImplKind.VENDOR and not self.vendor:
            raise ValueError(f"{name}: an implementation of kind VENDOR needs vendor='<name>'")
        for field_name, may_be_named in _FUNCTIONS.items():
            value = getattr(self, field_name)
            is_named = may_be_named and isinstance(value, str) and _PLACE.fullmatch(value)
            if value is not None and not callable(value) and not is_named:
                place = " or its place 'module:name'" if may_be_named else ""
                raise ValueError(
                    f"{name}: {field_name}= must be a function{place}, which is called later; "
                    f"found {value!r}"
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
        return self.traceable and not (self.has_data_limits or self.mutates)

    @property
    def functional(self) -> OpImpl:
        """Itself, or the record of its function that overwrites nothing."""
        if self.load_functional is None:
            return self
        load = self.load_functional
        return replace(self, fn=None, load=load, load_functional=None, mutates=())

    def answer(self, query: Query) -> Verdict:
        """What `device_types` and `supports` say, for tests; `verdict_on` is for servers.

        Raises:
            TypeError: it answers neither a verdict nor a boolean.
            Exception: whatever `supports` raises.
        """
        device = query.device_type
        if self.device_types and device is not None and device not in self.device_types:
            return Verdict.no(f"it runs on {', '.join(self.device_types)}, the call is on {device}")
        if self.supports is None:
            return Verdict.yes()
        return Verdict.of(function(self.supports)(query), f"does not support {query}")

    def verdict_on(self, query: Query) -> Verdict:
        """What `answer` says. Where `supports` raises, that is a no, with a warning: one plugin's
        fault stays its own."""
        try:
            return self.answer(query)
        # It may forget that a fact can be unknown, or import what is not there.
        except Exception as error:  # noqa: BLE001
            verdict = Verdict.no(f"supports raised {in_brief(error)} when asked about {query}")
            warning_once(logger, f"{self}: {verdict.reason}")
            return verdict

    def __str__(self) -> str:
        owner = f" of {self.origin}" if self.origin else ""
        return f"{self.op_name}[{self.impl_id}]{owner}"


def own_layer(op_name: str) -> OpImpl:
    """The record that stands for vLLM's own layer among the implementations of an operator."""
    kind = BackendImplKind.STOCK
    return OpImpl(op_name, kind.value, kind, empty_ok=True, batch_invariant=True)
