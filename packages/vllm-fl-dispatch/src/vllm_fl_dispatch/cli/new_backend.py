"""``vllm-fl new-backend NAME``: a complete backend distribution to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vllm_fl_dispatch.cli.app import AsJson, app, show, styled
from vllm_fl_dispatch.scaffold import write_backend


@app.command("new-backend")
def new_backend(
    name: Annotated[str, typer.Argument(help="Of the vendor, as policies will name it.")],
    parent: Annotated[Path, typer.Option(help="Where the new folder is made.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a distribution with one operator, probes, defaults, tests and CI; its tests pass."""
    folder = write_backend(name, parent)
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    show(
        as_json,
        {"folder": str(folder), "files": written},
        styled((str(folder), "bold")),
        *(f"  {path}" for path in written),
        f"\nNext: cd {folder} && nox -s tests    (README.md tells the rest)",
    )
