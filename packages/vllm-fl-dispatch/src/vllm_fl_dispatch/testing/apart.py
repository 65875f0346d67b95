"""Cases in a process of their own: a kernel that kills it, or spoils the device, fails alone."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.fallback import is_device_trouble
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing.kit import Outcome, Result, Subject, run_case
from vllm_fl_dispatch.testing.subjects import subjects


class Apart:
    """Runs cases in another process, which is started again when it died.

    Plugins and policy are found there as in every new process.
    """

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Apart:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def run(self, subject: Subject, case: Case) -> Result:
        """`run_case`, there."""
        process, connection = self._started()
        connection.send((subject.spec.name, subject.impl.impl_id, subject.device, case.name))
        wait([connection, process.sentinel])
        if not connection.poll():
            process.join()
            message = f"killed its process: {_cause(process.exitcode)}"
            self._stop()
            return Result(subject, case, Outcome.FAILED, message=message)
        try:
            facts, spoilt = connection.recv()
        except EOFError:
            process.join()
            self._stop()
            message = f"killed its process: {_cause(process.exitcode)}"
            return Result(subject, case, Outcome.FAILED, message=message)
        if spoilt:
            self._stop()
        return replace(Result(subject, case, Outcome.PASSED), **facts)

    def _started(self) -> tuple[SpawnProcess, Connection]:
        if self._process is None or self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        return self._process, self._connection

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.terminate()
            self._process.join()
        self._process = self._connection = None


def serve(connection: Connection) -> None:
    """The other process: answer until nobody asks."""
    get_default_manager().report.to_file = False
    known: dict[tuple[str, str, str], tuple[Subject, dict[str, Case]]] = {}
    while True:
        try:
            op, impl_id, device, name = connection.recv()
        except EOFError:
            return
        where = (op, impl_id, device)
        if where not in known:
            found, _ = subjects(get_default_manager(), op=op, impl_id=impl_id, device=device)
            known[where] = (found[0], {case.name: case for case in found[0].cases()})
        subject, cases = known[where]
        result = run_case(subject, cases[name])
        facts: dict[str, Any] = {
            field: getattr(result, field)
            for field in ("outcome", "ulp", "message", "numel", "seed")
        }
        connection.send((facts, _is_spoilt(subject)))


def _is_spoilt(subject: Subject) -> bool:
    """Is the device of no more use to this process?"""
    import torch

    if subject.device == "cpu":
        return False
    try:
        torch.ones(1, device=subject.device).sum().item()
    except RuntimeError as error:
        return is_device_trouble(error)
    return False


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
