"""What holds for all calls of an operator."""

from __future__ import annotations

from collections.abc import Callable

from vllm_fl_dispatch.testing.kit import Subject


def test_structure(subject: Subject, structural: Callable[[Subject], None]) -> None:
    """See `vllm_fl_dispatch.testing.structure`."""
    structural(subject)
