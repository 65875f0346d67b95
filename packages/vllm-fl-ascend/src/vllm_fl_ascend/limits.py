"""How `supports` is written: each limit is a reason, or None where the call is within it."""

from __future__ import annotations

from collections.abc import Collection

import torch

from vllm_fl_dispatch import Query, Verdict

HALF = (torch.float16, torch.bfloat16)
FLOAT = (*HALF, torch.float32)


def within(*objections: str | None) -> Verdict:
    """Yes, or no with the first objection."""
    for objection in objections:
        if objection is not None:
            return Verdict.no(objection)
    return Verdict.yes()


def dtype_in(query: Query, accepted: Collection[torch.dtype], fact: str = "dtype") -> str | None:
    """A dtype that is known must be one of these."""
    found = query.get(fact)
    if found is None or found in accepted:
        return None
    return f"{fact} {found} is not one of {', '.join(map(str, accepted))}"


def at_most(query: Query, fact: str, limit: int) -> str | None:
    """A number that is known must not exceed the limit."""
    found = query.get(fact)
    return None if found is None or found <= limit else f"{fact} {found} is more than {limit}"
