"""Replays recorded calls against the host side of the real torch_npu, in a process of its own.

There the device is one whose memory is the host's. A call ends in a refusal of torch_npu itself,
or, when it passed all its checks, at the function of CANN that it chose, which stands in for the
real one, writes down its name and refuses.

Usage: ``python replay.py FOLDER``. FOLDER holds ``calls.json`` (see `describe`) and gets the
stand-ins and ``answers.json``; torch_npu writes to the standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
# Errors come from the call that made them, not from a thread that ends the process.
os.environ["TASK_QUEUE_ENABLE"] = "0"

import torch
from npu_double import install, stubs

#: What an operator reads on the host.
ON_HOST = {("atb::_npu_paged_attention", "context_lens")}
#: The transformer library has no functions to choose from; its host side names the operation.
OPERATION = re.compile(r"\w+Operation CreateOperation failed")


def describe(call: install.Recorded) -> dict[str, Any]:
    """A recorded call without its numbers."""

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            return {"shape": list(value.shape), "stride": list(value.stride()), "dtype": dtype}
        if isinstance(value, (list, tuple)):
            return [described(each) for each in value]
        return value

    return {"name": call.name, "arguments": {k: described(v) for k, v in call.arguments.items()}}


def _made(name: str, argument: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_made(name, argument, each) for each in value]
    if not isinstance(value, dict):
        return value
    device = "cpu" if (name, argument) in ON_HOST else "npu"
    return torch.empty_strided(
        value["shape"], value["stride"], dtype=getattr(torch, value["dtype"]), device=device
    )


def _answer(call: dict[str, Any], last_aclnn: Any) -> dict[str, str]:
    name = call["name"]
    arguments = {key: _made(name, key, value) for key, value in call["arguments"].items()}
    last_aclnn()
    try:
        install.overload(name)(**arguments)
    except RuntimeError as error:
        message = str(error)
    else:
        raise SystemExit(f"{name} computed something: nothing here can")
    operation = OPERATION.search(message)
    if operation:
        return {"name": name, "reached": operation[0].split()[0]}
    reached = last_aclnn()
    if reached and f"call {reached.decode()} failed" in message:
        return {"name": name, "reached": reached.decode()}
    return {"name": name, "refused": message}


def main(folder: Path) -> None:
    """Answer the calls of a folder."""
    stubs.preload(stubs.build(install.wheel(), folder, host_device=True))
    install.import_operators()
    library = ctypes.CDLL(str(folder / stubs.OPERATORS))
    library.last_aclnn.restype = ctypes.c_char_p
    calls = json.loads((folder / "calls.json").read_text())
    answers = [_answer(call, library.last_aclnn) for call in calls]
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
