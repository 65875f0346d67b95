"""The real kernels of FlagGems without a device: interpreted, or compiled and not launched.

Both need a process of their own: `nox -s flaggems` runs them, in an environment with flag-gems.
"""

from __future__ import annotations

import os
from pathlib import Path

import caches
import pytest


def pytest_configure(config: pytest.Config) -> None:
    caches.use_private_folder(config)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Each kind of test in its kind of process."""
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    other_kind = "compiled.py" if interpreting else "interpreted.py"
    return True if collection_path.name.endswith(other_kind) else None
