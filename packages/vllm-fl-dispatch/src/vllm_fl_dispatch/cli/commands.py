"""The application with all its commands: importing a command's module adds it."""

from __future__ import annotations

from vllm_fl_dispatch.cli import (
    bench,
    bisect,
    config,
    demo,
    doctor,
    explain,
    new_backend,
    ops,
    plugins,
    report,
    tune,
    verify,
)
from vllm_fl_dispatch.cli.app import app

__all__ = [
    "app",
    "bench",
    "bisect",
    "config",
    "demo",
    "doctor",
    "explain",
    "new_backend",
    "ops",
    "plugins",
    "report",
    "tune",
    "verify",
]
