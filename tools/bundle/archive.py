"""Archives of files from wheels, cut into pieces.

An archive is one xz-compressed tar, so that ``cat NAME.tar.xz* | tar -xJ`` is all it takes without
`install.py`. It is compressed in blocks, on all processors.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

#: Uncompressed bytes of a block.
BLOCK = 32 << 20
#: Where the parts of a wheel's ``.data`` folder belong in a tree; what is not here is left out.
DATA = ("purelib", "platlib")


class Member(NamedTuple):
    """A file of the tree: its name there, the wheel, the name in the wheel, and its size."""

    name: str
    wheel: Path
    source: str
    size: int


def members(wheels: Iterable[Path]) -> Iterator[Member]:
    """The files of wheels as they lie in a tree."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                top, _, rest = info.filename.partition("/")
                name = info.filename
                if top.endswith(".data"):
                    kind, _, name = rest.partition("/")
                    if kind not in DATA:
                        continue
                if name and not info.is_dir():
                    yield Member(name, wheel, info.filename, info.file_size)


def pack(files: Iterable[Member], target: Path, limit: int) -> list[dict[str, Any]]:
    """Write an archive.

    Args:
        files: what is in it.
        target: its path; a piece of several has a number behind.
        limit: bytes that a piece may have.

    Returns:
        For each piece its name, size in bytes and SHA-256.
    """
    for old in target.parent.glob(f"{target.name}*"):
        old.unlink()
    pieces = _Pieces(target, limit)
    workers = os.cpu_count() or 1
    blocks = _blocks(files)
    with ThreadPoolExecutor(workers) as pool:
        # As many blocks in memory as are compressed at a time.
        while group := list(islice(blocks, workers)):
            for compressed in pool.map(lzma.compress, group):
                pieces.write(compressed)
    pieces.write(lzma.compress(bytes(2 * tarfile.BLOCKSIZE)))  # the end of a tar
    return pieces.close()


def _blocks(files: Iterable[Member]) -> Iterator[bytes]:
    """Runs of members of a tar, without its end."""
    buffer = io.BytesIO()
    opened: dict[Path, zipfile.ZipFile] = {}
    for file in files:
        archive = opened.get(file.wheel)
        if archive is None:
            archive = opened[file.wheel] = zipfile.ZipFile(file.wheel)
        info = tarfile.TarInfo(file.name)
        info.size = file.size
        # Nothing of this machine: the same wheels give the same archive.
        info.mode = 0o755 if file.name.endswith(".so") else 0o644
        buffer.write(info.tobuf())
        buffer.write(archive.read(file.source))
        buffer.write(bytes(-file.size % tarfile.BLOCKSIZE))
        if buffer.tell() >= BLOCK:
            yield buffer.getvalue()
            buffer = io.BytesIO()
    if buffer.tell():
        yield buffer.getvalue()
    for archive in opened.values():
        archive.close()


class _Pieces:
    """A file that goes on in the next one where it reaches the limit."""

    def __init__(self, target: Path, limit: int) -> None:
        self._target, self._limit = target, limit
        self._pieces: list[dict[str, Any]] = []
        self._current = bytearray()

    def write(self, data: bytes) -> None:
        self._current += data
        while len(self._current) > self._limit:
            self._put(self._current[: self._limit])
            del self._current[: self._limit]

    def _put(self, data: bytearray) -> None:
        path = self._target.with_name(f"{self._target.name}.{len(self._pieces) + 1:02d}")
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        self._pieces.append({"name": path.name, "size": len(data), "sha256": digest})

    def close(self) -> list[dict[str, Any]]:
        self._put(self._current)
        if len(self._pieces) == 1:
            self._target.with_name(self._pieces[0]["name"]).rename(self._target)
            self._pieces[0]["name"] = self._target.name
        return self._pieces
