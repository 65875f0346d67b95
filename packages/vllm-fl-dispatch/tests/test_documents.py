"""What is written about the system is what the system does."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import vllm_fl_dispatch
from vllm_fl_dispatch import hookspecs
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.schema import PolicyFile
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.selectors import SELECTORS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
#: The first line of a block that cannot run by itself, with the reason.
NOT_RUN = re.compile(r"# not run: .+\n")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
WRITTEN = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("packages/*/*.md"),
     *ROOT.glob("examples/*.md"), *ROOT.glob("benchmarks/*.md")]
)  # fmt: skip

TRANSLATED = [path for path in WRITTEN if path.name.endswith(".zh-CN.md")]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _blocks() -> list[tuple[str, str, bool]]:
    """(place, code, does it claim to run) of every Python block."""
    found = []
    for path in WRITTEN:
        text = path.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            runs = NOT_RUN.match(block[1]) is None
            found.append((f"{path.relative_to(ROOT)}:{line}", block[1], runs))
    return found


BLOCKS = _blocks()


@pytest.mark.parametrize("page", _generator().PAGES)
def test_a_generated_page_is_what_the_code_says(page: str) -> None:
    made, written = _generator().render(page), (REFERENCE / page).read_text(encoding="utf-8")
    assert written == made, "run: python docs/generate.py (or nox -s docs -- --write)"


def test_every_hook_has_its_signature_as_a_heading() -> None:
    page = (REFERENCE / "hooks.md").read_text(encoding="utf-8")
    hooks = [name for name in vars(hookspecs) if name.startswith("vllm_fl_")]
    assert len(hooks) >= 5
    assert [hook for hook in hooks if f"\n## `{hook}(" not in page] == []


def test_every_operator_is_documented() -> None:
    page = (REFERENCE / "operators.md").read_text(encoding="utf-8")
    specs = (*SPECS, *SELECTORS)
    assert [spec.name for spec in specs if f"\n## {spec.name}\n" not in page] == []
    assert [spec.name for spec in specs if not spec.contract.__doc__] == []


def test_every_variable_is_documented() -> None:
    for page in (DOCS / "configuration.md", REFERENCE / "environment.md"):
        text = page.read_text(encoding="utf-8")
        assert [v.name for v in environment.VARIABLES if f"`{v.name}`" not in text] == []


def test_every_key_of_a_policy_file_is_documented_and_described() -> None:
    page = (REFERENCE / "policy-file.md").read_text(encoding="utf-8")
    fields = PolicyFile.model_fields
    assert [key for key in fields if f"| `{key}` |" not in page] == []
    assert [key for key, field in fields.items() if not field.description] == []


def test_every_command_is_documented() -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    callbacks = [command.callback for command in app.registered_commands]
    assert len(callbacks) >= 11
    names = [
        command.name or callback.__name__.replace("_", "-")
        for command in app.registered_commands
        if (callback := command.callback)
    ]
    assert [name for name in names if f"\n## `vllm-fl {name}`\n" not in page] == []
    assert [callback for callback in callbacks if callback and not callback.__doc__] == []


def test_every_public_name_says_what_it_is() -> None:
    public = {name: getattr(vllm_fl_dispatch, name) for name in vllm_fl_dispatch.__all__}
    assert [name for name, value in public.items() if not value.__doc__] == []


def test_every_page_has_its_place_in_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    placed = set(re.findall(r": (\S+\.md)$", nav, re.MULTILINE))
    assert placed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if ":" not in link]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(("place", "code", "runs"), BLOCKS, ids=[block[0] for block in BLOCKS])
def test_python_blocks_compile_and_those_that_can_run_do(place: str, code: str, runs: bool) -> None:
    compiled = compile(code, place, "exec")
    if runs:
        try:
            exec(compiled, {"__name__": "block"})
        finally:
            vllm_fl_dispatch.reset_default_manager()


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda path: path.name)
def test_a_translation_has_every_heading_row_and_name_of_its_page(page: Path) -> None:
    def shape(path: Path) -> tuple[list[str], int, set[str]]:
        text = path.read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        marks = re.findall(r"^(?:#+ |```\w+|\* )", text, re.MULTILINE)
        return (
            marks,
            len(re.findall(r"^\|", text, re.MULTILINE)),
            set(re.findall(r"`[^`]+`", prose)),
        )

    assert shape(page) == shape(page.with_name(page.name.replace(".zh-CN", "")))


def test_blocks_in_yaml_are_policies() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        PolicyFile.model_validate(yaml.safe_load(block))


def test_the_published_schema_is_the_one_of_the_code() -> None:
    published = json.loads((DOCS / "policy.schema.json").read_text())
    assert published == PolicyFile.model_json_schema(), (
        "run: vllm-fl config schema > docs/policy.schema.json"
    )


def test_the_guide_to_backends_uses_the_hook() -> None:
    name = hookspecs.vllm_fl_register_ops.__name__
    assert f"def {name}(registrar):" in (DOCS / "backends.md").read_text()
