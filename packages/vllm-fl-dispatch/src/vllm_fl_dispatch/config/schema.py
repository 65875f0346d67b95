"""The YAML file: its shape, and the settings that it spells."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vllm_fl_dispatch.config.measured import differences
from vllm_fl_dispatch.config.values import parse_aten, parse_bool
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.registry import nearest
from vllm_fl_dispatch.tokens import parse_order, parse_preference

_NAMES = ("allow_vendors", "deny_vendors", "flagos_blacklist", "flagos_whitelist",
          "oot_blacklist", "oot_whitelist")  # fmt: skip


class Settings(BaseModel):
    """Settings of a policy. All keys are optional."""

    model_config = ConfigDict(extra="forbid")

    prefer: str = Field("flagos", description="kind that comes first: flagos, vendor, reference")
    strict: bool = Field(False, description="errors instead of fallback")
    allow_vendors: list[str] | None = Field(None, description="the only vendors used")
    deny_vendors: list[str] = Field([], description="vendors never used")
    op_backends: dict[str, list[str]] = Field(
        {}, description="operator -> tokens in order, a list or 'a|b'"
    )
    flagos_blacklist: list[str] = Field([], description="operators that FlagGems leaves out")
    flagos_whitelist: list[str] | None = Field(
        None, description="the only operators that FlagGems serves"
    )
    oot_blacklist: list[str] = Field([], description="operators whose layers stay vLLM's")
    oot_whitelist: list[str] | None = Field(
        None, description="the only operators whose layers are replaced"
    )

    @field_validator("prefer", mode="before")
    @classmethod
    def _prefer(cls, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(
                f"{value!r} is not text (YAML reads a bare off or on as a switch: quote it)"
            )
        return parse_preference(value)

    @field_validator("strict", mode="before")
    @classmethod
    def _strict(cls, value: object) -> bool:
        return value if isinstance(value, bool) else parse_bool(str(value), "strict")

    @field_validator("op_backends", mode="before")
    @classmethod
    def _orders(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError("expected a mapping: operator -> list of tokens")
        for op, order in value.items():
            if not isinstance(order, str | list) or not all(isinstance(t, str) for t in order):
                raise ValueError(f"{op}: expected a list of tokens or 'a|b', found {order!r}")
        return {str(op): list(parse_order(order, str(op))) for op, order in value.items()}

    def values(self) -> dict[str, Any]:
        """The given settings, as `SelectionPolicy` names and types them."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.model_fields_set}
        for name in _NAMES:
            if given.get(name) is not None:
                given[name] = frozenset(given[name])
        if "op_backends" in given:
            given["per_op_order"] = {op: tuple(v) for op, v in given.pop("op_backends").items()}
        return given


class PolicyFile(Settings):
    """A policy in YAML."""

    flagos_aten: bool | list[str] = Field(
        False,
        description="ATen operators of torch that FlagGems replaces in vLLM's workers, by the "
        "names of its functions; true: all but those of flagos_blacklist",
    )
    compiled: Settings | None = Field(
        None, description="settings that replace the others where vLLM compiles the model"
    )

    measured_on: dict[str, str] = Field(
        {},
        description="device, driver and versions that the file is tuned for; on others it warns",
    )

    def values(self) -> dict[str, Any]:
        """The given settings, with those of `compiled` as a mapping."""
        given = super().values()
        given.pop("measured_on", None)
        if "flagos_aten" in given:
            given["flagos_aten"] = parse_aten(given["flagos_aten"])
        if given.get("compiled") is not None:
            given["compiled"] = given["compiled"].values()
        else:
            given.pop("compiled", None)
        return given


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys; a policy must not lose one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise PolicyError(f"{line}: a key must be a word, found {key!r}")
            if key in seen:
                raise PolicyError(f"{line}: the key {key!r} is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_settings(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read and check a YAML policy: (settings, warnings). An empty file has no settings.

    Raises:
        PolicyError: missing or unreadable file, bad YAML, wrong shape or value; an unknown key
            where the file is strict.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"cannot read the policy file {path}: {error}") from error
    try:
        data = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506  # a SafeLoader
    except PolicyError as error:
        raise PolicyError(f"{path}:{error}") from None
    # Beside YAMLError the loader lets out what a scalar's type raises, such as a date of month 13.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PolicyError(_not_yaml(path, error)) from error
    return checked_settings({} if data is None else data, str(path), text)


def checked_settings(data: object, where: str, text: str = "") -> tuple[dict[str, Any], list[str]]:
    """Check settings that are already a mapping: (settings, warnings). See `read_settings`."""
    keys = ", ".join(PolicyFile.model_fields)
    if not isinstance(data, Mapping):
        raise PolicyError(f"{where}: expected keys ({keys}), found {type(data).__name__}")
    known, warnings, lines = dict(data), [], _lines(text)
    for path, section, fields in (((), known, PolicyFile.model_fields),
                                  (("compiled",), known.get("compiled"),
                                   Settings.model_fields)):  # fmt: skip
        if not isinstance(section, dict):
            continue
        for key in [key for key in section if key not in fields]:
            hint = nearest(str(key), fields)
            line = lines.get((*path, str(key)))
            place = f"{where}:{line}" if line else where
            warnings.append(
                f"{place}: unknown key {key!r}"
                f"{f', did you mean {hint!r}?' if hint else ''}; accepted: {', '.join(fields)}"
            )
            del section[key]
    try:
        settings = PolicyFile.model_validate(known)
    except ValidationError as error:
        raise PolicyError(_explain(where, lines, error)) from None
    if warnings and settings.strict:
        raise PolicyError("\n".join(warnings))
    elsewhere = list(differences(settings.measured_on))
    if elsewhere:
        warnings.append(
            f"{where} was tuned elsewhere: {'; '.join(elsewhere)}. It applies; vllm-fl tune writes "
            "one for this machine"
        )
    return settings.values(), warnings


def _explain(where: str, lines: dict[tuple[str, ...], int], error: ValidationError) -> str:
    said = []
    for item in error.errors():
        location = ".".join(str(part) for part in item["loc"])
        # A message of ours begins with the key below, such as the operator.
        message = item["msg"].removeprefix("Value error, ")
        path = (*map(str, item["loc"]), message.partition(":")[0])
        line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
        message = message.removeprefix(f"{location}: ")
        said.append(f"{where}{f':{line}' if line else ''}: {location}: {message}")
    return "\n".join(said)


def _not_yaml(path: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return f"{path} is not valid YAML: {error}"
    context = f"{error.context}: " if error.context else ""
    return f"{path}:{mark.line + 1}: this is not valid YAML: {context}{error.problem}"


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of each key, by the keys that lead to it. Of text that is YAML."""
    found: dict[tuple[str, ...], int] = {}

    def walk(node: yaml.Node | None, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = (*path, str(key.value))
                found[here] = key.start_mark.line + 1
                walk(value, here)

    walk(yaml.compose(text, Loader=yaml.SafeLoader), ())
    return found
