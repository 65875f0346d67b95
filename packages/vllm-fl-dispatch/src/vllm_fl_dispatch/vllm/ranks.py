"""Do the ranks of a tensor-parallel group run the same code?

Half a layer by one kernel and half by another is a wrong answer that nobody sees. So the ranks
compare their selections when the device is up, when the model is loaded, and after warm-up, and
start-up ends where they differ. They meet in the store through which vLLM's process group was
formed, which reaches every host.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.logger_manager import get_logger
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.vllm import compat_ranks
from vllm_fl_dispatch.vllm.fingerprint import chosen
from vllm_fl_dispatch.vllm.summary import summary

logger = get_logger(__name__)

#: method of vLLM's worker -> how many times `VLLM_FL_RANK_TIMEOUT` a rank may need longer than
#: another. All ranks leave the first together; loading and compiling take them as long as it takes.
STAGES: Mapping[str, int] = {"init_device": 1, "load_model": 30, "compile_or_warm_up_model": 30}
DEFAULT_TIMEOUT = 60.0


class RankError(DispatchError, RuntimeError):
    """The ranks of a group do not run the same code, or one of them does not answer."""


@dataclass(frozen=True)
class Statement:
    """What one rank says about itself."""

    rank: int
    host: str
    chosen: Mapping[str, list[str]]

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def watch(manager: OpManager) -> None:
    """Compare selections in every worker that this process will build. Idempotent."""
    wrapper = compat_ranks.worker_wrapper()
    if getattr(wrapper.init_device, "fl_watches", False):
        return
    own = wrapper.init_device

    # The first of its methods that is called after it has loaded us.
    @wraps(own)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        for stage in STAGES:
            setattr(self.worker, stage, _checked(manager, stage, getattr(self.worker, stage)))
        return own(self, *args, **kwargs)

    init_device.fl_watches = True  # type: ignore[attr-defined]  # a mark
    wrapper.init_device = init_device


def _checked(manager: OpManager, stage: str, method: Callable[..., Any]) -> Callable[..., Any]:
    rounds = 0

    @wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        nonlocal rounds
        result = method(*args, **kwargs)
        rounds += 1
        # What is known now outlives a worker that is killed later.
        manager.report.save()
        group = compat_ranks.tensor_parallel_group()
        if stage == "load_model" and group.rank == 0:
            # The others say the same, or the start ends.
            logger.info("%s", summary(manager.report.rows(), manager.announced))
        if group.size > 1:
            compare(manager, group, f"{stage}/{rounds}", STAGES[stage] * timeout())
        return result

    return checked


def timeout() -> float:
    """Seconds, see `STAGES`."""
    value = environment.read("VLLM_FL_RANK_TIMEOUT")
    return DEFAULT_TIMEOUT if value is None else environment.parse_seconds(value)


def compare(manager: OpManager, group: compat_ranks.Group, stage: str, seconds: float) -> None:
    """Tell the group what this rank chose, hear the others, and compare.

    Raises:
        RankError: they differ, or one said nothing in time.
    """
    prefix = f"vllm_fl/{group.name}/{stage}"
    mine = Statement(group.rank, socket.gethostname(), chosen(manager))
    group.store.set(f"{prefix}/{mine.rank}", json.dumps(vars(mine)))
    deadline = time.monotonic() + seconds
    heard, silent = [], []
    for rank in range(group.size):
        text = compat_ranks.wait_for(group.store, f"{prefix}/{rank}", deadline - time.monotonic())
        if text is None:
            silent.append(rank)
        else:
            heard.append(Statement(**json.loads(text)))
    if silent:
        raise RankError(
            f"{mine} waited {seconds:.0f} s after {stage.partition('/')[0]} for rank "
            f"{', '.join(map(str, silent))} of group {group.name}. Is vllm-fl installed there, "
            "listed in VLLM_PLUGINS and not switched off (VLLM_FL_PREFER_ENABLED)? Slow ranks: "
            "VLLM_FL_RANK_TIMEOUT."
        )
    differences = [line for other in heard[1:] for line in differ(heard[0], other)]
    if differences:
        raise RankError(
            f"the ranks of group {group.name} chose differently:\n  " + "\n  ".join(differences)
        )
    logger.debug("%s: %d ranks agree after %s", mine, group.size, stage)


def differ(first: Statement, other: Statement) -> list[str]:
    """Each operator that two ranks serve differently, and by what."""
    nothing = ["nothing"]
    return [
        f"{op}: {', '.join(first.chosen.get(op, nothing))} by {first}; "
        f"{', '.join(other.chosen.get(op, nothing))} by {other}"
        for op in sorted({*first.chosen, *other.chosen})
        if first.chosen.get(op) != other.chosen.get(op)
    ]
