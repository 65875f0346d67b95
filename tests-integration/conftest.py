"""What the integration tests share: models, the truth about them, and runs of vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

HERE = Path(__file__).parent
TOOLS = HERE / "tools"
sys.path.insert(0, str(TOOLS))

#: One process, no network, and the marked vendor of these tests out of the way unless asked for.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "VLLM_FL_DISABLED_PLUGINS": "acme",
    # vLLM itself may come from there.
    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE / "modules"), os.getenv("PYTHONPATH")])),
}
os.environ.update({k: v for k, v in ENVIRONMENT.items() if k != "PYTHONPATH"})

Run = Callable[..., dict[str, Any]]
#: What a run printed, and its result for each policy.
Compare = Callable[..., tuple[subprocess.CompletedProcess[str], dict[str, Any]]]


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a test sets, or vLLM in it, would decide how vLLM runs in the tests behind it."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, made at first use."""
    import tiny_models

    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            tiny_models.make(name, made[name])
        return made[name]

    return get


@pytest.fixture(scope="session")
def truth(tiny: Callable[[str], Path]) -> Callable[[str], list[list[int]]]:
    """The greedy float32 tokens that Hugging Face gives for a tiny model."""
    import generate
    import tiny_models

    known: dict[str, list[list[int]]] = {}

    def get(name: str) -> list[list[int]]:
        if name not in known:
            known[name] = tiny_models.greedy_tokens(
                tiny(name), generate.PROMPTS, generate.MAX_TOKENS
            )
        return known[name]

    return get


@pytest.fixture(scope="session")
def empty_vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed vLLM without its compiled modules, as one built for no device."""
    import vllm_tree

    return vllm_tree.make("installed", tmp_path_factory.mktemp("empty"))


@pytest.fixture
def run_vllm(tiny: Callable[[str], Path], tmp_path: Path) -> Run:
    """Runs a tiny model in a fresh process of vLLM; returns what generate.py prints.

    `tree` is a folder with another vLLM; with `fails` the run must end with an error, and what it
    wrote comes back.
    """

    def run(
        name: str = "qwen3",
        *,
        environ: dict[str, str] | None = None,
        tree: Path | None = None,
        fails: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        options = {"model": str(tiny(name)), **options}
        environ = dict(environ or {})
        if tree is not None:
            environ["PYTHONPATH"] = os.pathsep.join([str(tree), ENVIRONMENT["PYTHONPATH"]])
        done = subprocess.run(
            [sys.executable, str(TOOLS / "generate.py"), json.dumps(options)],
            env={
                **os.environ,
                **ENVIRONMENT,
                "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
                **environ,
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if fails:
            assert done.returncode != 0, done.stdout[-2000:]
            return {"stdout": done.stdout, "stderr": done.stderr}
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        # Processes of vLLM may still write their last words behind it.
        (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"tokens"')]
        result: dict[str, Any] = json.loads(line)
        return {**result, "stdout": done.stdout, "stderr": done.stderr}

    return run


@pytest.fixture
def compare_tokens(tmp_path: Path) -> Compare:
    """Runs benchmarks/tokens.py on a model, in a fresh process, with further arguments."""
    output = tmp_path / "tokens.jsonl"

    def compare(
        model: Path, *arguments: str, environ: dict[str, str] | None = None
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        output.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, str(HERE.parent / "benchmarks" / "tokens.py"), str(model),
             "--output", str(output), *arguments],
            env={**os.environ, **ENVIRONMENT, "VLLM_CACHE_ROOT": str(tmp_path / "vllm"),
                 "FLAGGEMS_CACHE_DIR": str(tmp_path / "flaggems"),
                 "TRITON_CACHE_DIR": str(tmp_path / "triton"), **(environ or {})},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert output.exists(), done.stderr[-4000:]
        return done, json.loads(output.read_text())["policies"]

    return compare


def served(result: dict[str, Any]) -> dict[str, tuple[str, str, int]]:
    """operator -> (implementation, mode, calls) of the rows of a report that have layers."""
    return {
        row["op"]: (row["impl_id"], row["mode"], row["calls"])
        for row in result["report"]
        if row["layers"]
    }
