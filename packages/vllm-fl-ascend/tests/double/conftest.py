"""These tests run in a process of their own: importing torch_npu changes torch for good."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Where torch_npu is installed, importing torch would import it, before the stand-ins for CANN.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(Path(__file__).parent))

import torch  # after the variable above
from npu_double import install  # found on the path set above


@pytest.fixture(scope="session", autouse=True)
def _double(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The model stands behind torch_npu's operators; without wheel or compiler all is skipped."""
    reason = install.why_not()
    if reason is not None:
        pytest.skip(reason)
    install.install(tmp_path_factory.mktemp("cann"))
    # The tensors are tiny: threads cost more than they give.
    torch.set_num_threads(1)
