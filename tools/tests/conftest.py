"""Makes the modules of `bundle/` importable, and tiny wheels."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
Wheel = Callable[..., Path]


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """Writes a wheel with requirements and files."""

    def write(
        name: str,
        version: str = "1.0",
        requires: Sequence[str] = (),
        files: Mapping[str, bytes] | None = None,
        folder: str = "index",
    ) -> Path:
        normal = name.replace("-", "_")
        path = tmp_path / folder / f"{normal}-{version}-py3-none-any.whl"
        path.parent.mkdir(exist_ok=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {each}" for each in requires]
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{normal}-{version}.dist-info/METADATA", "\n".join(lines) + "\n")
            archive.writestr(f"{normal}-{version}.dist-info/WHEEL", WHEEL)
            for inner, content in (files or {f"{normal}/__init__.py": b""}).items():
                archive.writestr(inner, content)
        return path

    return write
