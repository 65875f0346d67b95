"""One function in a slot that calls the selected implementation and compares it."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.fallback import capturing
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.shadow import names
from vllm_fl_dispatch.shadow.difference import differences
from vllm_fl_dispatch.shadow.records import Deviation

if TYPE_CHECKING:
    from vllm_fl_dispatch.shadow import Shadow

logger = get_logger(__name__)


class Comparison:
    """The calls of one implementation through one slot. See `Shadow.compared`."""

    def __init__(
        self,
        shadow: Shadow,
        spec: OpSpec,
        impl: OpImpl,
        mode: str,
        fn: Call,
        layer: weakref.ref[Any] | None,
        stock: Call | None,
    ) -> None:
        self._shadow = shadow
        self._spec = spec
        self._impl = impl
        self._mode = mode
        self._fn = fn
        self._layer = layer
        self._stock = stock
        self._candidates: tuple[Candidate, ...] | None = None
        #: layer (None: not known) -> calls so far
        self._calls: Counter[Any] = Counter()

    def call(self, *args: Any, **options: Any) -> Any:
        """Call the selected implementation; on sampled calls the shadow before it.

        Before it, because the selected one may overwrite its arguments.
        """
        if torch.compiler.is_compiling():
            return self._fn(*args, **options)
        layer = self._layer if self._layer is not None else self._layer_of(args)
        self._calls[layer] += 1
        number = self._calls[layer]
        if not self._shadow.sampling.due(number) or not _comparable(args):
            return self._fn(*args, **options)
        shadow = self._run_shadow(args, options)
        # Described now: the selected one may overwrite its arguments, shapes included.
        arguments = self._describe(args)
        found = self._fn(*args, **options)
        if shadow is not None:
            name = "" if layer is None else names.name_of(layer())
            row = self._shadow.row(self._spec.name, self._impl.impl_id, shadow[0], self._mode, name)
            deviation = self._deviation(number, arguments, args, options, found, shadow[1])
            if row.add(deviation):
                self._shadow.deviated(row)
        return found

    def _layer_of(self, args: tuple[Any, ...]) -> weakref.ref[Any] | None:
        layer = names.layer_of(args) if self._mode == "opaque" else None
        return None if layer is None else weakref.ref(layer)

    def _beside(self) -> tuple[Candidate, ...]:
        """What may run beside, found at the first sampled call."""
        if self._candidates is None:
            self._candidates = ()  # also where finding it fails
            try:
                self._candidates = self._shadow.candidates(self._spec, self._impl, self._stock)
            # A shadow must not change what the model does, so it may not fail it either.
            except Exception as error:  # noqa: BLE001
                warning_once(logger, f"shadow: nothing runs beside {self._impl}: {in_brief(error)}")
        return self._candidates

    def _run_shadow(self, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[str, Any] | None:
        """(impl_id, result) of what runs beside; None if nothing can."""
        for candidate in self._beside():
            try:
                if candidate.refusal(args, options) or candidate.objection(args, options):
                    continue
                with torch.no_grad():
                    result = candidate.call(args, options, key=(), donate=False)
            except Exception as error:  # noqa: BLE001  # as above
                warning_once(logger, f"shadow: {candidate.impl} raised {in_brief(error)}")
                continue
            return candidate.impl.impl_id, result
        return None

    def _deviation(
        self,
        call: int,
        arguments: str,
        args: tuple[Any, ...],
        options: dict[str, Any],
        found: Any,
        expected: Any,
    ) -> Deviation:
        """The result that is worst against its tolerance."""
        results = (_as_tuple(found), _as_tuple(expected))
        try:
            found_differences = enumerate(differences(self._spec, args, options, *results))
            return max(
                (
                    Deviation(call, ulp, tolerance, index, arguments, note)
                    for index, (ulp, tolerance, note) in found_differences
                ),
                key=lambda each: (each.exceeds, each.ulp),
            )
        # What cannot be compared deviates; the model must not notice.
        except Exception as error:  # noqa: BLE001
            return Deviation(call, math.inf, 0.0, 0, arguments, f"incomparable: {error}")

    def _describe(self, args: tuple[Any, ...]) -> str:
        return ", ".join(
            f"{name} {list(arg.shape)} {str(arg.dtype).removeprefix('torch.')}"
            for name, arg in zip(positional_names(self._spec), args, strict=False)
            if isinstance(arg, torch.Tensor)
        )


def _comparable(args: tuple[Any, ...]) -> bool:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if any(isinstance(t, FakeTensor) or t.device.type == "meta" for t in tensors):
        return False
    return not capturing() and all(t.numel() for t in tensors[:1])


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
