"""The real kernels of FlagGems without a device: interpreted, or compiled and not launched.

Both need a process of their own: `nox -s flaggems` runs them, in an environment with flag-gems.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Each kind of test in its kind of process; without flag-gems none, which is said."""
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    other_kind = "compiled.py" if interpreting else "interpreted.py"
    return True if collection_path.name.endswith(other_kind) else None


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The vendor, which no device node tells here; nothing outside the tests' own folder."""
    if importlib.util.find_spec("flag_gems") is None:
        pytest.skip("needs flag-gems: nox -s flaggems")
    folder = tmp_path_factory.mktemp("caches")
    os.environ["GEMS_VENDOR"] = "nvidia"
    os.environ["FLAGGEMS_CACHE_DIR"] = str(folder / "flaggems")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
