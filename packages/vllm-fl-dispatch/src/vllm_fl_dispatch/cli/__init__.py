"""The command ``vllm-fl``."""

from __future__ import annotations

import sys

#: What some commands need, and the environment of a server has.
OPTIONAL = ("torch", "vllm")


def main() -> None:
    """Run the command line; errors of ours, and libraries that are not there, are one message and
    exit code 2."""
    import os

    # Standard output is for what the command prints: JSON may be asked for.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    from vllm_fl_dispatch.cli.commands import app
    from vllm_fl_dispatch.errors import DispatchError

    try:
        app()
    except DispatchError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        # Anything else that is missing is a fault, and its traceback says where.
        if error.name not in OPTIONAL:
            raise
        message = f"this command needs {error.name}, which {sys.executable} does not have"
    else:
        return
    print(f"vllm-fl: {message}", file=sys.stderr)
    raise SystemExit(2)
