"""The oldest release of each distribution that the ranges in this checkout allow, from its tags.

usage: python oldest_releases.py ROOT    (prints JSON: distribution -> requirement for pip, or null)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

CORE = "vllm-fl-dispatch"


def ranges(root: Path) -> dict[str, SpecifierSet]:
    """distribution -> the versions that the others accept: of the core, all backends."""
    found: dict[str, SpecifierSet] = {}
    for path in root.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {}).values()
        for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
            requirement = Requirement(line)
            if requirement.name.startswith("vllm-fl-"):
                known = found.get(requirement.name, SpecifierSet())
                found[requirement.name] = known & requirement.specifier
    return found


def released(root: Path, name: str) -> list[Version]:
    """The versions of a distribution that have a tag, oldest first."""
    tags = subprocess.check_output(["git", "tag", "--list", f"{name}-v*"], cwd=root, text=True)
    return sorted(Version(tag.rpartition("-v")[2]) for tag in tags.split())


def oldest(root: Path) -> dict[str, str | None]:
    """distribution -> where pip finds the oldest release that is allowed; None: there is none."""
    found: dict[str, str | None] = {}
    for name, allowed in ranges(root).items():
        version = next(iter(allowed.filter(released(root, name))), None)
        place = f"git+{root.resolve().as_uri()}@{name}-v{version}#subdirectory=packages/{name}"
        found[name] = None if version is None else f"{name} @ {place}"
    return found


if __name__ == "__main__":
    print(json.dumps(oldest(Path(sys.argv[1]))))
