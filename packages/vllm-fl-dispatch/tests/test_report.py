"""What ran, and that nothing counts unless asked."""

from __future__ import annotations

from typing import Any

import torch

from .conftest import impl

X = torch.ones(2, 8)


def test_nothing_counts_unless_a_report_is_asked_for(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme"))
    manager.get_op("silu_and_mul")(X)
    assert manager.report.rows() == []


def test_calls_and_failures_are_counted_per_implementation(make_manager: Any) -> None:
    def narrow_only(x: Any) -> str:
        if x.shape[-1] > 8:
            raise RuntimeError("too wide")
        return "vendor.acme"

    manager = make_manager(impl("vendor.acme", narrow_only), impl("reference.torch"))
    manager.report.enabled = True
    manager.invalidate()
    op = manager.get_op("silu_and_mul")
    for width in (8, 8, 16, 16):
        op(torch.ones(1, width))
    rows = {row.impl_id: row for row in manager.report.rows()}
    assert rows["vendor.acme"].calls == 3
    assert rows["vendor.acme"].failures == 1
    assert rows["reference.torch"].calls == 2
    assert rows["reference.torch"].kind == "reference"
