"""What the plugin costs a server: tokens per second of one model, with and without it.

usage: python serving.py MODEL [--windows 10] [--sequences 1 8 32] [--gate]

Every variant is a process that loads the model once and then waits. Windows of work are given to
one at a time, in shuffled rounds, so that a slow phase of the machine meets all of them; compared
are windows of the same round. An interval is the 95 % bootstrap interval of the geometric mean of
those ratios.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: All variants compile as vLLM does by default.
VARIANTS: dict[str, dict[str, str]] = {
    "plugin absent": {"VLLM_PLUGINS": ""},
    "all off": {"VLLM_FL_PREFER_ENABLED": "0"},
    "reference layers": {"VLLM_FL_PREFER": "reference"},
    "reference attention": {"VLLM_FL_PER_OP": "attention_backend=reference"},
}
BASE = "plugin absent"
SEQUENCES = (1, 8, 32)
#: (variant, sequences, what its ratio to the base must not be below)
GATES = (("all off", 8, 0.99), ("reference layers", 8, 0.98))


@dataclass
class Server:
    """One variant, loaded and waiting."""

    name: str
    process: subprocess.Popen[str]
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def start(cls, name: str, model: str) -> Server:
        environ = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            **VARIANTS[name],
        }
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("serving_worker.py")), model],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        server = cls(name, process)
        server.facts = server.answer()
        return server

    def answer(self) -> dict[str, Any]:
        """The next line of JSON; vLLM writes other lines."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"{self.name} ended with {self.process.wait()}")

    def window(self, sequences: int) -> float:
        """Tokens per second of one window."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{sequences}\n")
        self.process.stdin.flush()
        return float(self.answer()["tokens_per_second"])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """(geometric mean, lower end, upper end) of ratios, by the bootstrap."""
    logs = [math.log(ratio) for ratio in ratios]
    drawn = random.Random(0)
    means = sorted(sum(drawn.choices(logs, k=len(logs))) / len(logs) for _ in range(10_000))
    return math.exp(sum(logs) / len(logs)), math.exp(means[250]), math.exp(means[9749])


def structure(servers: Sequence[Server]) -> str | None:
    """How a server with everything off differs from one without the plugin, if it does."""
    facts = {server.name: server.facts for server in servers}
    for what in ("layers", "out_of_tree"):
        if facts[BASE][what] != facts["all off"][what]:
            return f"{what}: {facts['all off'][what]}, without the plugin {facts[BASE][what]}"
    return None


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--sequences", type=int, nargs="+", default=SEQUENCES)
    parser.add_argument("--gate", action="store_true", help="fail where a budget is not kept")
    options = parser.parse_args()
    servers = [Server.start(name, options.model) for name in VARIANTS]
    try:
        failures = [text for text in [structure(servers)] if text]
        print(f"all off is structurally what it is without the plugin: {not failures}")
        print("| variant | sequences | tokens/s | ratio | 95 % interval |\n|---|---|---|---|---|")
        for sequences in options.sequences:
            speeds: dict[str, list[float]] = {server.name: [] for server in servers}
            for server in servers:  # the first of its kind compiles and fills caches
                server.window(sequences)
            for _ in range(options.windows):
                for server in random.sample(servers, len(servers)):
                    speeds[server.name].append(server.window(sequences))
            for name, found in speeds.items():
                ratios = [a / b for a, b in zip(found, speeds[BASE], strict=True)]
                mean, low, high = interval(ratios)
                median = sorted(found)[len(found) // 2]
                print(
                    f"| {name} | {sequences} | {median:.1f} | {mean:.3f} "
                    f"| {low:.3f} to {high:.3f} |"
                )
                # The budget is missed where the measurement excludes that it is kept.
                failures += [
                    f"{name} at {sequences} sequences: {high:.3f} at most, budget {least}"
                    for gated, at, least in GATES
                    if (gated, at) == (name, sequences) and high < least
                ]
    finally:
        for server in servers:
            server.stop()
    if options.gate and failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
