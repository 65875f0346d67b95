"""Writes docs/ascend_schemas.md: what the operators that the backend calls look like in each wheel.

    pip download --no-deps --dest wheels torch-npu==2.13.0   # and others
    python packages/vllm-fl-ascend/tools/schema_table.py wheels/*.whl > docs/ascend_schemas.md

The schemas are read from the libraries in the wheel: nothing of it is imported.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import torch

from vllm_fl_ascend.library import OPERATORS

LIBRARIES = ("torch_npu/lib/libtorch_npu.so", "torch_npu/lib/libop_plugin_atb.so")
#: Some compilers leave short texts in pieces.
UNREADABLE = "(not in the wheel as a text)"
HEAD = """\
# Schemas of torch_npu

The operators that `vllm-fl-ascend` calls, in the releases of torch_npu whose wheels were read. Made
by `packages/vllm-fl-ascend/tools/schema_table.py`; the tests of the distribution check that every
argument that is passed exists in all of them, and that the wheel they run on is as stated here.

Releases: {releases}.
"""


def schemas(wheel: Path) -> dict[str, str]:
    """operator -> canonical schema, for the operators in use.

    Raises:
        LookupError: the wheel has more than one schema of an operator.
    """
    with zipfile.ZipFile(wheel) as archive:
        binary = b"\0".join(archive.read(name) for name in LIBRARIES)
    found = {}
    for name in OPERATORS:
        namespace, _, op = name.partition("::")
        # Some stand behind a namespace, some over several lines.
        pattern = rb"(?<![\w.])" + op.encode() + rb"\([^\0]*?\)\s*->\s*[^\0]+"
        texts = {text.decode() for text in re.findall(pattern, binary)}
        parsed = {str(torch._C.parse_schema(f"{namespace}::{text.strip()}")) for text in texts}
        if len(parsed) > 1:
            raise LookupError(f"{wheel.name}: {len(parsed)} schemas of {name}: {sorted(parsed)}")
        found[name] = parsed.pop() if parsed else UNREADABLE
    return found


def table(by_release: dict[str, dict[str, str]]) -> str:
    """The page: for each operator its schemas, each with the releases that have it."""
    parts = [HEAD.format(releases=", ".join(by_release))]
    for name in OPERATORS:
        parts.append(f"## {name}\n")
        same: dict[str, list[str]] = {}
        for release, found in by_release.items():
            same.setdefault(found[name], []).append(release)
        for schema, releases in same.items():
            parts.append(f"{', '.join(releases)}:\n\n```\n{schema}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    wheels = {Path(argument).name.split("-")[1]: Path(argument) for argument in sys.argv[1:]}
    releases = sorted(wheels, key=lambda release: [int(n) for n in re.findall(r"\d+", release)])
    print(table({release: schemas(wheels[release]) for release in releases}), end="")
