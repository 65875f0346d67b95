"""The application that the commands add themselves to, and how they print."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from vllm_fl_dispatch import probing
from vllm_fl_dispatch.cli.answers import Answers, answering, say
from vllm_fl_dispatch.cli.tables import table
from vllm_fl_dispatch.errors import PolicyError

__all__ = [
    "AsJson",
    "app",
    "asides",
    "console",
    "say",
    "show",
    "styled",
    "table",
    "writable",
    "write_whole",
]


app = typer.Typer(
    name="vllm-fl",
    help="Which kernel serves each of vLLM's operators here, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Joins the lines of a paragraph and leaves brackets alone.
    rich_markup_mode="markdown",
)
#: What is printed is data: the brackets of `rms_norm[vendor.acme]` are no markup.
console = Answers(markup=False)
#: For what is not the answer: progress.
asides = Console(stderr=True, markup=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(probing.version_of("vllm-fl-dispatch"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version of the core.",
        ),
    ] = False,
) -> None: ...


def show(as_json: bool, data: Any, *tables: RenderableType) -> None:
    """Print `data` as JSON, or the tables."""
    if as_json:
        say(json.dumps(data, indent=2))
        return
    with answering():
        out: Console = console
        if not console.is_terminal and "COLUMNS" not in os.environ:
            # In a pipe or a file a row is one line, so that it can be searched for.
            out = Console(markup=False, width=10_000)
        for table in tables:
            out.print(table)


def styled(*parts: str | tuple[str, str]) -> Text:
    """Text of parts that may each have a style; brackets are no markup."""
    return Text.assemble(*parts)


def writable(path: Path | None, option: str) -> None:
    """Complain now about a file that could not be written when the work is done.

    Raises:
        PolicyError: it is a folder, or its folder is missing or cannot be written to.
    """
    if path is None:
        return
    if path.is_dir():
        raise PolicyError(f"{option}: {path} is a folder; accepted: the name of a file")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        what = "cannot be written to" if target.exists() else "is not there"
        raise PolicyError(f"{option}: {target} {what}")


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is at no time half there.

    Raises:
        OSError: it cannot be written.
    """
    with answering():  # which may be the file
        target = path.resolve()
        special = path.exists() and not path.is_file()
        if special or not os.access(target.parent, os.W_OK):
            # A pipe or a device, or a file that is all that may be written to there.
            path.write_text(text, encoding="utf-8")
        else:
            _replace(target, text)


def _replace(target: Path, text: str) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
