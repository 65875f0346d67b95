"""Make a bundle: vLLM, FlagGems and vllm-fl for a machine without a network.

usage: python make.py --output FOLDER [--chip 9.0] [--present FREEZE] [--with REQUIREMENT ...]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import archive
import left_out
import resolve

ROOT = Path(__file__).resolve().parents[2]
#: What a bundle carries besides the archives.
SHIPPED = (
    Path(__file__).with_name("install.py"),
    ROOT / "tests-integration" / "tools" / "vllm_tree.py",
)
OURS = "vllm-fl"
VLLM = "vllm"
MORE = "more"


def our_wheels(folder: Path) -> dict[str, Path]:
    """Wheels of the distributions of this checkout: normalized name -> file."""
    sources = []
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        # A copy, since setuptools would put what earlier builds left there into the wheel.
        sources.append(folder / "sources" / path.parent.name)
        left = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        shutil.copytree(path.parent, sources[-1], ignore=left)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder),
         *map(str, sources)],
        check=True,
    )  # fmt: skip
    return {resolve.name_of(wheel): wheel for wheel in sorted(folder.glob("*.whl"))}


def present(freeze: Path | None) -> list[str]:
    """Normalized names of what a target has, from a file as `pip freeze` writes it."""
    names = []
    for line in freeze.read_text().splitlines() if freeze else ():
        try:
            names.append(str(canonicalize_name(Requirement(line).name)))
        except InvalidRequirement:  # noqa: PERF203  # comments, editable installations
            continue
    return names


class Bundle:
    """A bundle in the making, and its manifest."""

    def __init__(self, folder: Path, target: resolve.Target, chip: str | None, limit: int) -> None:
        self.folder, self.target, self.chip, self.limit = folder, target, chip, limit
        self.manifest: dict[str, Any] = {
            "target": {"python": target.python, "machine": target.machine, "chip": chip},
            "expects": {},
            "present": [],
            "left_out": [],
            "archives": {},
        }

    def add(self, name: str, wheels: Iterable[Path]) -> None:
        """An archive of wheels."""
        wheels, dropped = list(wheels), Counter[left_out.Files]()
        kept: dict[str, archive.Member] = {}
        for member in sorted(archive.members(wheels)):
            row = left_out.file(member.name, python=self.target.python, chip=self.chip)
            if row:
                dropped[row] += member.size
            else:
                kept.setdefault(member.name, member)
        self.manifest["archives"][name] = {
            "distributions": {resolve.name_of(w): str(resolve.version_of(w)) for w in wheels},
            "files": len(kept),
            "bytes": sum(member.size for member in kept.values()),
            "left_out": [
                {"files": row.pattern, "reason": row.reason, "bytes": size}
                for row, size in dropped.items()
            ],
            "pieces": archive.pack(kept.values(), self.folder / f"{name}.tar.xz", self.limit),
        }

    def elsewhere(self, versions: dict[str, Version], there: Iterable[str]) -> None:
        """What the target has, must have, or does without."""
        there = set(there)
        for name, version in versions.items():
            row = left_out.requirement(name)
            if row and row.on_target:
                self.manifest["expects"][name] = str(version)
            elif name in there:
                self.manifest["present"].append(name)
            elif row:
                self.manifest["left_out"].append(
                    {"requirement": f"{name}=={version}", "reason": row.reason}
                )

    def write(self) -> None:
        """The manifest, and the programs."""
        (self.folder / "manifest.json").write_text(json.dumps(self.manifest, indent=1) + "\n")
        for path in SHIPPED:
            shutil.copy(path, self.folder)


def make(options: argparse.Namespace) -> Bundle:
    """Write the bundle."""
    target = resolve.Target(options.python, options.machine, options.glibc)
    bundle = Bundle(options.output, target, options.chip, int(options.piece * 1e6))
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        ours = our_wheels(Path(folder))
        roots = [Requirement(options.vllm), Requirement(options.flag_gems), *map(Requirement, ours)]
        more = [*roots, *map(Requirement, options.more)]
        there = present(options.present)
        all_of_it = resolve.resolve(more, options.wheels, target, given=ours, present=there)
        wheels = all_of_it.wheels
        without = resolve.resolve(roots, options.wheels, target, given=wheels, present=there)
        bundle.elsewhere(all_of_it.elsewhere, there)
        groups = {
            OURS: ours.keys(),
            VLLM: without.wheels.keys() - ours.keys(),
            MORE: wheels.keys() - without.wheels.keys(),
        }
        if options.only:
            old = json.loads((options.output / "manifest.json").read_text())
            bundle.manifest["archives"] = old["archives"]
        for name, members in groups.items():
            if members and name in (options.only or groups):
                bundle.add(name, [wheels[each] for each in sorted(members)])
        bundle.write()
    return bundle


def main() -> None:
    """Make it and say what it has become."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder of the bundle")
    parser.add_argument("--wheels", type=Path, help="where wheels are kept for the next time")
    parser.add_argument("--vllm", default="vllm==0.26.0", help="the release (%(default)s)")
    parser.add_argument("--flag-gems", default="flag-gems==5.0.2", help="same (%(default)s)")
    parser.add_argument("--python", default="3.12", help="the target's (%(default)s)")
    parser.add_argument("--machine", default="x86_64", help="same (%(default)s)")
    parser.add_argument("--glibc", type=int, default=35, help="2.N of the target (%(default)s)")
    parser.add_argument("--chip", help="compute capability, to leave out kernels for others")
    parser.add_argument("--present", type=Path, help="what the target has: `pip freeze` there")
    parser.add_argument("--with", dest="more", nargs="+", default=[], metavar="REQUIREMENT")
    parser.add_argument("--piece", type=float, default=60, help="megabytes of a file (%(default)s)")
    parser.add_argument(
        "--only", nargs="+", choices=(OURS, VLLM, MORE), help="renew these archives of a bundle"
    )
    options = parser.parse_args()
    kept = options.wheels or options.output / "wheels"
    options.wheels = kept / f"cp{options.python}-{options.machine}"
    bundle = make(options)
    for name, each in bundle.manifest["archives"].items():
        sizes = ", ".join(
            f"{piece['name']} {piece['size'] / 1e6:.1f} MB" for piece in each["pieces"]
        )
        print(f"{name}: {len(each['distributions'])} distributions, {each['files']} files, {sizes}")
        for row in each["left_out"]:
            print(f"  without {row['files']} ({row['bytes'] / 1e6:.1f} MB): {row['reason']}")
    for row in bundle.manifest["left_out"]:
        print(f"left out: {row['requirement']}: {row['reason']}")
    print(f"present: {' '.join(bundle.manifest['present'])}")
    print("expects:", *(f"{n}=={v}" for n, v in bundle.manifest["expects"].items()))


if __name__ == "__main__":
    main()
