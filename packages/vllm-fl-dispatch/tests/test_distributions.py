"""The distributions of this repository fit each other, and what is written about them."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from vllm_fl_dispatch.hookspecs import API_LEVEL

tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")

ROOT = Path(__file__).parents[3]
CORE = "vllm-fl-dispatch"
PROJECTS: dict[str, dict[str, Any]] = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in ROOT.glob("packages/*/pyproject.toml")
}
BACKENDS = sorted(set(PROJECTS) - {CORE})


def _requirement(lines: list[str], name: str) -> Requirement:
    (found,) = (each for each in map(Requirement, lines) if each.name == name)
    return found


def _accepts_its_minor_version_only(requirement: Requirement, version: str) -> bool:
    major, minor = map(int, version.split(".")[:2])
    following = f"{major}.{minor + 1}.0" if major == 0 else f"{major + 1}.0.0"
    return version in requirement.specifier and following not in requirement.specifier


def test_there_are_five() -> None:
    assert len(PROJECTS) == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_core_and_backend_declare_ranges_that_hold_each_other(backend: str) -> None:
    core, project = PROJECTS[CORE], PROJECTS[backend]
    on_core = _requirement(project["dependencies"], CORE)
    assert _accepts_its_minor_version_only(on_core, core["version"])
    extra = core["optional-dependencies"][backend.removeprefix("vllm-fl-")]
    assert _accepts_its_minor_version_only(_requirement(extra, backend), project["version"])


@pytest.mark.skipif(not shutil.which("git"), reason="tags are git's")
def test_the_oldest_release_that_a_range_allows_is_found_by_its_tag(tmp_path: Path) -> None:
    script = ROOT / "tests-integration" / "tools" / "oldest_releases.py"
    for name in PROJECTS:
        (tmp_path / "packages" / name).mkdir(parents=True)
        text = (ROOT / "packages" / name / "pyproject.toml").read_text(encoding="utf-8")
        (tmp_path / "packages" / name / "pyproject.toml").write_text(text, encoding="utf-8")

    def git(*words: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "a")
    for version in ("0.0.9", "0.1.10", "0.1.9", "0.2.0"):
        git("tag", f"{CORE}-v{version}")
    printed = subprocess.check_output([sys.executable, str(script), str(tmp_path)], text=True)
    assert json.loads(printed) == {
        CORE: f"{CORE} @ git+{tmp_path.as_uri()}@{CORE}-v0.1.9#subdirectory=packages/{CORE}",
        **dict.fromkeys(BACKENDS, None),
    }


def test_a_new_backend_declares_the_range_of_ours() -> None:
    template = next((ROOT / "packages" / CORE / "src").glob("*/template/pyproject.toml"))
    lines = tomllib.loads(template.read_text(encoding="utf-8"))["project"]["dependencies"]
    requirement = _requirement(lines, CORE)
    assert _accepts_its_minor_version_only(requirement, PROJECTS[CORE]["version"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_state_the_level_of_the_hooks(backend: str) -> None:
    plugin = importlib.import_module(f"{backend.replace('-', '_')}.plugin")
    assert plugin.vllm_fl_api == API_LEVEL


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_the_changelog_begins_with_the_present_version(name: str) -> None:
    text = (ROOT / "packages" / name / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (\S+)", text, re.MULTILINE)
    assert first is not None
    assert first[1] == PROJECTS[name]["version"]


def test_pre_commit_has_the_ruff_of_the_lint_session() -> None:
    configured = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    session = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    version = re.search(r"ruff==([\d.]+)", session)
    assert version is not None
    assert f"rev: v{version[1]} " in configured
