"""What rounds of measurements say: medians, and ratios of the same round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One batch of calls, in microseconds per call.

    Attributes:
        host: until the call returned to Python, without waiting for a device.
        device: time on the device; None where host and device are one.
    """

    host: float
    device: float | None = None

    @property
    def time(self) -> float:
        """What counts: time on the device where there is one."""
        return self.host if self.device is None else self.device


@dataclass(frozen=True)
class Figure:
    """One implementation in one mode at one size.

    Attributes:
        variant: implementation and mode, as `Variant.label` names them.
        time, host: medians in microseconds per call; device is None on a CPU.
        low, high: tenth and ninetieth percentile of the time.
        ratio: median over the rounds of its time by the baseline's of the same round; None where
            the baseline has no time at this size.
        bytes: moved at least: inputs read once, outputs written once; None where that says
            nothing.
        note: why there are no figures, or what is to be known about them.
    """

    op: str
    variant: str
    impl_id: str
    mode: str
    tokens: int
    time: float | None = None
    host: float | None = None
    device: float | None = None
    low: float | None = None
    high: float | None = None
    ratio: float | None = None
    bytes: int | None = None
    note: str = ""

    @property
    def bandwidth(self) -> float | None:
        """GB/s."""
        if self.bytes is None or not self.time:
            return None
        return self.bytes / self.time / 1e3

    @property
    def eager(self) -> float | None:
        """What a call costs where nothing hides the host: the longer of both times."""
        if self.time is None or self.host is None:
            return None
        return max(self.time, self.host)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**asdict(self), "bandwidth": self.bandwidth}


def summary(samples: Sequence[Sample]) -> dict[str, float | None]:
    """The medians and percentiles of a variant's rounds, named as in `Figure`."""
    times = [sample.time for sample in samples]
    devices = [sample.device for sample in samples if sample.device is not None]
    # Inclusive: of few rounds the percentiles must not lie outside of what was measured.
    tenths = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 2
    return {
        "time": statistics.median(times),
        "host": statistics.median(sample.host for sample in samples),
        "device": statistics.median(devices) if devices else None,
        "low": tenths[0],
        "high": tenths[-1],
    }


def ratio(samples: Sequence[Sample], baseline: Sequence[Sample]) -> float:
    """The median of the ratios of the same rounds: a slow phase of the machine meets both."""
    pairs = zip(samples, baseline, strict=True)
    return statistics.median(one.time / other.time for one, other in pairs)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios. `values` are positive."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def relative_costs(costs: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """variant -> geometric mean over token counts of its cost by the least cost there.

    Only variants that have a cost at every token count take part: one that cannot serve a size
    cannot be chosen for all.

    Args:
        costs: variant -> tokens -> cost.
    """
    sizes = {tokens for each in costs.values() for tokens in each}
    whole = {variant: each for variant, each in costs.items() if each.keys() == sizes}
    if not whole:
        return {}
    least = {tokens: min(each[tokens] for each in whole.values()) for tokens in sizes}
    return {
        variant: geometric_mean([each[tokens] / least[tokens] for tokens in sizes])
        for variant, each in whole.items()
    }


def not_measured(figures: Iterable[Figure]) -> Iterator[str]:
    """A line for each variant and reason, with the operators and token counts it concerns."""
    return _noted(figure for figure in figures if figure.time is None)


def remarks(figures: Iterable[Figure]) -> Iterator[str]:
    """The same for what was measured and has a note."""
    return _noted(figure for figure in figures if figure.time is not None and figure.note)


def _noted(figures: Iterable[Figure]) -> Iterator[str]:
    concerned: dict[tuple[str, str], dict[str, list[int]]] = {}
    for figure in figures:
        ops = concerned.setdefault((figure.variant, figure.note), {})
        ops.setdefault(figure.op, []).append(figure.tokens)
    for (variant, note), ops in concerned.items():
        # 0 tokens: it concerns every size.
        where = (f"{op} ({_counts(tokens)})" if any(tokens) else op for op, tokens in ops.items())
        yield f"{variant or 'all'} of {', '.join(where)}: {note}"


def _counts(tokens: Sequence[int]) -> str:
    return f"{', '.join(map(str, tokens))} token{'s' if tokens != [1] else ''}"
