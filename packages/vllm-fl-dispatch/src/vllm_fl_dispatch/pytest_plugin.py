"""Adds the options of ``pytest --pyargs vllm_fl_dispatch.conformance``, and to that run only.

pytest takes options from installed plugins, not from a conftest inside a package named with
--pyargs. In other runs this plugin adds nothing: a project may have a ``--device`` of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = "vllm_fl_dispatch.conformance"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Add the options where the conformance tests are asked for."""
    if not any(argument.startswith(PACKAGE) for argument in args):
        return
    group = parser.getgroup("vllm-fl conformance")
    group.addoption("--impl", help="The implementation to test, such as vendor.acme.")
    group.addoption("--op", help="Only this operator.")
    group.addoption("--device", default="cpu", help="Where: cpu, cuda, npu, ... (default: cpu).")
    group.addoption(
        "--xfails",
        type=Path,
        help="File of known failures, lines 'operator[pattern]: reason' (default: xfails.txt of "
        "the current directory, if there is one).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Select what is tested, before anything is collected."""
    if "impl" in config.option and any(str(arg).startswith(PACKAGE) for arg in config.args):
        from vllm_fl_dispatch.conformance import selection  # imports torch

        config.stash[selection.KEY] = selection.select(config)
