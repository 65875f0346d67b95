"""The YAML file: its shape, and the policy that it spells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from vllm_fl_dispatch.config.values import parse_bool
from vllm_fl_dispatch.errors import PolicyError
from vllm_fl_dispatch.policy import SelectionPolicy, parse_order, parse_preference


class PolicyFile(BaseModel):
    """A policy in YAML. All keys are optional."""

    model_config = ConfigDict(extra="forbid")

    prefer: str = Field("flagos", description="kind that comes first: flagos, vendor, reference")
    strict: bool = Field(False, description="errors instead of fallback")
    allow_vendors: list[str] | None = Field(None, description="the only vendors used")
    deny_vendors: list[str] = Field(default_factory=list, description="vendors never used")
    op_backends: dict[str, list[str]] = Field(
        default_factory=dict, description="operator -> tokens in order, a list or 'a|b'"
    )

    @field_validator("prefer", mode="before")
    @classmethod
    def _prefer(cls, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(
                f"{value!r} is not text (YAML reads a bare off/on as a switch: quote it)"
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
        return {op: list(parse_order(order, str(op))) for op, order in value.items()}


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys; a policy must not lose one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise PolicyError(f"line {line}: the key {key!r} is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_policy_file(path: Path) -> PolicyFile:
    """Read and check a YAML policy; an empty file is the default policy.

    Raises:
        PolicyError: missing or unreadable file, bad YAML, unknown key, wrong shape or value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"cannot read the policy file {path}: {error}") from error
    try:
        data = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506  # a SafeLoader
    except PolicyError as error:
        raise PolicyError(f"{path}, {error}") from None
    except yaml.YAMLError as error:
        raise PolicyError(f"{path} is not valid YAML: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise PolicyError(
            f"{path}: expected keys ({', '.join(PolicyFile.model_fields)}), "
            f"found {type(data).__name__}"
        )
    try:
        return PolicyFile.model_validate(data)
    except ValidationError as error:
        raise PolicyError(_explain(path, text, error)) from None


def policy_from_config(path: str | Path) -> SelectionPolicy:
    """The policy that a YAML file spells; see `PolicyFile` for its keys."""
    path = Path(path)
    given = read_policy_file(path)
    values: dict[str, Any] = {name: getattr(given, name) for name in given.model_fields_set}
    if "op_backends" in values:
        values["per_op_order"] = {op: tuple(v) for op, v in values.pop("op_backends").items()}
    if values.get("allow_vendors") is not None:
        values["allow_vendors"] = frozenset(values["allow_vendors"])
    if "deny_vendors" in values:
        values["deny_vendors"] = frozenset(values["deny_vendors"])
    return SelectionPolicy().with_values(f"file {path}", **values)


def _explain(path: Path, text: str, error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        location = ".".join(str(part) for part in item["loc"]) or "(top level)"
        line = _line_of(text, str(item["loc"][0])) if item["loc"] else None
        where = f"{path}:{line}" if line else str(path)
        hint = (
            f"; accepted keys: {', '.join(PolicyFile.model_fields)}"
            if item["type"] == "extra_forbidden"
            else ""
        )
        lines.append(f"{where}: {location}: {item['msg']}{hint}")
    return "\n".join(lines)


def _line_of(text: str, key: str) -> int | None:
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith((f"{key}:", f"'{key}'", f'"{key}"')):
            return number
    return None
