"""A backend written by `vllm-fl new-backend`, installed as a vendor would, with its own tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new distribution, in an environment of its own above this one."""
    root = tmp_path_factory.mktemp("vendor")
    run(["vllm-fl", "new-backend", "fresh", "--parent", str(root)], root)
    run([sys.executable, "-m", "venv", "--without-pip", str(root / "env")], root)
    python = root / "env" / "bin" / "python"
    site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], root)
    # Below the new environment lies this one, with what it has in editable form.
    below = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(site.stdout.strip()) / "base.pth").write_text(below)
    folder = root / "vllm-fl-fresh"
    command = ["--python", str(python), "install", "--no-deps", "--no-build-isolation", "-e", "."]
    run([sys.executable, "-m", "pip", *command], folder)
    return folder


def run(command: list[str], folder: Path, *, expected: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done


def pytest_in(folder: Path, *arguments: str, expected: int = 0) -> str:
    python = folder.parent / "env" / "bin" / "python"
    return run([str(python), "-m", "pytest", "-q", *arguments], folder, expected=expected).stdout


def test_it_passes_its_own_tests_at_once(backend: Path) -> None:
    output = pytest_in(backend)
    assert " passed" in output
    assert "failed" not in output


def test_the_one_command_for_authors(backend: Path) -> None:
    arguments = ["--pyargs", "vllm_fl_dispatch.conformance", "--impl", "vendor.fresh", "-k", "case"]
    assert " passed" in pytest_in(backend, *arguments)
    wrong = pytest_in(backend, *arguments[:3], "vendor.frsh", expected=4)
    assert "passed" not in wrong


def test_a_wrong_kernel_fails_with_the_case_and_a_way_to_repeat_it(backend: Path) -> None:
    kernel = backend / "src" / "vllm_fl_fresh" / "impl" / "activation.py"
    right = kernel.read_text()
    wrong = right.replace("x.float().chunk(2, dim=-1)", "x.float().chunk(2, dim=-1)[::-1]")
    assert wrong != right
    try:
        kernel.write_text(wrong)
        output = pytest_in(backend, "-k", "float32-3d", expected=1)
        assert "silu_and_mul[vendor.fresh] fails the case float32-3d: result 0 is off by" in output
        assert "x = float32 [2, 3, 128]" in output
        assert "call = reproduce('silu_and_mul', 'float32-3d', 'vendor.fresh')" in output
        (backend / "xfails.txt").write_text("silu_and_mul[float32-3d]: gate and up swapped\n")
        assert "1 xfailed" in pytest_in(backend, "-k", "float32-3d")
        kernel.write_text(right)
        assert "XPASS(strict)" in pytest_in(backend, "-k", "float32-3d", expected=1)
    finally:
        kernel.write_text(right)
        (backend / "xfails.txt").write_text("")
