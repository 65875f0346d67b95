"""Tests on a device: skipped, visibly, where there is none or FlagGems cannot be loaded."""

from __future__ import annotations

import importlib.util
import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def device(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The device; the files of flag-gems and Triton are kept in the tests' own folder."""
    if importlib.util.find_spec("flag_gems") is None:
        pytest.skip("needs flag-gems")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA device")
    folder = tmp_path_factory.mktemp("caches")
    os.environ["FLAGGEMS_CACHE_DIR"] = str(folder / "flaggems")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    torch.cuda.set_device(0)
    return "cuda"
