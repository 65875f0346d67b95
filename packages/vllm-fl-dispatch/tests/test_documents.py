"""What is written about the core is what the core does."""

from __future__ import annotations

import json
from pathlib import Path

from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.schema import PolicyFile
from vllm_fl_dispatch.hookspecs import vllm_fl_register_ops

DOCS = Path(__file__).parents[3] / "docs"


def test_every_variable_is_documented() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert [v.name for v in environment.VARIABLES if f"`{v.name}`" not in page] == []


def test_the_published_schema_is_the_one_of_the_code() -> None:
    published = json.loads((DOCS / "policy.schema.json").read_text())
    assert published == PolicyFile.model_json_schema(), (
        "run: vllm-fl config schema > docs/policy.schema.json"
    )


def test_the_guide_to_backends_uses_the_hook() -> None:
    assert f"def {vllm_fl_register_ops.__name__}(registrar):" in (DOCS / "backends.md").read_text()
