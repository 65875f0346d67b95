"""Pictures of what commands print in a terminal: `docs/images/<command>.svg`.

usage: python docs/pictures.py MODEL    (`nox -s pictures` runs it on the model of the demo)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.terminal_theme import MONOKAI

from vllm_fl_dispatch.cli.app import console
from vllm_fl_dispatch.cli.commands import app

IMAGES = Path(__file__).parent / "images"
#: File -> the command; MODEL stands for the folder that is given.
COMMANDS = {
    "ops.svg": ["ops"],
    "demo.svg": ["demo", "--model", "MODEL", "--dtype", "float32"],
}
#: The drawing names a font on the web; a picture fetches nothing.
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw(command: Sequence[str], model: str) -> str:
    """Run a command in this process, and draw what it printed."""
    console.record, console.width = True, 96
    app([model if word == "MODEL" else word for word in command], standalone_mode=False)
    svg = console.export_svg(title=f"$ vllm-fl {' '.join(command)}", theme=MONOKAI, clear=True)
    return "".join(f"{line.rstrip()}\n" for line in WEB_FONT.sub("", svg).splitlines())


if __name__ == "__main__":
    for name, command in COMMANDS.items():
        (IMAGES / name).write_text(draw(command, sys.argv[1]), encoding="utf-8")
