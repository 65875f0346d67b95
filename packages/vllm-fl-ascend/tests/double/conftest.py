"""These tests run in a process of their own: importing torch_npu changes torch for good."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

# Where torch_npu is installed, importing torch would import it, before the stand-ins for CANN.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
sys.path.insert(0, str(Path(__file__).parent))

import torch  # after the variable above
from npu_double import install  # found on the path set above

from vllm_fl_ascend import plugin


@pytest.fixture(scope="session", autouse=True)
def _double(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The model stands behind torch_npu's operators; without wheel or compiler all is skipped."""
    reason = install.why_not()
    if reason is not None:
        pytest.skip(reason)
    install.install(tmp_path_factory.mktemp("cann"))
    # The tensors are tiny: threads cost more than they give.
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _registered_for_the_double() -> Iterator[None]:
    """The model of the NPU computes on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugin, "DEVICE", replace(plugin.DEVICE, device_type="cpu"))
        yield
