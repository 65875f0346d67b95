"""Runs of a command under given policies, with their output in files."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vllm_fl_dispatch.bisecting.policies import Choices
from vllm_fl_dispatch.bisecting.search import Subset, remembered
from vllm_fl_dispatch.config.carried import VARIABLE, spelled
from vllm_fl_dispatch.errors import PolicyError


@dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
        on: operators served as at present; all others of the search were put elsewhere.
        code: exit code; negative: the signal that ended it; None: it took too long.
        seconds: wall time.
        output: file with what the command printed.
    """

    number: int
    on: Subset
    code: int | None
    seconds: float
    output: Path

    @property
    def failed(self) -> bool:
        return self.code != 0

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**asdict(self), "output": str(self.output), "failed": self.failed}


class Trials:
    """Answers whether a command fails, by running it; the same question is not run twice.

    Args:
        command: program and arguments.
        folder: where the output goes; it is there.
        timeout: seconds after which a run counts as failed.
        tell: called with each finished run.
    """

    def __init__(
        self,
        command: Sequence[str],
        choices: Choices,
        folder: Path,
        *,
        timeout: float | None = None,
        tell: Callable[[Trial], object] = lambda trial: None,
    ) -> None:
        self._command = list(command)
        self._choices = choices
        self._folder = folder
        self._timeout = timeout
        self._tell = tell
        self.done: list[Trial] = []
        #: Does the command fail with exactly these operators served as at present?
        self.fails = remembered(self._run, tuple(choices.present))

    def is_confirmed(self, on: Subset, *, failed: bool) -> bool:
        """Does another run with these say the same?"""
        return self._run(on) is failed

    def _run(self, on: Subset) -> bool:
        number = len(self.done) + 1
        output = self._folder / f"run-{number:03}.log"
        # Workers of the command take it over as it stands, whatever files and variables say.
        environment = {**os.environ, VARIABLE: spelled(self._choices.policy_with(on))}
        started = time.monotonic()
        with self._opened(output) as file:
            code = self._wait(self._start(environment, file))
        trial = Trial(number, on, code, time.monotonic() - started, output)
        self.done.append(trial)
        self._tell(trial)
        return trial.failed

    def _opened(self, output: Path) -> BinaryIO:
        try:
            return output.open("wb")
        except OSError as error:
            raise PolicyError(f"cannot keep the output of COMMAND: {error}") from error

    def _start(self, environment: dict[str, str], file: Any) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(  # noqa: S603  # the user's own command
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise PolicyError(f"cannot run {self._command[0]!r}: {error}") from error

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # What it left behind goes with it: workers would hold the device in the next run.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
