"""Which wheels a target needs: uv resolves for its Python and platform, pip fetches."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

import left_out


@dataclass(frozen=True)
class Target:
    """The machine that the bundle is for.

    Attributes:
        python: CPython's version, such as ``3.12``.
        machine: its processor, as ``uname -m`` has it.
        glibc: the newest minor version of glibc 2 that its wheels may ask for.
    """

    python: str = "3.12"
    machine: str = "x86_64"
    glibc: int = 35

    def uv(self) -> list[str]:
        """The arguments that make uv resolve for it."""
        platform = f"{self.machine}-manylinux_2_{self.glibc}"
        return ["--python-version", self.python, "--python-platform", platform]

    def pip(self) -> list[str]:
        """The arguments that make pip fetch for it."""
        tags = [f"manylinux_2_{minor}" for minor in range(self.glibc, 4, -1)]
        tags += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
        platforms = [word for tag in tags for word in ("--platform", f"{tag}_{self.machine}")]
        return ["--python-version", self.python, "--implementation", "cp", *platforms]


@dataclass(frozen=True)
class Resolved:
    """What a target needs.

    Attributes:
        wheels: normalized name -> the wheel.
        elsewhere: what is not carried: normalized name -> the version that suits.
    """

    wheels: dict[str, Path]
    elsewhere: dict[str, Version]


def version_of(wheel: Path) -> Version:
    """The version in a wheel's name."""
    return parse_wheel_filename(wheel.name)[1]


def name_of(wheel: Path) -> str:
    """The normalized name of a wheel's distribution."""
    return str(parse_wheel_filename(wheel.name)[0])


def resolve(
    roots: Iterable[Requirement],
    folder: Path,
    target: Target,
    *,
    given: Mapping[str, Path] | None = None,
    present: Iterable[str] = (),
) -> Resolved:
    """Fetch the wheels of `roots` and of all that they require into a folder.

    What the target has, or does without, takes part in the choice of versions, but neither it nor
    what only it requires is carried.

    Args:
        roots: what the target shall have.
        folder: where wheels for this target are kept; those that suit are not fetched again.
        target: the machine.
        given: wheels that are there and are taken: normalized name -> file.
        present: normalized names of what the target has already.

    Raises:
        RuntimeError: uv or pip failed; says what it wrote.
    """
    given, present = given or {}, set(present)
    named = {str(canonicalize_name(root.name)): root for root in roots}
    alone = [str(root) for name, root in named.items() if name in left_out.ALONE]
    asked = [
        f"{name} @ {given[name].resolve().as_uri()}" if name in given else str(root)
        for name, root in named.items()
        if name not in left_out.ALONE
    ]
    versions = _compile(asked, target, without=left_out.ALONE)
    elsewhere = {n: v for n, v in versions.items() if n in present or left_out.requirement(n)}
    pins = [f"{name}=={version}" for name, version in versions.items() if name not in given]
    carried = _compile(asked, target, without=[*left_out.ALONE, *elsewhere], pins=pins)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: version for name, version in carried.items() if name not in given}
    have = {(name_of(wheel), version_of(wheel)): wheel for wheel in folder.glob("*.whl")}
    lacking = [f"{n}=={version}" for n, version in wanted.items() if (n, version) not in have]
    _fetch([*lacking, *alone], folder, target)
    have = {(name_of(wheel), version_of(wheel)): wheel for wheel in folder.glob("*.whl")}
    wheels = {name: given[name] for name in carried if name in given}
    wheels |= {name: have[name, version] for name, version in wanted.items()}
    for name in named.keys() & left_out.ALONE.keys():
        suits = named[name].specifier
        wheels[name] = max(
            (wheel for (each, _), wheel in have.items()
             if each == name and version_of(wheel) in suits),
            key=version_of,
        )  # fmt: skip
    return Resolved(dict(sorted(wheels.items())), dict(sorted(elsewhere.items())))


def _compile(
    requirements: list[str], target: Target, *, without: Iterable[str], pins: Iterable[str] = ()
) -> dict[str, Version]:
    """The versions that suit `requirements` together: normalized name -> version.

    Args:
        without: names that nobody is to get, whoever requires them.
        pins: versions to keep to, where they are needed.
    """
    with tempfile.TemporaryDirectory() as folder:
        # An override stands in for every requirement of its name; this one applies nowhere.
        overrides = Path(folder) / "overrides.txt"
        overrides.write_text("".join(f"{name} ; python_version < '3'\n" for name in without))
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(pins))
        printed = _run(
            "uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--only-binary",
            ":all:", "--override", str(overrides), "--constraint", str(constraints), *target.uv(),
            given="\n".join(requirements),
        )  # fmt: skip
    found = {}
    for line in filter(None, map(str.strip, printed.splitlines())):
        requirement = Requirement(line)
        if requirement.url:
            version = version_of(Path(requirement.url))
        else:
            (clause,) = requirement.specifier
            version = Version(clause.version)
        found[str(canonicalize_name(requirement.name))] = version
    return found


def _fetch(requirements: list[str], folder: Path, target: Target) -> None:
    """Exactly these wheels, into a folder."""
    if requirements:
        _run("pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
             "--dest", str(folder), *target.pip(), *requirements)  # fmt: skip


def _run(module: str, *arguments: str, given: str = "") -> str:
    """What a Python program prints.

    Raises:
        RuntimeError: it failed; says what it wrote.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, input=given, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments[:2])} failed:\n{done.stderr}")
    return done.stdout
