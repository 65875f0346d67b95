"""Tests on a device: skipped, visibly, where there is none or FlagGems is not installed."""

from __future__ import annotations

import importlib.util

import caches
import pytest


def _missing() -> str:
    if importlib.util.find_spec("flag_gems") is None:
        return "needs flag-gems"
    import torch

    return "" if torch.cuda.is_available() else "needs an NVIDIA device"


def pytest_configure(config: pytest.Config) -> None:
    if not _missing():
        caches.use_private_folder(config)


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """The device, where there is one."""
    if missing := _missing():
        pytest.skip(missing)
    return "cuda"
