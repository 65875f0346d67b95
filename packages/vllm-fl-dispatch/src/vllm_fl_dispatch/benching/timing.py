"""Time per call: on the host, and on a device apart from the host."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from vllm_fl_dispatch.benching.figures import Sample

Call = Callable[[], object]
#: Aimed-at length of one batch, in nanoseconds: long against reading a clock.
BATCH_NS = 20_000_000
#: Calls in one batch at most.
MOST_CALLS = 200
#: Of these, how many are timed on the host of a device: it queues about a thousand launches, and
#: a call may be ten; after that the host waits.
QUEUED_CALLS = 50
WARM_UP = 3


class Batch(Protocol):
    """A call that is warm and ready to be timed."""

    def run(self) -> Sample:
        """Time one batch of calls."""


class HostBatch:
    """Calls whose work is done when they return."""

    def __init__(self, call: Call) -> None:
        self._call = call
        for _ in range(WARM_UP):
            call()
        self._calls = 1
        once = self.run().host * 1e3
        self._calls = max(1, min(10 * MOST_CALLS, round(BATCH_NS / max(once, 1.0))))

    def run(self) -> Sample:
        """Time one batch of calls."""
        return Sample(host=_host_time(self._call, self._calls))


class DeviceBatch:
    """Calls that a device runs later.

    Device time is that of a graph of calls, which the host does not delay; where the call or the
    device cannot be captured, that of calls one after the other, which it may. Inputs are as warm
    in the caches as in a model, where the operator before has just written them.
    """

    def __init__(self, call: Call, device_type: str) -> None:
        self._call = call
        self._device: Any = getattr(torch, device_type)
        for _ in range(WARM_UP):
            call()
        self._device.synchronize()
        self._calls, self._replay = 1, call
        once = self.run().device or 1.0
        self._calls = max(1, min(MOST_CALLS, round(BATCH_NS / 1e3 / max(once, 0.1))))
        #: Is device time free of the host's?
        self.captured = False
        self._capture(device_type)

    def _capture(self, device_type: str) -> None:
        call, calls = self._call, self._calls

        def loop() -> None:
            for _ in range(calls):
                call()

        self._replay = loop
        if device_type != "cuda":
            return
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                loop()
        except Exception:  # noqa: BLE001  # whatever it is, it cannot be captured
            torch.cuda.synchronize()
            return
        self._replay, self.captured = graph.replay, True
        graph.replay()
        torch.cuda.synchronize()

    def run(self) -> Sample:
        """Time one batch of calls on the host, and one on the device."""
        host = _host_time(self._call, min(self._calls, QUEUED_CALLS))
        self._device.synchronize()
        start, end = (self._device.Event(enable_timing=True) for _ in range(2))
        start.record()
        self._replay()
        end.record()
        end.synchronize()
        return Sample(host=host, device=start.elapsed_time(end) * 1e3 / self._calls)


def _host_time(call: Call, calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / calls / 1e3


def prepare(call: Call, device: str) -> Batch:
    """Warm a call up and find out how many of them make a batch."""
    device_type = torch.device(device).type
    return HostBatch(call) if device_type == "cpu" else DeviceBatch(call, device_type)


def measure(
    batches: Mapping[str, Batch],
    rounds: int,
    *,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, list[Sample]]:
    """Time all batches, in rounds of a new random order each.

    Args:
        before: called with the name of a batch before it is timed.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in batches}
    order = list(batches)
    with _no_collection():
        for _ in range(rounds):
            random.shuffle(order)
            for name in order:
                before(name)
                samples[name].append(batches[name].run())
    return samples


def copy_ceiling(device: str, megabytes: int = 256) -> float:
    """GB/s of a large copy on a device, reading and writing counted: the best of some."""
    source = torch.empty(megabytes << 20, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    batch = prepare(lambda: target.copy_(source), device)
    best = min(sample.time for sample in measure({"copy": batch}, 5)["copy"])
    return 2 * source.numel() / best / 1e3


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector must not run inside a batch."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
