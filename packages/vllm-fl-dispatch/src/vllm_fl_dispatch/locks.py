"""Locks that a forked child has anew: another thread may hold the inherited one for ever."""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """A re-entrant lock, free in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # The block itself forked: what it acquired stayed with the parent.
            pass

    def renew(self) -> None:
        self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
