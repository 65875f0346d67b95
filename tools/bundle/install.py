"""Install a bundle on a machine without a network; needs Python 3.10 and nothing else.

usage: python install.py FOLDER

The archives beside this file are verified and unpacked into folders for PYTHONPATH, so that an
environment which may not be changed will do. What FOLDER has already of the same bundle stays.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import platform
import shutil
import sys
import tarfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MANIFEST = "manifest.json"


class Pieces(io.RawIOBase):
    """Files, read as one."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__()
        self._paths = list(paths)
        self._file: io.BufferedReader | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._file is None:
                if not self._paths:
                    return 0
                self._file = self._paths.pop(0).open("rb")
            count = self._file.readinto(buffer)
            if count:
                return count
            self._file.close()
            self._file = None


def damages(folder: Path, archive: dict[str, Any]) -> list[str]:
    """What is wrong with the pieces of an archive, one line each."""
    found = []
    for piece in archive["pieces"]:
        path = folder / piece["name"]
        if not path.is_file():
            found.append(f"{piece['name']}: missing")
        elif path.stat().st_size != piece["size"]:
            found.append(f"{piece['name']}: {path.stat().st_size} bytes, expected {piece['size']}")
        elif _sha256(path) != piece["sha256"]:
            found.append(f"{piece['name']}: its SHA-256 differs from the manifest's")
    return found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def misfits(manifest: dict[str, Any]) -> list[str]:
    """Why this machine is not the one that the bundle is for, one line each."""
    target, found = manifest["target"], []
    python = ".".join(map(str, sys.version_info[:2]))
    if python != target["python"]:
        found.append(f"Python {python}, expected {target['python']}")
    if platform.machine() != target["machine"]:
        found.append(f"processor {platform.machine()}, expected {target['machine']}")
    # Versions of what it has besides are the target's own business.
    for name, wanted in {**dict.fromkeys(manifest["present"]), **manifest["expects"]}.items():
        try:
            have = version(name)
        except PackageNotFoundError:
            found.append(f"{name} is not installed, expected {wanted or 'any version'}")
            continue
        # A local version, such as +cu130, says how it was built.
        if wanted and have.partition("+")[0] != wanted:
            found.append(f"{name} {have}, expected {wanted}")
    return found


def unpack(folder: Path, archive: dict[str, Any], target: Path) -> None:
    """Replace `target` by what an archive holds.

    Raises:
        RuntimeError: it holds another number of files than the manifest says.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    pieces = io.BufferedReader(Pieces([folder / piece["name"] for piece in archive["pieces"]]))
    count = 0
    with lzma.open(pieces) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            if hasattr(tarfile, "data_filter"):
                tar.extract(member, target, filter="data")
            else:  # releases of Python without filters
                tar.extract(member, target)
            count += 1
    if count != archive["files"]:
        raise RuntimeError(f"{target}: {count} files, expected {archive['files']}")


def installed(target: Path) -> dict[str, Any]:
    """What a folder has of a bundle: archive -> its record in the manifest."""
    record = target / MANIFEST
    found: dict[str, Any] = json.loads(record.read_text()) if record.is_file() else {}
    return found


def install(target: Path, *, only: list[str] | None = None, anyway: bool = False) -> list[Path]:
    """Verify and unpack archives; returns the folders for PYTHONPATH.

    Args:
        only: names of archives; None: all.
        anyway: even if the machine is another one.

    Raises:
        SystemExit: pieces are missing or damaged, or the machine is another one.
    """
    manifest = json.loads((HERE / MANIFEST).read_text())
    have = installed(target)
    wanted = {n: a for n, a in manifest["archives"].items() if n in (only or [n])}
    new = {name: archive for name, archive in wanted.items() if have.get(name) != archive}
    faults = [line for archive in new.values() for line in damages(HERE, archive)]
    if faults:
        raise SystemExit("\n".join(["the bundle is not whole:", *faults]))
    faults = misfits(manifest)
    if faults and not anyway:
        more = "--anyway unpacks it all the same"
        raise SystemExit("\n".join(["this bundle is for another machine:", *faults, more]))
    for name, archive in new.items():
        have.pop(name, None)
        unpack(HERE, archive, target / name)
        have[name] = archive
        (target / MANIFEST).write_text(json.dumps(have, indent=1))
    return [(target / name).resolve() for name in manifest["archives"] if name in have]


def main() -> None:
    """Install, and say what to set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to, a new folder")
    parser.add_argument("--only", nargs="+", metavar="ARCHIVE", help="what has arrived so far")
    parser.add_argument("--anyway", action="store_true", help="even if the machine is another one")
    parser.add_argument(
        "--empty",
        type=Path,
        metavar="FOLDER",
        help="also make a vLLM without its compiled modules here, of links",
    )
    options = parser.parse_args()
    folders = install(options.folder, only=options.only, anyway=options.anyway)
    if options.empty:
        import vllm_tree

        (source,) = [folder for folder in folders if (folder / "vllm").is_dir()]
        folders.insert(0, vllm_tree.make(str(source), options.empty).resolve())
    print(f"export PYTHONPATH={':'.join(map(str, folders))}")


if __name__ == "__main__":
    main()
