"""The real kernels of FlagGems without a device: interpreted, or compiled and not launched.

Both need a process of their own: `nox -s flaggems` runs them, in an environment with flag-gems.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

# The helpers beside this file, for the tests beside this file.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Each kind of test in its kind of process; without flag-gems none, which is said."""
    interpreting = os.environ.get("TRITON_INTERPRET") == "1"
    kinds = {"test_interpreted.py": interpreting, "test_compiled.py": not interpreting}
    return None if kinds.get(collection_path.name, True) else True


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where flag_gems and Triton keep their files."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="session", autouse=True)
def environment(folder: Path) -> None:
    """The vendor, which no device node tells here; nothing outside the tests' own folder."""
    if importlib.util.find_spec("flag_gems") is None:
        pytest.skip("needs flag-gems: nox -s flaggems")
    os.environ["GEMS_VENDOR"] = "nvidia"
    os.environ["FLAGGEMS_CACHE_DIR"] = str(folder / "flaggems")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
