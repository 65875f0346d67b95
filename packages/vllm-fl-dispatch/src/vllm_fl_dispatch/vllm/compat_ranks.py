"""Where ranks of vLLM meet: private names of vLLM and of torch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class Group:
    """A group of ranks, and a store that all of them reach.

    Attributes:
        name: no other group that meets in this store has it.
    """

    name: str
    rank: int
    size: int
    store: Any


def worker_wrapper() -> Any:
    """The class through which every executor of vLLM builds its workers."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    return WorkerWrapperBase


def tensor_parallel_group() -> Group:
    """The tensor-parallel group of this process; it exists once the device is up."""
    from torch.distributed import distributed_c10d
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    store = distributed_c10d._get_default_store() if group.world_size > 1 else None
    # Each process counts its own groups: vLLM's name for this one is "tp:0" in all of them.
    name = f"{group.unique_name} (ranks {','.join(map(str, group.ranks))})"
    return Group(name, group.rank_in_group, group.world_size, store)


def wait_for(store: Any, key: str, seconds: float) -> str | None:
    """What another rank has stored; None where it does not within this time."""
    try:
        store.wait([key], timedelta(seconds=max(seconds, 0.001)))
    # torch raises its own DistStoreError, and raised RuntimeError before.
    except RuntimeError:
        return None
    return str(store.get(key), "utf-8")
