"""Loggers of the project, all below ``vllm_fl``; `VLLM_FL_LOG_LEVEL` sets their level."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import cast

ROOT = "vllm_fl"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


_said: set[str] = set()


def warning_once(logger: logging.Logger, message: str) -> None:
    """Say a thing once per process."""
    if message not in _said:
        _said.add(message)
        logger.warning("%s", message)


def get_logger(name: str) -> logging.Logger:
    """The logger of a module: ``vllm_fl_dispatch.manager`` logs as ``vllm_fl.manager``."""
    short = name.removeprefix("vllm_fl_").replace("dispatch.", "", 1)
    _configure(logging.getLogger(ROOT))
    return logging.getLogger(ROOT if short in (ROOT, "dispatch") else f"{ROOT}.{short}")


def set_log_level(level: str | int) -> None:
    """Set the level of all our loggers: DEBUG, INFO, WARNING or ERROR."""
    logging.getLogger(ROOT).setLevel(level_named(level) if isinstance(level, str) else level)


def level_named(level: str) -> int:
    """The number of a level, or ValueError."""
    name = level.strip().upper()
    if name not in LEVELS:
        raise ValueError(f"log level {level!r} is not accepted; accepted: {', '.join(LEVELS)}")
    return cast("int", getattr(logging, name))


@contextlib.contextmanager
def warnings_heard() -> Iterator[list[str]]:
    """The warnings of all our loggers that come inside, whatever the level is."""
    root = logging.getLogger(ROOT)
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    level = root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.WARNING))
    try:
        yield heard
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def _configure(root: logging.Logger) -> None:
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(name)s] %(message)s"))
    root.addHandler(handler)
    root.propagate = False
    root.setLevel(logging.INFO)
    value = os.environ.get("VLLM_FL_LOG_LEVEL", "").strip()
    if value:
        try:
            set_log_level(value)
        except ValueError as error:
            # A log level must not keep a server from starting.
            root.warning("VLLM_FL_LOG_LEVEL: %s", error)
