"""Tables that keep what matters where they are too wide, and lose no letter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

#: A column of sentences is no narrower than this, or gives way.
READABLE = 30
#: Of `box.SIMPLE_HEAD`: what a column takes beside its text, and a table beside its columns.
_BESIDE, _AROUND = 3, 1


class Fitting(Table):
    """A table that gives way in steps, until it is as narrow as the console.

    First the sentences go below the table, then the spare columns go, one after the other; what
    is still too wide is folded.

    Attributes:
        spare: headings of columns that may be left out, the first one first.
        below: heading of a column of sentences.
    """

    spare: Sequence[str] = ()
    below: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = copy(self)
        shown.columns = list(self.columns)
        sentences: Column | None = None
        for heading in (self.below, *self.spare):
            if _needed(shown, self.below) <= options.max_width:
                break
            found = next((column for column in shown.columns if column.header == heading), None)
            if found is not None:
                shown.columns.remove(found)
                sentences = found if heading == self.below else sentences
        if _needed(shown, self.below) > options.max_width:
            shown.columns = [_folding(column) for column in shown.columns]
        yield from Table.__rich_console__(shown, console, options)
        if sentences is not None:
            for subject, sentence in zip(shown.columns[0].cells, sentences.cells, strict=True):
                if str(sentence):
                    name = str(subject).partition("\n")[0]
                    yield Text.assemble((name, "bold"), ": ", str(sentence))


def table(
    title: str,
    *columns: str,
    wrap: Collection[str] = (),
    spare: Sequence[str] = (),
    below: str | None = None,
) -> Fitting:
    """A table in the house style; where it is too wide, the columns in `wrap` give way first.

    Args:
        spare, below: see `Fitting`.
    """
    made = Fitting(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    made.spare, made.below = spare, below
    for column in columns:
        gives_way = column in wrap or column == below
        made.add_column(column, overflow="fold", no_wrap=not gives_way, min_width=len(column))
    return made


def _needed(made: Table, sentences: str | None) -> int:
    """How wide a table is at least, if nothing but columns that wrap gives way."""
    return _AROUND + sum(_BESIDE + _width(c, c.header == sentences) for c in made.columns)


def _width(column: Column, is_of_sentences: bool) -> int:
    lines = [line for cell in column.cells for line in str(cell).splitlines()]
    widest = max(map(cell_len, (str(column.header), *lines)))
    if column.no_wrap:
        return widest
    return min(widest, READABLE if is_of_sentences else len(str(column.header)))


def _folding(column: Column) -> Column:
    return replace(column, no_wrap=False, min_width=None)
