"""What the backend passes exists in every release of torch_npu whose schemas are recorded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from vllm_fl_ascend.library import OPERATORS

PAGE = Path(__file__).parents[3] / "docs" / "ascend_schemas.md"
#: releases, then a block with their schema
ENTRY = re.compile(r"^(\d[\w., ]+):\n\n```\n(.+?)\n```$", re.MULTILINE)


def recorded() -> list[tuple[str, str, str]]:
    """(operator, releases, schema) of every schema that a wheel has as a text."""
    sections = PAGE.read_text().split("\n## ")[1:]
    return [
        (section.split("\n")[0], releases, schema)
        for section in sections
        for releases, schema in ENTRY.findall(section)
        if not schema.startswith("(")
    ]


def test_every_operator_is_recorded() -> None:
    assert {name for name, _, _ in recorded()} == set(OPERATORS)
    releases = {release[:4] for _, listed, _ in recorded() for release in listed.split(", ")}
    assert releases == {"2.10", "2.11", "2.12", "2.13", "2.14"}


@pytest.mark.parametrize(("name", "releases", "schema"), recorded())
def test_all_that_is_passed_is_there_and_all_that_is_needed_is_passed(
    name: str, releases: str, schema: str
) -> None:
    arguments = torch._C.parse_schema(schema).arguments
    passed = set(OPERATORS[name])
    assert passed <= {argument.name for argument in arguments}, releases
    needed = {a.name for a in arguments if not a.has_default_value()}
    assert needed <= passed, releases
