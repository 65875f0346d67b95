"""The command ``vllm-fl``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; errors of ours are one message and exit code 2."""
    import os

    # Standard output is for what the command prints: JSON may be asked for.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    from vllm_fl_dispatch.cli.commands import app
    from vllm_fl_dispatch.errors import DispatchError

    try:
        app()
    except DispatchError as error:
        print(f"vllm-fl: {error}", file=sys.stderr)
        raise SystemExit(2) from None
