"""The application with all its commands: importing a command's module adds it."""

from __future__ import annotations

from vllm_fl_dispatch.cli import (
    config,
    demo,
    doctor,
    explain,
    new_backend,
    ops,
    plugins,
    report,
    verify,
)
from vllm_fl_dispatch.cli.app import app

__all__ = [
    "app",
    "config",
    "demo",
    "doctor",
    "explain",
    "new_backend",
    "ops",
    "plugins",
    "report",
    "verify",
]
