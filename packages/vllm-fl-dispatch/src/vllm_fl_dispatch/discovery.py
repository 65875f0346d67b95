"""Where plugins come from: the installed distributions and `VLLM_FL_PLUGIN_MODULES`.

The scan reads `entry_points.txt` file by file, so one malformed file is one problem and not the
end of all plugins, and metadata is read only for distributions that announce something to us.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_fl_dispatch.types import Origin

GROUP = "vllm_fl.plugin"
#: Groups that `doctor` shows besides ours: how vLLM finds plugins.
VLLM_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")
MODULES_VARIABLE = "VLLM_FL_PLUGIN_MODULES"


@dataclass(frozen=True)
class Source:
    """One announced plugin, not yet imported. `target` is ``module`` or ``module:attribute``."""

    name: str
    target: str
    origin: Origin
    path: str = ""


@dataclass(frozen=True)
class Scan:
    """What one pass over the installed distributions found."""

    sources: tuple[Source, ...] = ()
    vllm_entry_points: tuple[Source, ...] = ()
    #: (distribution, path that is used, path that is ignored)
    shadowed: tuple[tuple[str, str, str], ...] = ()
    #: (file, what is wrong with it)
    problems: tuple[tuple[str, str], ...] = ()


def normalized(name: str) -> str:
    """The comparable form of a distribution name (PyPA name normalisation)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass
class _Found:
    sources: list[Source] = field(default_factory=list)
    vllm: list[Source] = field(default_factory=list)
    shadowed: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    #: normalised name -> (path, entry points, distribution) of the copy that counts
    first: dict[str, tuple[str, str | None, Any]] = field(default_factory=dict)


def scan_distributions(path: list[str] | None = None) -> Scan:
    """Look once through all installed distributions (of `path`, by default `sys.path`).

    The first distribution of a name counts, as for imports; later copies are `shadowed` and
    never looked into.
    """
    import importlib_metadata  # costs tens of milliseconds, so not at import

    found = _Found()
    kwargs = {} if path is None else {"path": path}
    for dist in importlib_metadata.distributions(**kwargs):
        where = str(getattr(dist, "_path", "") or "")
        name = _name(dist, where)
        key = normalized(name)
        text = _read(dist, found, where)
        if key in found.first:
            # Copies matter only where one of the two is ours or announces something to us. An
            # editable install leaves an equal copy beside the sources: no harm, no word.
            used, used_text, used_dist = found.first[key]
            if _concerns_us(key, text) and (_version(dist), text) != (
                _version(used_dist),
                used_text,
            ):
                found.shadowed.append((name, used, where))
            continue
        found.first[key] = (where, text, dist)
        if text is not None and _mentions(text):
            _parse(dist, text, where, name, found)
    return Scan(
        tuple(found.sources), tuple(found.vllm), tuple(found.shadowed), tuple(found.problems)
    )


@functools.cache
def installed() -> Scan:
    """The scan of this process, made once; `installed.cache_clear()` forgets it."""
    return scan_distributions()


def module_sources(value: str | None = None) -> tuple[Source, ...]:
    """The modules that `VLLM_FL_PLUGIN_MODULES` names: a comma list of ``package.module`` or
    ``package.module:attribute``."""
    value = os.environ.get(MODULES_VARIABLE, "") if value is None else value
    names = dict.fromkeys(part.strip() for part in value.split(",") if part.strip())
    return tuple(
        Source(name, name, Origin(f"module {name}", "", MODULES_VARIABLE)) for name in names
    )


def _name(dist: object, where: str) -> str:
    """The distribution's name, off its path where that tells: reading metadata costs more."""
    base, _, suffix = Path(where).name.rpartition(".")
    if suffix in ("dist-info", "egg-info"):
        return base.split("-", 1)[0]
    return _metadata(dist, "Name") or where


def _metadata(dist: object, field: str) -> str:
    """A field of the metadata; "" where there is none, as in what a broken removal left."""
    try:
        return str(dist.metadata[field] or "")  # type: ignore[attr-defined]
    # No such field, or no metadata; releases of importlib_metadata differ in how they say it.
    except (KeyError, TypeError, OSError, UnicodeDecodeError):
        return ""


def _version(dist: object) -> str:
    return _metadata(dist, "Version")


def _concerns_us(key: str, text: str | None) -> bool:
    return key.startswith("vllm-fl") or (text is not None and GROUP in text)


def _mentions(text: str) -> bool:
    return any(group in text for group in (GROUP, *VLLM_GROUPS))


def _read(dist: object, found: _Found, where: str) -> str | None:
    try:
        text: str | None = dist.read_text("entry_points.txt")  # type: ignore[attr-defined]
    except (OSError, UnicodeDecodeError) as error:
        found.problems.append((f"{where}/entry_points.txt", str(error)))
        return None
    return text


def _parse(dist: object, text: str, where: str, name: str, found: _Found) -> None:
    version, real_name = _version(dist), _metadata(dist, "Name") or name
    for group, entry, value in _entries(text, found, where):
        source = Source(entry, value, Origin(real_name, version, entry), where)
        if group == GROUP:
            found.sources.append(source)
        elif group in VLLM_GROUPS:
            found.vllm.append(source)


def _entries(text: str, found: _Found, where: str) -> Iterable[tuple[str, str, str]]:
    """(group, name, value) of each entry; one bad line does not spoil the others."""
    group = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name or not value:
            found.problems.append((f"{where}/entry_points.txt:{number}", f"not an entry: {raw!r}"))
            continue
        yield group, name, value.split("[", 1)[0].strip()
