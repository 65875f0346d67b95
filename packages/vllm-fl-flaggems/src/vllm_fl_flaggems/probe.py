"""Can FlagGems run here? Asked without importing it.

`import flag_gems` is no way to find out: without an accelerator it raises, with one it runs
vendor tools, initialises the device, and a failed import leaves it half built.
"""

from __future__ import annotations

from packaging.version import Version

from vllm_fl_dispatch import Verdict, probing

#: Triton releases that flag-gems works with: from, and before. With 3.7 its second launch of a
#: kernel passes too few arguments; with 3.8 its pointwise kernels do not compile.
TRITON_FROM, TRITON_BEFORE = Version("3.3"), Version("3.7")
#: Device nodes of the accelerators that FlagGems has backends for.
DEVICE_NODES = ("nvidia[0-9]*", "davinci[0-9]*", "kfd", "dxg", "cambricon_dev*", "mtgpu*", "xpu*")


def library_installed() -> Verdict:
    """Is flag_gems there, with a Triton that it works with?"""
    found = probing.module_installed("flag_gems", "pip install --no-deps flag-gems, and sqlalchemy")
    return probing.all_of(found, _triton()) if found else found


def device_present() -> Verdict:
    """Is there any accelerator that FlagGems may use?"""
    return probing.device_node("accelerator", DEVICE_NODES)


def _triton() -> Verdict:
    version = probing.version_of("triton")
    if version is None:
        return Verdict.no("triton is not installed")
    if TRITON_FROM <= Version(version) < TRITON_BEFORE:
        return Verdict.yes()
    return Verdict.no(
        f"triton {version} is outside the range that flag-gems works with: "
        f"{TRITON_FROM} to before {TRITON_BEFORE}"
    )
