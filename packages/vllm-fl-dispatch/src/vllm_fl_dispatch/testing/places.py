"""Where in a kernel's own code something was raised."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch

import vllm_fl_dispatch

#: Code that is not the kernel's: what raised there was called by it.
_OTHERS = tuple(f"{Path(each.__file__ or '').parent}{os.sep}" for each in (vllm_fl_dispatch, torch))


def place(error: BaseException) -> str:
    """A line ``at file:line, in function``: the innermost frame outside the kit and torch.

    Empty if there is none: the call itself did not fit.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    return f"\n  at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name}" if own else ""
