"""Where flag-gems and Triton keep what they generate and compile."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest


def use_private_folder(config: pytest.Config) -> None:
    """Until the tests end: a folder of their own, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="flaggems-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["FLAGGEMS_CACHE_DIR"] = str(folder / "flaggems")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
