"""Cases in a process of their own: a kernel that kills it, or spoils the device, fails alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.fallback import is_device_trouble
from vllm_fl_dispatch.logger_manager import set_log_level
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing.kit import Outcome, Result, Subject
from vllm_fl_dispatch.testing.runs import STRUCTURAL, run
from vllm_fl_dispatch.testing.subjects import subjects

#: Seconds for one case, with what a kernel compiles at its first call.
TIMEOUT = 300.0


class Apart:
    """Runs cases in another process, which is started again when it died.

    Plugins and policy are found there as in every new process; what was registered in code, and is
    not found there, runs in this one.

    Args:
        timeout: seconds after which a case that does not return has failed.
    """

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
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
        """`runs.run`, there.

        Raises:
            DispatchError: the other process does not start.
        """
        process, connection = self._started()
        connection.send((subject.spec.name, subject.impl.impl_id, subject.device, case.name))
        if not wait([connection, process.sentinel], self._timeout):
            self._stop(patience=0)
            message = f"did not return within {self._timeout:g} seconds"
            return Result(subject, case, Outcome.FAILED, message=message)
        try:
            facts, spoilt = connection.recv()
        except (EOFError, ConnectionResetError):
            process.join()
            message = f"killed its process: {_cause(process.exitcode)}"
            self._stop()
            return Result(subject, case, Outcome.FAILED, message=message)
        if facts is None:
            return run(subject, case)
        if spoilt:
            self._stop()
        return replace(Result(subject, case, Outcome.PASSED), **facts)

    def _started(self) -> tuple[SpawnProcess, Connection]:
        if self._process is not None and not self._process.is_alive():
            self._stop()  # it died after its last answer
        if self._process is None or self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
            try:
                self._connection.recv()
            except EOFError:
                self._process.join()
                raise DispatchError(
                    "the process that is to run the cases ended while it started: "
                    f"{_cause(self._process.exitcode)}; --here runs them in this one"
                ) from None
        return self._process, self._connection

    def _stop(self, patience: float = 5) -> None:
        """End the process; `patience`: the seconds that it has for doing so itself."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join(patience)
            self._process.kill()
            self._process.join()
        self._process = self._connection = None


def serve(connection: Connection) -> None:
    """The other process: answer until nobody asks."""
    # Interrupts are for the other one; what kernels print is no answer of a command.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    if "VLLM_FL_LOG_LEVEL" not in os.environ:
        set_log_level("ERROR")  # the other one has warned
    known: dict[tuple[str, str, str], tuple[Subject, dict[str, Case]] | None] = {}
    manager = get_default_manager()
    manager.report.to_file = False
    manager.ensure_built()
    connection.send("ready")
    while True:
        try:
            op, impl_id, device, name = connection.recv()
        except EOFError:
            return
        where = (op, impl_id, device)
        if where not in known:
            known[where] = _found(manager, *where)
        pair = known[where]
        if pair is None:
            connection.send((None, False))
            continue
        subject, cases = pair
        result = run(subject, cases[name])
        facts: dict[str, Any] = {
            field: getattr(result, field)
            for field in ("outcome", "ulp", "message", "numel", "seed")
        }
        connection.send((facts, _is_spoilt(subject)))


def _found(
    manager: OpManager, op: str, impl_id: str, device: str
) -> tuple[Subject, dict[str, Case]] | None:
    try:
        found, _ = subjects(manager, op=op, impl_id=impl_id, device=device)
    except DispatchError:
        return None
    if not found:
        return None
    return found[0], {**{case.name: case for case in found[0].cases()}, **STRUCTURAL}


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
