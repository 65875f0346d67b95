"""Which wheels a target needs: from the metadata of the wheels themselves.

pip fetches for another Python than the one it runs under, but judges markers by the latter, so
requirements are followed here. The newest version that suits all who ask is taken; where none does,
the last who asked is replaced by an older version of itself.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

import left_out

#: Every round follows the requirements one step deeper, or takes one step back.
ROUNDS = 60
Download = Callable[[Iterable[str], Path, "Target"], None]


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

    def environment(self) -> dict[str, str]:
        """What markers are judged by."""
        return {
            **{name: str(value) for name, value in default_environment().items()},
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def pip(self) -> list[str]:
        """The arguments that make pip fetch for it."""
        tags = [f"manylinux_2_{minor}" for minor in range(self.glibc, 4, -1)]
        tags += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
        platforms = [word for tag in tags for word in ("--platform", f"{tag}_{self.machine}")]
        return ["--python-version", self.python, "--implementation", "cp", *platforms]


@dataclass
class Need:
    """All that is asked of one distribution."""

    extras: set[str] = field(default_factory=set)
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    by: list[tuple[str, str]] = field(default_factory=list)
    followed: bool = False

    def fits(self, version: Version) -> bool:
        return self.specifier.contains(version, prereleases=True)


@dataclass(frozen=True)
class Resolved:
    """What a target needs.

    Attributes:
        wheels: normalized name -> the wheel.
        elsewhere: what is not carried: normalized name -> version specifier.
    """

    wheels: dict[str, Path]
    elsewhere: dict[str, str]


def version_of(wheel: Path) -> Version:
    """The version in a wheel's name."""
    return parse_wheel_filename(wheel.name)[1]


def name_of(wheel: Path) -> str:
    """The normalized name of a wheel's distribution."""
    return str(parse_wheel_filename(wheel.name)[0])


def requires(wheel: Path, extras: Iterable[str], environment: dict[str, str]) -> list[Requirement]:
    """The requirements in a wheel's metadata that apply to a target."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")
                   and n.count("/") == 1]  # fmt: skip
        lines = HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist")
    found = map(Requirement, lines or ())
    cases = [{**environment, "extra": extra} for extra in ("", *extras)]
    return [r for r in found if r.marker is None or any(map(r.marker.evaluate, cases))]


def resolve(
    roots: Iterable[Requirement],
    folder: Path,
    target: Target,
    *,
    given: Mapping[str, Path] | None = None,
    present: Iterable[str] = (),
    download: Download | None = None,
) -> Resolved:
    """Fetch the wheels of `roots` and of all that they require into a folder.

    Args:
        roots: what the target shall have.
        folder: where wheels for this target are kept; those that suit are not fetched again.
        target: the machine.
        given: wheels that are there: normalized name -> file.
        present: normalized names of what the target has already.
        download: puts wheels for requirements into a folder; default: pip.

    Raises:
        RuntimeError: no version suits all who ask, or the requirements did not settle.
    """
    roots, present, wheels = list(roots), set(present), dict(given or {})
    environment, download = target.environment(), download or fetch
    avoided: dict[str, SpecifierSet] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(ROUNDS):
        wanted = _wanted(roots, wheels, environment, present)
        here = {n: w for n, w in wanted.items() if not left_out.requirement(n) and n not in present}
        lacking = {}
        for name, need in here.items():
            need.specifier &= avoided.get(name, SpecifierSet())
            if name not in wheels or not need.fits(version_of(wheels[name])):
                lacking[name] = need
        if not lacking:
            elsewhere = {n: str(w.specifier) for n, w in wanted.items() if n not in here}
            return Resolved({name: wheels[name] for name in here}, dict(sorted(elsewhere.items())))
        kept = {n: w for n, need in lacking.items() if (w := _newest(folder, n, need))}
        wheels.update(kept)
        lacking = {name: need for name, need in lacking.items() if name not in kept}
        for name, error in _impossible(lacking, folder, target, download).items():
            asker = _to_blame(name, lacking[name], wheels, given or {}, error)
            avoid = SpecifierSet(f"!={version_of(wheels.pop(asker))}")
            avoided[asker] = avoided.get(asker, SpecifierSet()) & avoid
        wheels.update({n: w for n, need in lacking.items() if (w := _newest(folder, n, need))})
    raise RuntimeError(f"the requirements did not settle in {ROUNDS} rounds: {sorted(lacking)}")


def _impossible(
    lacking: Mapping[str, Need], folder: Path, target: Target, download: Download
) -> dict[str, RuntimeError]:
    """Fetch wheels; those that nothing suits, with what was said."""

    def error(*names: str) -> RuntimeError | None:
        try:
            download([f"{name}{lacking[name].specifier}" for name in names], folder, target)
        except RuntimeError as error:
            return error
        return None

    if not lacking or not error(*lacking):
        return {}
    return {name: found for name in lacking if (found := error(name))}


def _to_blame(
    name: str,
    need: Need,
    wheels: Mapping[str, Path],
    given: Mapping[str, Path],
    error: RuntimeError,
) -> str:
    askers = [by for by, asked in need.by if asked and by in wheels and by not in given]
    # Behind the first, which may insist.
    if len(askers) < 2:
        asked = "; ".join(f"{by}: {asked or 'any'}" for by, asked in need.by)
        wanted = f"{name}{need.specifier}"
        raise RuntimeError(f"no wheel of {wanted} for this target; asked for: {asked}") from error
    return askers[-1]


def _wanted(
    roots: list[Requirement],
    wheels: Mapping[str, Path],
    environment: dict[str, str],
    present: set[str],
) -> dict[str, Need]:
    """All that is asked for, as far as wheels are there to be followed."""
    wanted: dict[str, Need] = {}
    queue = [(root, "you") for root in roots]
    while queue:
        requirement, by = queue.pop(0)
        name = str(canonicalize_name(requirement.name))
        need = wanted.setdefault(name, Need())
        need.specifier &= requirement.specifier
        need.by.append((by, str(requirement.specifier)))
        new = requirement.extras - need.extras
        if (need.followed and not new) or name in left_out.ALONE or name in present:
            continue
        if left_out.requirement(name) or name not in wheels:
            continue
        need.extras |= new
        need.followed = True
        queue += [(each, name) for each in requires(wheels[name], need.extras, environment)]
    return wanted


def _newest(folder: Path, name: str, need: Need) -> Path | None:
    found = [w for w in folder.glob("*.whl") if name_of(w) == name and need.fits(version_of(w))]
    return max(found, key=version_of, default=None)


def fetch(requirements: Iterable[str], folder: Path, target: Target) -> None:
    """`pip download` of exactly these.

    Raises:
        RuntimeError: pip failed; says what it wrote.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
         "--dest", str(folder), *target.pip(), *requirements],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise RuntimeError("\n".join([f"pip download {' '.join(requirements)}", *said]))
