"""Writes a new backend distribution from the one in `template/`, which is a working one."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.tokens import KIND_TOKENS

#: What the template calls itself.
TEMPLATE = "acme"
_FOLDER = Path(__file__).parent / "template"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LEFT_OUT = ("__pycache__",)
#: Distributions of ours: one of the same name would take their place.
_TAKEN = ("ascend", "cuda", "dispatch", "flaggems", "reference")
#: What policies say of others.
WORDS = (*KIND_TOKENS, "impl", "default")


def write_backend(name: str, parent: Path) -> Path:
    """Write the distribution ``vllm-fl-NAME`` below `parent` and return its folder.

    Args:
        name: of the vendor, as it will be used in policies: ``vendor:NAME``.

    Raises:
        DispatchError: the name is no such name, or taken; the folder exists; `parent` does not.
    """
    name = name.replace("-", "_")
    if not _NAME.fullmatch(name):
        raise DispatchError(
            f"{name!r} cannot be the name of a backend: accepted are lower-case words and digits "
            "joined by '_', such as acme or big_chip"
        )
    if name in _TAKEN:
        raise DispatchError(
            f"vllm-fl-{name} is a distribution of this project, and two of one name cannot be "
            "installed; accepted is any other name, such as the vendor's"
        )
    if name in WORDS:
        raise DispatchError(
            f"{name!r} has a meaning in policies; accepted is any other name, such as the vendor's"
        )
    if not parent.is_dir():
        what = "is no folder" if parent.exists() else "is not there"
        raise DispatchError(f"--parent: {parent} {what}; accepted: a folder, which is there")
    folder = parent / f"vllm-fl-{name.replace('_', '-')}"
    if folder.exists():
        raise DispatchError(f"{folder} exists already; nothing was written")
    _write(_FOLDER, folder, name)
    return folder


def _write(source: Path, target: Path, name: str) -> None:
    target.mkdir()
    for each in source.iterdir():
        if each.name in _LEFT_OUT:
            continue
        path = target / renamed(each.name, name)
        if each.is_dir():
            _write(each, path, name)
        else:
            path.write_text(renamed(each.read_text(encoding="utf-8"), name), encoding="utf-8")


def renamed(text: str, name: str) -> str:
    """The text with the template's name replaced, as it is spelled in each place."""
    title = " ".join(word.capitalize() for word in name.split("_"))
    spelled = {
        f"vllm-fl-{TEMPLATE}": f"vllm-fl-{name.replace('_', '-')}",
        TEMPLATE.upper(): name.upper(),
        TEMPLATE.capitalize(): title,
        TEMPLATE: name,
    }
    # In one pass: a new name may contain the template's.
    return re.sub("|".join(map(re.escape, spelled)), lambda found: spelled[found[0]], text)
