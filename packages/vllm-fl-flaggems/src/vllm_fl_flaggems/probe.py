"""Can FlagGems run here? Asked without importing it.

`import flag_gems` is no way to find out: without an accelerator it raises, with one it runs
vendor tools, initialises the device, and a failed import leaves it half built.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from vllm_fl_dispatch import Query, Verdict, probing

#: flag-gems pins numpy 1.26 beside its other requirements, and vLLM needs numpy 2: pip cannot
#: resolve the two together, so it is installed without its requirements.
HOW_TO_INSTALL = "pip install --no-deps flag-gems==5.0.2"
#: What flag_gems imports besides torch and triton; vllm-fl-flaggems depends on them.
REQUIREMENTS = ("sqlalchemy", "yaml", "packaging")
#: Distributions that provide the module `triton`. Only the first has the versions below.
TRITONS = ("triton", "triton-ascend", "flagtree")
#: Releases of Triton that flag-gems works with: from, and before.
TRITON_FROM, TRITON_BEFORE = Version("3.3"), Version("3.8")
#: Releases from which on it does not, the newest first, and why.
TRITON_FAULTS = (
    (TRITON_BEFORE, "its generated pointwise kernels do not compile"),
    (Version("0"), "its launcher knows no release before 3.3"),
)
#: Where vLLM itself uses its kernels in Triton.
TRITON_VENDORS = ("nvidia", "amd")
#: Device node -> the vendor as flag-gems calls it, for devices that no backend describes.
NODE_VENDORS = {
    "nvidia[0-9]*": "nvidia",
    "dxg": "nvidia",
    "davinci[0-9]*": "ascend",
    "cambricon_dev*": "cambricon",
    "mtgpu*": "mthreads",
    "kfd": "amd",
    "xpu*": "kunlunxin",
}
#: vendor -> the variable that says which of its devices a process sees.
VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"}


def library_installed() -> Verdict:
    """Is flag_gems there, with what it imports and a Triton that it works with?"""
    found = probing.module_installed("flag_gems", HOW_TO_INSTALL)
    if not found:
        return found
    needed = (probing.module_installed(name, "flag-gems imports it") for name in REQUIREMENTS)
    return probing.all_of(*needed, triton_fits())


def triton_version() -> str | None:
    """The version of the installed Triton, whichever distribution provides it."""
    return next(filter(None, map(probing.version_of, TRITONS)), None)


def triton_fits() -> Verdict:
    """Does flag-gems work with the installed Triton?"""
    version = probing.version_of(TRITONS[0])
    if version is None:
        found = triton_version()
        return Verdict.yes() if found else Verdict.no("triton is not installed")
    if TRITON_FROM <= Version(version) < TRITON_BEFORE:
        return Verdict.yes()
    fault = next(why for since, why in TRITON_FAULTS if Version(version) >= since)
    return Verdict.no(
        f"triton {version} is outside the range that flag-gems works with, {TRITON_FROM} to before "
        f"{TRITON_BEFORE}: {fault}. torch up to 2.13 brings an older one; a vLLM that pins a "
        "newer torch cannot use flag-gems yet"
    )


def device_present() -> Verdict:
    """Is there any accelerator that FlagGems may use, and visible to this process?"""
    found = probing.device_node("accelerator", NODE_VENDORS)
    if not found or node_vendor() is not None:
        return found
    return probing.all_of(*map(probing.devices_visible, VISIBLE.values()))


def node_vendor(dev: Path = Path("/dev")) -> str | None:
    """The vendor of the first device node found, as flag-gems calls it; not of hidden devices."""
    found = (v for pattern, v in NODE_VENDORS.items() if next(dev.glob(pattern), None) is not None)
    return next(filter(_visible, found), None)


def _visible(vendor: str) -> bool:
    return vendor not in VISIBLE or bool(probing.devices_visible(VISIBLE[vendor]))


def on_accelerator(query: Query) -> Verdict:
    """For `supports`: is the call on a device, as far as is known? Triton's interpreter is one."""
    if query.device_type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return Verdict.no("it runs on accelerators, the call is on cpu")
    return Verdict.yes()


def triton_installed() -> Verdict:
    """Is Triton there? Any version: vLLM, whose kernels need it too, knows the one it pins."""
    return probing.module_installed("triton")


def triton_available() -> Verdict:
    """Is there a device that kernels in plain Triton were made for: vLLM's attention, and ours?"""
    vendor = node_vendor()
    if vendor in TRITON_VENDORS:
        return Verdict.yes()
    return Verdict.no(
        f"kernels in plain Triton run on {' and '.join(TRITON_VENDORS)}; "
        f"the device nodes say {vendor or 'nothing'}"
    )


def offers(name: str) -> Callable[[], Verdict]:
    """`installed` of an operator that only some releases have: do they export this function?"""

    def installed() -> Verdict:
        found = library_installed()
        if not found or name in _exported():
            return found
        version = probing.version_of("flag-gems")
        return Verdict.no(f"the installed flag-gems {version} has no {name}")

    return installed


def _exported() -> frozenset[str]:
    """The names in flag_gems' lists of operators, read as text."""
    spec = importlib.util.find_spec("flag_gems")
    roots = [Path(each) for each in (spec and spec.submodule_search_locations) or ()]
    lists = [root / folder / "__init__.py" for root in roots for folder in ("fused", "ops")]
    text = "".join(path.read_text(encoding="utf-8") for path in lists if path.is_file())
    return frozenset(re.findall(r"\w+", text))
