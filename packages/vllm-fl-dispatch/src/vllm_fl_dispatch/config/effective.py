"""The policy in force when nobody set one in code: defaults, platform defaults, environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.carried import carried
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.policy import PLATFORM, SelectionPolicy


@dataclass(frozen=True)
class PlatformDefaults:
    """What a backend ships for its platform: a YAML file, or settings as a mapping."""

    platform: str
    settings: Path | Mapping[str, Any]
    distribution: str = ""


@dataclass(frozen=True)
class Effective:
    """A policy, and what a user must be told about how it came to be."""

    policy: SelectionPolicy
    warnings: tuple[str, ...] = ()


def effective(
    environ: Mapping[str, str] | None = None, platform: PlatformDefaults | None = None
) -> Effective:
    """The policy in force.

    What a parent process set in code alone if it did; `VLLM_FL_CONFIG` alone if set; otherwise
    the environment over platform defaults over ours.

    Raises:
        PolicyError: a wrong value, or a file that the user named and that cannot be used.
    """
    handed = carried(environ)
    if handed is not None:
        return Effective(handed, tuple(_unknown(environ)))
    path = environment.read("VLLM_FL_CONFIG", environ)
    if path is not None:
        return _from_file(path.strip(), environ)
    policy, warnings = SelectionPolicy(), list(_unknown(environ))
    if platform is not None:
        try:
            values, found = _platform_values(platform)
        except PolicyError as error:
            # What a backend ships must not keep a server from starting.
            values, found = {}, [f"{_where(platform)} is not used: {error}"]
        warnings += found
        policy = policy.with_values(f"{PLATFORM} {_where(platform)}", **values)
    shipped = policy.flagos_blacklist
    policy = environment.with_environment(policy, environ)
    dropped = sorted(shipped - policy.flagos_blacklist)
    if dropped and platform is not None:
        warnings.append(
            f"{policy.origin_of('flagos_blacklist')} replaces the list of {_where(platform)} and "
            f"drops {', '.join(dropped)}; VLLM_FL_FLAGOS_BLACKLIST_APPEND would keep them"
        )
    return Effective(policy, tuple(warnings))


def policy_from_file(path: str | Path) -> Effective:
    """The policy that a YAML file spells, with a warning for each key it does not know."""
    from vllm_fl_dispatch.config.schema import read_settings  # pydantic is costly to import

    values, warnings = read_settings(Path(path))
    return Effective(SelectionPolicy().with_values(f"file {path}", **values), tuple(warnings))


def _from_file(path: str, environ: Mapping[str, str] | None) -> Effective:
    found = policy_from_file(path)
    ignored = sorted(
        name for name in environment.POLICY_VARIABLES if environment.read(name, environ) is not None
    )
    warnings = [*found.warnings, *_unknown(environ)]
    if ignored:
        warnings.append(f"VLLM_FL_CONFIG={path} replaces {', '.join(ignored)}, which are ignored")
    return Effective(found.policy, tuple(warnings))


def _platform_values(platform: PlatformDefaults) -> tuple[dict[str, Any], list[str]]:
    from vllm_fl_dispatch.config.schema import checked_settings, read_settings

    if isinstance(platform.settings, Mapping):
        return checked_settings(platform.settings, _where(platform))
    return read_settings(Path(platform.settings))


def _where(platform: PlatformDefaults) -> str:
    if isinstance(platform.settings, Mapping):
        return f"{platform.platform} of {platform.distribution}"
    return f"{Path(platform.settings).name} of {platform.distribution}"


def _unknown(environ: Mapping[str, str] | None) -> list[str]:
    found = []
    for name, near in environment.unknown_variables(environ):
        hint = f"; did you mean {near}?" if near else ""
        found.append(f"the variable {name} is set, but nothing reads it{hint}")
    return found
