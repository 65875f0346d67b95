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
from vllm_fl_dispatch.cli.answers import Command
from vllm_fl_dispatch.cli.app import app

for each in (*app.registered_commands, *config.config.registered_commands):
    each.cls = Command

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
