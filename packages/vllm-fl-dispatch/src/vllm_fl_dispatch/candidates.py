"""One implementation as a slot sees it: loaded, and with what its calls need."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from vllm_fl_dispatch.contracts import lower, missing_options, option_defaults, positional_names
from vllm_fl_dispatch.errors import OpNotSupported
from vllm_fl_dispatch.fallback import copy_arguments, is_expanded
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec


@dataclass(eq=False)
class Candidate:
    """An accepted implementation of an operator.

    Attributes:
        fn: what is called; keeps a record where a report or a shadow was asked for.
        missing: options of the contract that it does not take.
        mutated: positions of the arguments that it overwrites.
        proven: the kinds of calls for which it succeeded once.
    """

    spec: OpSpec
    impl: OpImpl
    fn: Call
    missing: frozenset[str]
    mutated: tuple[int, ...]
    proven: set[Hashable] = field(default_factory=set)

    @classmethod
    def of(cls, spec: OpSpec, impl: OpImpl, fn: Call, called: Call) -> Candidate:
        """A candidate for `fn`, which is called through `called`."""
        mutated = tuple(map(positional_names(spec).index, impl.mutates))
        return cls(spec, impl, called, missing_options(spec, fn), mutated)

    def refusal(self, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        """Why it does not serve calls of this kind."""
        defaults = option_defaults(self.spec)
        for name in self.missing & set(options):
            if options[name] != defaults[name] and name not in self.spec.lower:
                return f"has no option {name}"
        if self.impl.supports is None and not self.impl.device_types:
            return None
        args, options = lower(self.spec, self.missing, args, options)
        query = self.spec.query(*args, **options)
        verdict = self.impl.verdict_on(query)
        return None if verdict else f"unsupported: {verdict.reason}"

    def objection(self, args: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        """Why its declared data limits keep it from this call."""
        impl = self.impl
        if not impl.has_data_limits:
            return None
        for value in (*args, *options.values()):
            if not hasattr(value, "is_contiguous"):  # no tensor
                continue
            if impl.needs_contiguous and not value.is_contiguous():
                return "needs contiguous inputs"
            if impl.max_numel is not None and value.numel() > impl.max_numel:
                return f"serves at most {impl.max_numel} elements"
        return None

    def on_copies(self, key: Hashable, donate: bool) -> bool:
        """Does its next call for this kind run on copies of what it overwrites?"""
        return bool(self.mutated) and (not donate or key not in self.proven)

    def call(
        self, args: tuple[Any, ...], options: dict[str, Any], key: Hashable, donate: bool
    ) -> Any:
        """Call it, on copies where it must not overwrite the arguments (yet)."""
        if self.missing:
            args, options = lower(self.spec, self.missing, args, options)
        if self.on_copies(key, donate):
            args = tuple(copy_arguments(args, self.mutated, keep_layout=donate))
        elif self.mutated:
            args = _distinct(args, self.mutated)
        return self.fn(*args, **options)


def answering_empty(spec: OpSpec, impl: OpImpl, fn: Call) -> Call:
    """`fn`, or where the implementation does not take calls without rows, a function that answers
    those itself: with empty results."""
    if impl.empty_ok or not spec.data:
        return fn
    first = positional_names(spec).index(spec.data[0])

    def call(*args: Any, **options: Any) -> Any:
        if args[first].numel():
            return fn(*args, **options)
        if spec.fake is None:
            raise OpNotSupported(f"it takes no empty input, and {spec.name} has no shape function")
        results = spec.fake(*args, **options)
        every = results if isinstance(results, tuple) else (results,)
        # A sum over nothing has elements: somebody must write them.
        if any(result is not None and result.numel() for result in every):
            return fn(*args, **options)
        return results

    return call


def _distinct(args: tuple[Any, ...], positions: tuple[int, ...]) -> tuple[Any, ...]:
    """The arguments, the overwritten ones of which have memory of their own for each element."""
    import torch

    # Where a compiler traces, tensors have no addresses.
    tracing = torch.compiler.is_compiling()
    seen: list[Any] = []
    changed = list(args)
    for position in positions:
        tensor = changed[position]
        if tensor is None:
            continue
        begin = None if tracing else tensor.data_ptr()
        if is_expanded(tensor) or any(
            tensor is other or (not tracing and begin == other.data_ptr()) for other in seen
        ):
            changed[position] = tensor.new_empty(tensor.shape).copy_(tensor)
        seen.append(changed[position])
    return tuple(changed)
