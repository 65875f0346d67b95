"""Stand-ins for the CANN libraries, so that the real torch_npu wheel can be imported.

They hold no code of CANN: the names that the wheel links against are read from the wheel. The
libraries are loaded by path before torch_npu; the loader then finds the names that the wheel
needs among the libraries that are loaded already.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME = "libascendcl.so"
OPERATORS = "libopapi.so"
#: What else the wheel is linked against. A wheel that needs another one says so when imported.
EMPTY = (
    "libhccl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
    "libatb.so",
)
#: Names of CANN among the undefined symbols of the wheel.
CANN_SYMBOL = re.compile(r"acl|rt[A-Z]|Msprof|_ZNK?3atb")


def missing_tools() -> list[str]:
    """The programs that building needs and that are not there."""
    return [tool for tool in ("cc", "nm") if shutil.which(tool) is None]


def build(wheel: Path, folder: Path, *, host_device: bool = False) -> Path:
    """Build the libraries for the unpacked package `torch_npu` at `wheel`; returns `folder`.

    Args:
        host_device: with a device that has memory but computes nothing, and with every aclnn
            function that the wheel knows: those record their name and refuse.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Weak: the functions of the runtime's own source take precedence.
    failing = (f"__attribute__((weak)) long {name}(void) {{ return 507899; }}"
               for name in sorted(_undefined(wheel)))  # fmt: skip
    flags = ["-DHOST_DEVICE"] if host_device else []
    _compile(folder, RUNTIME, "\n".join(failing), str(HERE / "ascendcl.c"), *flags)
    for name in EMPTY:
        # Linked, so that a library that was looked up alone finds the runtime's functions.
        _compile(folder, name, "int cann_stub;", "-Wl,--no-as-needed", f"-L{folder}", "-lascendcl")
    if host_device:
        _compile(folder, OPERATORS, _operator_library(wheel))
    return folder


def preload(folder: Path) -> None:
    """Load the libraries into this process. Call it before `import torch_npu`."""
    names = (RUNTIME, *EMPTY, OPERATORS)
    for path in (folder / name for name in names):
        if path.exists():
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _undefined(wheel: Path) -> set[str]:
    """Names of CANN that the wheel's libraries use and none of them defines."""
    libraries = [*wheel.glob("lib/*.so"), *wheel.glob("*.so")]
    found: dict[str, set[str]] = {}
    for kind in ("--undefined-only", "--defined-only"):
        listed = subprocess.run(
            ["nm", "-D", kind, *map(str, libraries)], capture_output=True, text=True, check=True
        ).stdout
        rows = (line.split() for line in listed.splitlines())
        # A weak name (w) may stay undefined.
        found[kind] = {row[-1].split("@")[0] for row in rows if len(row) > 1 and row[-2] != "w"}
    missing = found["--undefined-only"] - found["--defined-only"]
    return {name for name in missing if CANN_SYMBOL.match(name)}


def _operator_library(wheel: Path) -> str:
    """C source of a library with every aclnn function whose name is in the wheel."""
    binary = (wheel / "lib" / "libtorch_npu.so").read_bytes()
    names = {
        name.decode().removesuffix("GetWorkspaceSize")
        for name in re.findall(rb"\x00(aclnn[A-Z]\w+)(?=\x00)", binary)
    }
    lines = [
        "#include <stdlib.h>",
        "static const char *last;",
        "const char *last_aclnn(void) { const char *name = last; last = NULL; return name; }",
        "int InitHugeMemThreadLocal(void *a, int b) { return 0; }",
        "void UnInitHugeMemThreadLocal(void *a, int b) {}",
        "void ReleaseHugeMem(void *a, int b) {}",
    ]
    for kind in ("Tensor", "Scalar", "IntArray", "FloatArray", "BoolArray", "TensorList",
                 "ScalarList"):  # fmt: skip
        lines.append(f"void *aclCreate{kind}(void) {{ return malloc(8); }}")
        lines.append(f"int aclDestroy{kind}(void *made) {{ return 0; }}")
    for name in sorted(names):
        lines.append(f'int {name}GetWorkspaceSize(void) {{ last = "{name}"; return 561000; }}')
        lines.append(f"int {name}(void) {{ return 561000; }}")
    return "\n".join(lines) + "\n"


def _compile(folder: Path, name: str, source: str, *flags: str) -> None:
    code = folder / f"{name}.c"
    code.write_text(source)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", str(folder / name), str(code),
         *flags],
        check=True,
    )  # fmt: skip
