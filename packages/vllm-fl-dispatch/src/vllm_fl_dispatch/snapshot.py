"""What a registry holds at one moment, and how one moment follows from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial

from vllm_fl_dispatch.contracts import check_contract
from vllm_fl_dispatch.errors import ContractError, DuplicateError
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.selectors import Spec
from vllm_fl_dispatch.types import Origin


@dataclass(frozen=True)
class Refusal:
    """Something that was not registered, and why; the rest of its plugin was."""

    what: str
    reason: str
    origin: Origin | None = None


@dataclass(frozen=True)
class Snapshot:
    """The contents of a registry at one moment."""

    specs: dict[str, Spec] = field(default_factory=dict)
    spec_owners: dict[str, Origin | None] = field(default_factory=dict)
    impls: dict[str, tuple[OpImpl, ...]] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()


#: What tells two implementations apart. The questions are not among it: a plugin that is announced
#: twice makes their functions anew.
_COMPARED = tuple(
    each.name for each in fields(OpImpl)
    if each.name not in ("origin", "installed", "available", "supports")
)  # fmt: skip


def with_spec(now: Snapshot, spec: Spec, origin: Origin | None) -> Snapshot:
    """With an operator more; the same object twice is no change.

    Raises:
        DuplicateError: another object has its name.
    """
    if now.specs.get(spec.name) is spec:
        return now
    if spec.name in now.specs:
        raise DuplicateError(
            f"operator {spec.name!r} is specified twice: by {now.spec_owners[spec.name]} "
            f"and by {origin}"
        )
    return replace(
        now,
        specs={**now.specs, spec.name: spec},
        spec_owners={**now.spec_owners, spec.name: origin},
    )


def with_impl(now: Snapshot, impl: OpImpl) -> Snapshot:
    """With an implementation more; the same one twice is no change.

    Raises:
        ContractError: it does not fit its operator.
        DuplicateError: another one has its id.
    """
    existing = now.impls.get(impl.op_name, ())
    for other in existing:
        if other.impl_id == impl.impl_id:
            differing = [name for name in _COMPARED if getattr(other, name) != getattr(impl, name)]
            if not differing:
                return now
            raise DuplicateError(
                f"{impl.op_name}[{impl.impl_id}] is registered twice with different "
                f"{', '.join(differing)}: by {other.origin or 'code'} and by "
                f"{impl.origin or 'code'}"
            )
    spec = now.specs.get(impl.op_name)
    if spec is not None:
        check_contract(spec, impl)
    return replace(now, impls={**now.impls, impl.op_name: (*existing, impl)})


def _or_refusal(
    now: Snapshot, what: str, origin: Origin | None, added: Callable[[], Snapshot]
) -> Snapshot:
    try:
        return added()
    except (ContractError, DuplicateError) as error:
        return replace(now, refusals=(*now.refusals, Refusal(what, str(error), origin)))


def merged(now: Snapshot, before: Snapshot, staged: Snapshot) -> Snapshot:
    """With what `staged` has more than `before`, from which it was made.

    What is there by now stays; what does not fit beside it is refused.
    """
    if now is before:
        return staged
    now = replace(now, refusals=(*now.refusals, *staged.refusals[len(before.refusals) :]))
    for name, spec in staged.specs.items():
        if name not in before.specs:
            owner = staged.spec_owners[name]
            now = _or_refusal(now, name, owner, partial(with_spec, now, spec, owner))
    for name, impls in staged.impls.items():
        for impl in impls[len(before.impls.get(name, ())) :]:
            what = f"{name}[{impl.impl_id}]"
            now = _or_refusal(now, what, impl.origin, partial(with_impl, now, impl))
    return now
