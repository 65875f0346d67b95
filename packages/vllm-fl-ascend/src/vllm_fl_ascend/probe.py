"""Can torch_npu run here? Asked without importing it.

`import torch_npu` without the CANN libraries raises, and with them it changes torch for the whole
process.
"""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

from vllm_fl_dispatch import Verdict, probing

#: The library whose absence makes `import torch_npu` fail, and where CANN's set-up script puts it.
ACL_LIBRARY = "libascendcl.so"
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
DEVICE_NODES = ("davinci[0-9]*",)


def library_installed() -> Verdict:
    """Are torch_npu and the CANN libraries it needs there?"""
    found = probing.module_installed("torch_npu", "pip install torch-npu for your torch")
    return _cann() if found else found


def device_present() -> Verdict:
    """Is an NPU visible to this process?"""
    return probing.all_of(
        probing.device_node("Ascend NPU", DEVICE_NODES),
        probing.devices_visible("ASCEND_RT_VISIBLE_DEVICES"),
    )


def _cann() -> Verdict:
    folders = [Path(os.environ[name]) / "lib64" for name in CANN_VARIABLES if name in os.environ]
    folders += [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    if any((folder / ACL_LIBRARY).exists() for folder in folders):
        return Verdict.yes()
    if ctypes.util.find_library("ascendcl"):
        return Verdict.yes()
    return Verdict.no(
        f"{ACL_LIBRARY} (CANN) was not found by {', '.join(CANN_VARIABLES)} or LD_LIBRARY_PATH; "
        "source CANN's set_env.sh"
    )
