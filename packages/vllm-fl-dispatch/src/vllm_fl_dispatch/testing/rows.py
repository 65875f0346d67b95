"""Is a row's result that of the row alone?"""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_dispatch.contracts import lowered, positional_names
from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.testing.kit import Subject, as_tuple
from vllm_fl_dispatch.testing.served import served_in_each_dtype

#: Elements of the widest vector, and a multiple of all others.
VECTOR = 64


def rows_stand_alone(subject: Subject) -> None:
    """Where an implementation declares `batch_invariant`: the first and the last row of a batch are
    bit for bit those rows alone.

    Of rows as models have them, adjacent elements and whole vectors of any processor: on the CPU
    torch computes others, or their last elements, by other instructions.

    Raises:
        AssertionError: with the case and the row.
    """
    spec, names = subject.spec, positional_names(subject.spec)
    rows = spec.rows or spec.data
    if not subject.impl.batch_invariant or not rows:
        return

    def call(case: Case, part: slice) -> tuple[Any, ...]:
        maker = Maker(subject.device)
        args, options = lowered(spec, subject.fn, case.make(maker), case.options(maker))
        # Slices, not copies: other strides may be summed in another order.
        some = (
            value[part] if name in rows and isinstance(value, torch.Tensor) else value
            for name, value in zip(names, args, strict=True)
        )
        return as_tuple(subject.fn(*some, **options))

    def as_models_have_them(args: tuple[Any, ...]) -> bool:
        tokens = args[names.index(spec.data[0])]
        whole = tokens.shape[-1] % VECTOR == 0 and tokens.stride(-1) == 1
        return tokens.dim() > 1 and len(tokens) > 1 and whole

    for case in served_in_each_dtype(subject, limit=12, where=as_models_have_them):
        whole = call(case, slice(None))
        last = len(case.make(Maker("cpu"))[names.index(rows[0])]) - 1
        for row in (0, last):
            part = slice(row, row + 1)
            for have, want in zip(call(case, part), whole, strict=True):
                different = 0 if want is None else int((_bits(have) != _bits(want[part])).sum())
                assert not different, (
                    f"{subject} declares batch_invariant; {case.name}: row {row} alone differs "
                    f"from itself in the batch in {different} bytes of {have.nbytes}"
                )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers that are equal where the tensor's bits are, NaN included."""
    return tensor.contiguous().view(torch.uint8)
