"""The application that the commands add themselves to, and how they print."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

app = typer.Typer(
    name="vllm-fl",
    help="Which kernel serves each of vLLM's operators here, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
#: What is printed is data: the brackets of `rms_norm[vendor.acme]` are no markup.
console = Console(markup=False)
#: For what is not the answer: progress.
asides = Console(stderr=True, markup=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def show(as_json: bool, data: Any, *tables: RenderableType) -> None:
    """Print `data` as JSON, or the tables."""
    if as_json:
        print(json.dumps(data, indent=2))
        return
    out = console
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # In a pipe or a file a row is one line, so that it can be searched for.
        out = Console(markup=False, width=10_000)
    for table in tables:
        out.print(table)


def table(title: str, *columns: str, wrap: Collection[str] = ()) -> Table:
    """A table in the house style; where it is too wide, the columns in `wrap` give way."""
    made = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=column not in wrap, min_width=len(column))
    return made


def styled(*parts: str | tuple[str, str]) -> Text:
    """Text of parts that may each have a style; brackets are no markup."""
    return Text.assemble(*parts)
