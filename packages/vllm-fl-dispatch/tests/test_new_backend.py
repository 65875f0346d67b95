"""A new backend distribution, as it is written; tests-integration installs and tests one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.scaffold import write_backend

RUNNER = CliRunner()


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_every_place_has_the_name_as_it_is_spelled_there(tmp_path: Path) -> None:
    folder = write_backend("big-chip", tmp_path)
    assert folder.name == "vllm-fl-big-chip"
    found = contents(folder)
    assert not [path for path, text in found.items() if "acme" in (path + text).lower()]
    assert "src/vllm_fl_big_chip/plugin.py" in found
    assert ".github/workflows/tests.yml" in found
    assert 'name = "vllm-fl-big-chip"' in found["pyproject.toml"]
    assert '"vllm_fl.plugin"]\nbig_chip = "vllm_fl_big_chip.plugin"' in found["pyproject.toml"]
    assert "BIG_CHIP_VISIBLE_DEVICES" in found["src/vllm_fl_big_chip/plugin.py"]
    assert "Kernels of Big Chip" in found["README.md"]


@pytest.mark.parametrize("name", ["acme2", "my_acme"])
def test_a_name_that_contains_the_one_of_the_template(tmp_path: Path, name: str) -> None:
    folder = write_backend(name, tmp_path)
    spelled = {folder.name, name, name.upper(), " ".join(w.capitalize() for w in name.split("_"))}
    words = {
        word
        for path, text in contents(folder).items()
        for word in re.findall(r"(?:vllm-fl-)?(?:my[-_ ])*acme\w*", path + text, re.IGNORECASE)
    }
    assert {word.split("_VISIBLE")[0].removesuffix("_kernels") for word in words} <= spelled


def test_a_name_of_ours_is_refused(tmp_path: Path) -> None:
    ours = {path.name for path in Path(__file__).parents[2].glob("vllm-fl-*")}
    for name in ours:
        with pytest.raises(DispatchError, match=f"{name} is a distribution of this project"):
            write_backend(name.removeprefix("vllm-fl-"), tmp_path)
    assert ours


@pytest.mark.parametrize("name", ["flagos", "stock", "vendor", "impl"])
def test_a_word_of_policies_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DispatchError, match=f"'{name}' has a meaning in policies"):
        write_backend(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_parent_is_there_before(tmp_path: Path) -> None:
    with pytest.raises(DispatchError, match=r"--parent: .*nope is not there"):
        write_backend("zeta", tmp_path / "nope")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["Acme", "1chip", "a b", "a__b", "", "../x"])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DispatchError, match="accepted are lower-case words"):
        write_backend(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "vllm-fl-acme").mkdir()
    with pytest.raises(DispatchError, match="exists already; nothing was written"):
        write_backend("acme", tmp_path)


def test_the_command_says_what_it_wrote_and_what_is_next(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["new-backend", "zeta", "--parent", str(tmp_path)])
    assert result.exit_code == 0
    assert "src/vllm_fl_zeta/impl/activation.py" in result.output
    assert "nox -s tests" in result.output
