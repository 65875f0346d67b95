"""Who implements what.

Changes are made on copies, so a reader never sees half of one, and in turn, so that none is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from vllm_fl_dispatch.errors import ContractError, DuplicateError, UnknownOp
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.selectors import SelectorSpec, Spec
from vllm_fl_dispatch.snapshot import Refusal, Snapshot, merged, with_impl, with_spec
from vllm_fl_dispatch.types import BackendImplKind, Origin


class OpRegistry:
    """Operators and their implementations."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._now = snapshot or Snapshot()
        self._lock = ForkLock()
        #: Called after each change; the manager rebinds its handles here.
        self.on_change: Callable[[], None] | None = None

    def snapshot(self) -> Snapshot:
        return self._now

    def replace_with(self, snapshot: Snapshot) -> None:
        """Take over the contents of another registry in one step."""
        self._change(lambda now: snapshot)

    def absorb(self, other: OpRegistry, before: Snapshot) -> None:
        """Add in one step what another registry has more than when it began as `before`.

        What was registered here meanwhile stays; what no longer fits beside it is refused.
        """
        self._change(lambda now: merged(now, before, other.snapshot()))

    def _change(self, changed: Callable[[Snapshot], Snapshot]) -> None:
        """Replace the contents by what is made of them; the same ones are no change."""
        with self._lock:
            before, self._now = self._now, changed(self._now)
            is_new = self._now is not before
        # Not under the lock: what follows asks the registry, and takes locks of its own.
        if is_new and self.on_change is not None:
            self.on_change()

    def add_spec(self, spec: Spec, origin: Origin | None = None) -> None:
        """Add an operator. The same object twice is no change; another one is an error."""
        self._change(lambda now: with_spec(now, spec, origin))

    def register_impl(self, impl: OpImpl) -> None:
        """Add an implementation; raises ContractError or DuplicateError.

        The same one twice is no change. One of an operator that nobody specified is kept: its
        contract may come later, and reports list it.
        """
        if impl.kind is BackendImplKind.STOCK:
            raise ContractError(
                f"{impl}: kind STOCK stands for vLLM's own layers, not for a backend"
            )
        self._change(lambda now: with_impl(now, impl))

    def register_many(self, impls: Iterable[OpImpl]) -> None:
        for impl in impls:
            self.register_impl(impl)

    def refuse(self, refusal: Refusal) -> None:
        self._change(lambda now: replace(now, refusals=(*now.refusals, refusal)))

    def contract(self, name: str) -> Spec:
        """The contract of an operator or selector, or UnknownOp with the nearest names."""
        try:
            return self._now.specs[name]
        except KeyError:
            raise UnknownOp(unknown_name("operator", name, self._now.specs)) from None

    def spec(self, name: str) -> OpSpec:
        """The contract of an operator that can be called."""
        found = self.contract(name)
        if isinstance(found, SelectorSpec):
            raise UnknownOp(
                f"{name} is selected when vLLM asks for it and cannot be called; operators: "
                f"{', '.join(self.op_names())}"
            )
        return found

    def impls(self, name: str) -> tuple[OpImpl, ...]:
        return self._now.impls.get(name, ())

    def names(self) -> tuple[str, ...]:
        """All that a policy may speak of: operators and selectors."""
        return tuple(sorted(self._now.specs))

    def op_names(self) -> tuple[str, ...]:
        """The operators: what can be called."""
        specs = self._now.specs
        return tuple(name for name in self.names() if not isinstance(specs[name], SelectorSpec))

    def vendors(self) -> frozenset[str]:
        return frozenset(
            impl.vendor.lower()
            for group in self._now.impls.values()
            for impl in group
            if impl.vendor
        )

    def orphans(self) -> tuple[OpImpl, ...]:
        """Implementations registered under a name that no operator has."""
        return tuple(
            impl
            for name, group in self._now.impls.items()
            if name not in self._now.specs
            for impl in group
        )

    def size(self) -> int:
        return sum(len(group) for group in self._now.impls.values())


class Registrar:
    """The narrow door through which a plugin registers. One misfit is refused alone."""

    def __init__(self, registry: OpRegistry, origin: Origin) -> None:
        self._registry = registry
        self._origin = origin

    def add(self, impl: OpImpl) -> None:
        """Add one implementation. One that does not fit is refused and reported, not raised."""
        if not isinstance(impl, OpImpl):
            self._refuse(repr(impl), f"expected an OpImpl, found {type(impl).__name__}")
            return
        impl = replace(impl, origin=impl.origin or self._origin)
        try:
            self._registry.register_impl(impl)
        except (ContractError, DuplicateError) as error:
            self._refuse(f"{impl.op_name}[{impl.impl_id}]", str(error))

    def add_many(self, impls: Iterable[OpImpl]) -> None:
        for impl in impls:
            self.add(impl)

    def add_spec(self, spec: Spec) -> None:
        """Add an operator of your own."""
        try:
            self._registry.add_spec(spec, self._origin)
        except DuplicateError as error:
            self._refuse(spec.name, str(error))

    register_impl = add
    register_many = add_many

    def _refuse(self, what: str, reason: str) -> None:
        self._registry.refuse(Refusal(what, reason, self._origin))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, or ""."""
    import difflib  # only for messages

    found = difflib.get_close_matches(name, list(known), n=1)
    return found[0] if found else ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """``unknown operator 'rms_nrom'; did you mean 'rms_norm'? known: ...``."""
    known = sorted(known)
    near = nearest(name, known)
    hint = f" did you mean {near!r}?" if near else ""
    return f"unknown {what} {name!r};{hint} known: {', '.join(known) or '(none)'}"
