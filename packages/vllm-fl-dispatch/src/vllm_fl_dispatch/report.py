"""What ran: which implementation served which operator, in how many layers, how often.

Nothing counts unless a report was asked for: then counting functions stand in the slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.op_impl import OpImpl


@dataclass
class Row:
    """One line of the report.

    `mode` says how calls reach the implementation: ``stock`` (vLLM's own layer), ``inlined``
    (traced into compiled code), ``opaque`` (through a torch operator in compiled code) or
    ``eager``. Only the last two can be counted.
    """

    op: str
    impl_id: str
    kind: str
    mode: str
    layers: int = 0
    calls: int = 0
    failures: int = 0


class Report:
    """Counts of this process."""

    def __init__(self) -> None:
        self.enabled = False
        #: May a file be written, where `VLLM_FL_REPORT` asks for one? Not by our own commands.
        self.to_file = True
        #: When a report for a file began.
        self.started = ""
        #: Writes the report, where one is wanted; called when there is something new to tell.
        self.on_news: Callable[[], object] | None = None
        self._rows: dict[tuple[str, str, str], Row] = {}

    def layer(self, impl: OpImpl, mode: str) -> None:
        """A layer was bound to an implementation."""
        self._row(impl, mode).layers += 1

    def failed(self, impl: OpImpl) -> None:
        """An implementation failed, and another one answered."""
        for row in list(self._rows.values()):
            if (row.op, row.impl_id) == (impl.op_name, impl.impl_id):
                row.failures += 1
        self.save()

    def save(self) -> None:
        """Write the report now, where one is wanted."""
        if self.on_news is not None:
            self.on_news()

    def forget(self) -> None:
        """Start counting anew: a forked child has done nothing yet."""
        for row in self._rows.values():
            row.calls = row.failures = 0

    def counted(self, impl: OpImpl, mode: str, fn: Call) -> Call:
        """`fn`, or where the report is on, a function that counts and calls it."""
        return _counting(self._row(impl, mode), fn) if self.enabled else fn

    def rows(self) -> list[Row]:
        """Everything that was bound or called, by operator."""
        # A list first: this may run in a signal handler while another thread adds a row.
        used = [row for row in list(self._rows.values()) if row.layers or row.calls or row.failures]
        return sorted(used, key=lambda row: (row.op, row.mode, row.impl_id))

    def as_dicts(self) -> list[dict[str, Any]]:
        """The rows for JSON."""
        return [asdict(row) for row in self.rows()]

    def _row(self, impl: OpImpl, mode: str) -> Row:
        key = (impl.op_name, impl.impl_id, mode)
        return self._rows.setdefault(key, Row(impl.op_name, impl.impl_id, impl.kind.value, mode))


def _counting(row: Row, fn: Call) -> Call:
    def counting(*args: Any, **options: Any) -> Any:
        row.calls += 1
        return fn(*args, **options)

    return counting
