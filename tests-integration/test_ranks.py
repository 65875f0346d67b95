"""Tensor parallelism over processes and over hosts, with vLLM's own executors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from vllm_fl_dispatch import report_reading

from .conftest import ENVIRONMENT, TOOLS, Run

Truth = Callable[[str], list[list[int]]]
TWO: dict[str, Any] = {
    "enforce_eager": True,
    "tensor_parallel_size": 2,
    "distributed_executor_backend": "mp",
}
PROCESSES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "OMP_NUM_THREADS": "1",
    # Else vLLM's CPU platform wants a NUMA node for each rank.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
MARKED = {"per_op_order": {"attention_backend": "vendor:marked|reference"}}


def test_a_rank_with_another_selection_ends_the_start(run_vllm: Run, empty_vllm: Path) -> None:
    environ = {
        **PROCESSES,
        "VLLM_FL_PLUGIN_MODULES": "odd_rank",
        "VLLM_FL_PER_OP": "silu_and_mul=vendor:odd|reference",
    }
    failed = run_vllm(tree=empty_vllm, environ=environ, fails=True, **TWO)
    said = failed["stdout"] + failed["stderr"]
    assert "the ranks of group tp:0 (ranks 0,1) chose differently" in said
    (line, *_) = [line for line in said.splitlines() if "silu_and_mul: " in line]
    assert "reference.torch@" in line.partition(" by rank 0 on ")[0]
    assert "vendor.odd@" in line
    assert " by rank 1 on " in line


@pytest.mark.slow
def test_two_ranks_give_the_true_tokens(run_vllm: Run, truth: Truth, empty_vllm: Path) -> None:
    result = run_vllm(tree=empty_vllm, environ=PROCESSES, **TWO)
    assert result["platform"] == "PlatformFL"
    assert result["tokens"] == truth("qwen3")


@pytest.mark.slow
def test_two_ranks_of_a_stock_platform(run_vllm: Run, truth: Truth) -> None:
    environ = {**PROCESSES, "VLLM_FL_PREFER": "reference"}
    assert run_vllm(environ=environ, **TWO)["tokens"] == truth("qwen3")


@pytest.mark.slow
def test_a_policy_set_in_code_reaches_the_workers(
    run_vllm: Run, truth: Truth, empty_vllm: Path
) -> None:
    environ = {"VLLM_FL_PLUGIN_MODULES": "marked_attention", "TEST_POLICY": json.dumps(MARKED)}
    alone = run_vllm(tree=empty_vllm, environ=environ, enforce_eager=True)
    two = run_vllm(tree=empty_vllm, environ={**environ, **PROCESSES}, **TWO)
    assert alone["tokens"] != truth("qwen3")
    assert two["tokens"] == alone["tokens"]


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_its_report(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOLS / "kill_worker.py"), str(tiny("qwen3"))],
        env={**os.environ, **ENVIRONMENT, **PROCESSES, "VLLM_FL_REPORT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode != 0, "the engine is dead"
    reports = {report["rank"]: report for report in report_reading.read(tmp_path)}
    for rank in (0, 1):
        assert any(row["layers"] for row in reports[rank]["rows"]), done.stderr[-2000:]


# -- two hosts --------------------------------------------------------------------------------


class Hosts:
    """Two hosts: commands that run on each, their addresses, and what vLLM must know of them."""

    def __init__(
        self, prefixes: list[list[str]], addresses: list[str], environ: dict[str, str]
    ) -> None:
        self.prefixes, self.addresses, self.environ = prefixes, addresses, environ

    def run(
        self,
        model: Path,
        environs: list[dict[str, str]],
        cache: Path,
    ) -> tuple[subprocess.CompletedProcess[str], str]:
        """Generate on the first host with a rank on each; what the second wrote comes back too."""
        port = _free_port()
        common = {**os.environ, **ENVIRONMENT, **PROCESSES, **self.environ}
        common["VLLM_CACHE_ROOT"] = str(cache)
        environments = [
            {**common, "VLLM_HOST_IP": address, **environ}
            for address, environ in zip(self.addresses, environs, strict=True)
        ]
        second = [
            *self.prefixes[1], sys.executable, "-m", "vllm.entrypoints.cli.main", "serve",
            str(model), "--headless", "--nnodes=2", "--node-rank=1",
            f"--master-addr={self.addresses[0]}", f"--master-port={port}",
            "--tensor-parallel-size=2", "--skip-tokenizer-init", "--enforce-eager",
            "--dtype=float32", "--max-model-len=512", "--max-num-seqs=4",
        ]  # fmt: skip
        options = {
            **TWO,
            "model": str(model),
            "nnodes": 2,
            "node_rank": 0,
            "master_addr": self.addresses[0],
            "master_port": port,
        }
        generate = [*self.prefixes[0], sys.executable, str(TOOLS / "generate.py")]
        with open(cache.with_suffix(".log"), "w+", encoding="utf-8") as log:
            other = subprocess.Popen(second, env=environments[1], stdout=log, stderr=log, text=True)
            try:
                done = subprocess.run(
                    [*generate, json.dumps(options)],
                    env=environments[0],
                    capture_output=True,
                    text=True,
                    timeout=600,
                    check=False,
                )
            finally:
                other.terminate()
                other.wait(60)
            log.seek(0)
            return done, log.read()


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def _namespaces() -> Iterator[Hosts]:
    """Two network namespaces, joined by a cable, each with a host name of its own."""
    names = [f"fl{os.getpid()}{side}" for side in "ab"]
    addresses = ["10.77.1.1", "10.77.1.2"]
    try:
        try:
            for name in names:
                _ip("netns", "add", name)
            _ip("link", "add", "fl0", "netns", names[0], "type", "veth",
                "peer", "name", "fl0", "netns", names[1])  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', None) or error}")
        for name, address in zip(names, addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "fl0")
            _ip("-n", name, "link", "set", "fl0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        prefixes = [
            ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c",
             f'hostname {host} && exec "$@"', host]
            for name, host in zip(names, ("host-a", "host-b"), strict=True)
        ]  # fmt: skip
        yield Hosts(prefixes, addresses, {"GLOO_SOCKET_IFNAME": "fl0"})
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts in namespaces."""
    with _namespaces() as found:
        yield found


def _tokens(done: subprocess.CompletedProcess[str], other: str) -> list[list[int]]:
    assert done.returncode == 0, done.stderr[-4000:] + other[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"tokens"')]
    tokens: list[list[int]] = json.loads(line)["tokens"]
    return tokens


def _on(tree: Path, **more: str) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(tree), ENVIRONMENT["PYTHONPATH"]]), **more}


@pytest.mark.slow
def test_two_hosts_give_the_true_tokens(
    hosts: Hosts, tiny: Any, truth: Truth, empty_vllm: Path, tmp_path: Path
) -> None:
    done, other = hosts.run(tiny("qwen3"), [_on(empty_vllm)] * 2, tmp_path / "cache")
    assert _tokens(done, other) == truth("qwen3")


@pytest.mark.slow
def test_two_addresses_of_one_host(
    tiny: Any, truth: Truth, empty_vllm: Path, tmp_path: Path
) -> None:
    two = Hosts([[], []], ["127.0.0.1", "127.0.0.2"], {"GLOO_SOCKET_IFNAME": "lo"})
    done, other = two.run(tiny("qwen3"), [_on(empty_vllm)] * 2, tmp_path / "cache")
    assert _tokens(done, other) == truth("qwen3")


@pytest.mark.slow
def test_a_host_that_lacks_a_backend_is_named(
    hosts: Hosts, tiny: Any, empty_vllm: Path, tmp_path: Path
) -> None:
    order = {"VLLM_FL_PER_OP": "attention_backend=vendor:marked|reference"}
    environs = [
        _on(empty_vllm, VLLM_FL_PLUGIN_MODULES="marked_attention", **order),
        _on(empty_vllm, **order),
    ]
    done, other = hosts.run(tiny("qwen3"), environs, tmp_path / "cache")
    assert done.returncode != 0
    said = done.stdout + done.stderr + other
    (line, *_) = [line for line in said.splitlines() if "attention_backend: " in line
                  and " by rank " in line]  # fmt: skip
    first, _, second = line.partition(" by rank 0 on host-a; ")
    assert "vendor.marked@" in first
    assert "reference.torch@" in second
    assert "vendor.marked@" not in second
    assert " by rank 1 on host-b" in second


@pytest.mark.slow
def test_a_host_without_the_plugin_is_named_instead_of_a_hang(
    hosts: Hosts, tiny: Any, tmp_path: Path
) -> None:
    # vLLM's command line asks for a distribution of this name, which its CPU build has not.
    info = tmp_path / "named" / "vllm-0.0.0+cpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.0.0+cpu\n")
    stock = _on(info.parent, VLLM_FL_RANK_TIMEOUT="5")
    environs = [stock, {**stock, "VLLM_FL_PREFER_ENABLED": "0"}]
    done, other = hosts.run(tiny("qwen3"), environs, tmp_path / "cache")
    assert done.returncode != 0
    said = done.stdout + done.stderr + other
    assert "rank 0 on host-a waited 5 s after init_device for rank 1 of group tp:0" in said
