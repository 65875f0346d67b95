"""What a command answers goes to standard output; whatever else is printed does not.

Kernels and plugins print, from C as well. While a command works, file descriptor 1 is therefore
standard error, and only for the answer what it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from typer.core import TyperCommand

from vllm_fl_dispatch.api import get_default_manager

#: A duplicate of the true standard output, while a command works.
_true: int | None = None


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Point descriptor 1 to standard error, but for the inside of `answering`."""
    global _true
    _flush()
    try:
        _true = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        # One of the two is closed: there is nothing to keep apart.
        _true = None
    try:
        yield
    finally:
        # What C has buffered would else come when the process ends.
        _flush()
        if _true is not None:
            os.dup2(_true, 1)
            os.close(_true)
            _true = None


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Point descriptor 1 to the true standard output."""
    global _true
    if _true is None:
        yield
        return
    _flush()
    true, _true = _true, None
    os.dup2(true, 1)
    try:
        yield
    finally:
        try:
            _flush()
        except BrokenPipeError:
            # The reader has gone, as `head` does: what is left is for nobody.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            _flush()
        os.dup2(2, 1)
        _true = true


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


class Command(TyperCommand):
    """A command that works before it answers."""

    def invoke(self, ctx: Any) -> Any:
        """Run it. What it tries is no run of a model, which a report would be of."""
        get_default_manager().report.to_file = False
        with working():
            return super().invoke(ctx)


class Answers(Console):
    """What it prints is an answer."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As a console prints."""
        with answering():
            super().print(*objects, **options)


def say(*lines: str) -> None:
    """Print lines as they are: JSON, YAML, what is to be copied."""
    with answering():
        print(*lines, sep="\n")
