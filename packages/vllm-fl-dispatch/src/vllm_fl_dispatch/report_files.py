"""The report as files: one JSON per process in the folder that `VLLM_FL_REPORT` names.

Written when the process ends, normally or by SIGTERM, when a worker of vLLM is ready, and at each
failure, so that a killed process leaves what it knew. Files are renamed into place: a reader never
sees half of one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from multiprocessing import util
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager

#: What tells the processes of one start from those of another: the first one sets this variable,
#: and those that it starts inherit it.
RUN = "VLLM_FL_REPORT_RUN"


def start(manager: OpManager, folder: Path) -> None:
    """Turn the report on and write it when this process ends.

    Raises:
        OSError: the folder cannot be made, or not be written to.
    """
    prepare(folder)
    manager.report.started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    first = f"{manager.report.started}, {socket.gethostname()} {os.getpid()}"
    os.environ.setdefault(RUN, first)
    manager.report.enabled = True

    def save(*_: Any) -> None:
        # A full disk must not keep a server from ending.
        with contextlib.suppress(OSError):
            write(manager, folder)

    manager.report.on_news = save
    if manager.shadow is not None:
        manager.shadow.on_deviation = save
    save_at_end(manager)
    # Children of multiprocessing that are forked forget what was to be done at the end.
    util.register_after_fork(manager, save_at_end)
    _save_on_sigterm(save)


def prepare(folder: Path) -> None:
    """Make the folder where it is missing.

    Raises:
        OSError: it cannot be made, or not be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def save_at_end(manager: OpManager) -> None:
    """Write the report when this process ends; a forked child is another one."""
    # Children of multiprocessing skip atexit, but not these.
    util.Finalize(None, manager.report.save, exitpriority=10)


def write(manager: OpManager, folder: Path) -> Path:
    """Write the report of this process; returns the file."""
    path = folder / f"vllm-fl-{socket.gethostname()}-{os.getpid()}.json"
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(content(manager), indent=2), encoding="utf-8")
    draft.replace(path)
    return path


def content(manager: OpManager) -> dict[str, Any]:
    """What the report of this process says."""
    from vllm_fl_dispatch.explain import policy_settings

    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "rank": rank(),
        "command": sys.argv,
        "run": os.environ.get(RUN, ""),
        "started": manager.report.started,
        "rows": manager.report.as_dicts(),
        "shadow": [] if manager.shadow is None else manager.shadow.as_dicts(),
        "failures": [
            {"op": f.op_name, "impl_id": f.impl_id, "for": str(f.key), "error": f.error,
             "origin": f.origin}
            for f in manager.failures.all()
        ],
        "plugins": [
            {"name": r.name, "origin": str(r.source.origin), "status": r.status, "error": r.error}
            for r in manager.records
        ],
        "unknown_operators": [str(impl) for impl in manager.registry.orphans()],
        "settings": [vars(setting) for setting in policy_settings(manager.policy)],
    }  # fmt: skip


def rank() -> int | None:
    """The rank of this process in torch.distributed, or what the launcher says.

    Once known it is remembered: the group may be gone when the process ends.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        _known[os.getpid()] = int(distributed.get_rank())
    if os.getpid() in _known:
        return _known[os.getpid()]
    value = os.environ.get("RANK", "")
    return int(value) if value.isdigit() else None


#: process -> its rank; a forked child has another one than its parent.
_known: dict[int, int] = {}


def _save_on_sigterm(save: Any) -> None:
    """Save before the process dies by SIGTERM, then do what it would have done."""
    try:
        before = signal.getsignal(signal.SIGTERM)

        def handle(number: int, frame: FrameType | None) -> None:
            try:
                save()
            finally:
                if callable(before):
                    before(number, frame)
                elif before is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, handle)
    except ValueError:
        # Not the main thread; the normal end still writes.
        pass
