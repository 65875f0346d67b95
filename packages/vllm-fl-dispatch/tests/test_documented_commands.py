"""Commands, nox sessions and variables that the documents name are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import typer
from typer.core import TyperGroup

from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.config import environment

ROOT = Path(__file__).parents[3]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for pattern in ("*.md", "docs/**/*.md", "packages/*/*.md", "examples/*.md", "benchmarks/*.md")
    for path in sorted(ROOT.glob(pattern))
}
#: In a block of its own line, or in a sentence; variables may stand before it.
SHOWN = r"^ *(?:\$ )?(?:\w+=\S+ )*{0} ([^#\n]*)"
NAMED = r"`(?:\w+=\S+ )*{0} ([^`\n]+)`"


def _used(program: str) -> list[tuple[str, list[str]]]:
    """(page, the words behind it) wherever a page shows or names a command of a program."""
    return [
        (page, shlex.split(line))
        for page, text in PAGES.items()
        for form in (SHOWN, NAMED)
        for line in re.findall(form.format(re.escape(program)), text, re.MULTILINE)
    ]


def _exists(words: list[str]) -> bool:
    """Whether `vllm-fl` has this command, and the command these options."""
    command = typer.main.get_command(app)
    while isinstance(command, TyperGroup) and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    own = words[: words.index("--")] if "--" in words else words
    options = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in own if word.startswith("-")}
    return not isinstance(command, TyperGroup) and used <= options


def test_what_does_not_exist_is_seen() -> None:
    assert _exists(["bench", "rms_norm", "--json"])
    assert _exists(["config", "show"])
    assert not _exists(["benhc", "rms_norm"])
    assert not _exists(["config", "shwo"])
    assert not _exists(["bench", "--jsno"])


def test_commands_exist_with_their_options() -> None:
    used = _used("vllm-fl")
    assert len(used) > 60
    # `vllm-fl config` is the heading of a group.
    assert [each for each in used if each[1] != ["config"] and not _exists(each[1])] == []


def test_examples_that_load_a_module_of_their_folder_put_it_on_the_path() -> None:
    page = PAGES["examples/README.md"]
    commands = re.findall(r"`([^`\n]*VLLM_FL_PLUGIN_MODULES=[^`\n]*)`", page)
    assert len(commands) >= 2
    assert [each for each in commands if not each.startswith("PYTHONPATH=. ")] == []


def test_nox_sessions_exist() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = set(re.findall(r"^@nox\.session.*\ndef (\w+)", noxfile, re.MULTILINE))
    sessions |= {path.name.removeprefix("vllm-fl-") for path in ROOT.glob("packages/vllm-fl-*")}
    named = [
        (page, session)
        for page, (option, *words) in _used("nox")
        if option == "-s"
        for session in (words[: words.index("--")] if "--" in words else words)
    ]
    assert len(named) > 20
    assert [each for each in named if each[1] not in sessions] == []


def test_variables_exist() -> None:
    known = {variable.name for variable in environment.VARIABLES}
    named = [
        (page, name) for page, text in PAGES.items() for name in re.findall(r"VLLM_FL_\w+", text)
    ]
    assert len(named) > 60
    assert [each for each in named if each[1] not in known] == []
