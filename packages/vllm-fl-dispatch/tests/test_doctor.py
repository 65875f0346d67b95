"""What doctor finds wrong, each planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENTRY = "[vllm_fl.plugin]\nacme = acme_plugin\n"


def doctor(*folders: Path, **environ: str) -> tuple[int, dict[str, Any]]:
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join([*map(str, folders), *inherited])
    done = subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def problem(data: dict[str, Any], text: str) -> str:
    return next((line for line in data["problems"] if text in line), f"none of {data['problems']}")


def test_a_healthy_environment_has_no_problem() -> None:
    code, data = doctor()
    assert (code, data["problems"]) == (0, [])
    assert "torch" in dict(data["sections"]["versions"])
    assert any("vllm-fl-reference" in name for name, _ in data["sections"]["plugins"])
    assert any("NVIDIA device" in line for _, line in data["sections"]["backends"])
    assert any(name.startswith("fl of") for name, _ in data["sections"]["vLLM will see"])


def test_a_stale_egg_info_in_front_of_the_real_one(distribution: Callable[..., Path]) -> None:
    stale = distribution("vllm-fl-reference", "0.0.1", folder="stale", suffix="egg-info")
    code, data = doctor(stale)
    assert code == 1
    assert "is installed twice" in problem(data, str(stale))
    assert "rms_norm" in problem(data, "nothing can serve ")


def test_a_distribution_that_is_installed_twice(distribution: Callable[..., Path]) -> None:
    new = distribution("vllm-fl-acme", "0.3", ENTRY, folder="new")
    old = distribution("vllm-fl-acme", "0.1", ENTRY, folder="old")
    (new / "acme_plugin.py").write_text("def register(registry): ...\n")
    code, data = doctor(new, old)
    assert code == 1
    line = problem(data, "vllm_fl_acme")
    assert f"{new}" in line.split("is used")[0]
    assert f"{old}" in line.split("is used")[1]


def test_a_broken_plugin(distribution: Callable[..., Path]) -> None:
    site = distribution("vllm-fl-acme", "0.3", ENTRY)
    (site / "acme_plugin.py").write_text("import no_such_vendor_library\n")
    code, data = doctor(site)
    assert code == 1
    assert "plugin acme of vllm-fl-acme 0.3 is broken" in problem(data, "no_such_vendor_library")


def test_a_misfit_and_an_orphan(distribution: Callable[..., Path]) -> None:
    site = distribution("vllm-fl-acme", "0.3", ENTRY)
    (site / "acme_plugin.py").write_text(
        "from vllm_fl_dispatch import BackendImplKind as K, OpImpl\n"
        "def register(registry):\n"
        "    registry.register_many([\n"
        "        OpImpl('rms_norm', 'vendor.acme', K.VENDOR, lambda layer, x: x, 'acme'),\n"
        "        OpImpl('rmsnorm', 'vendor.acme', K.VENDOR, lambda x: x, 'acme')])\n"
    )
    _, data = doctor(site)
    assert "refused rms_norm[vendor.acme]" in problem(data, "refused")
    assert "did you mean 'rms_norm'?" in problem(data, "rmsnorm[vendor.acme]")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("VLLM_FL_PREFFER", "vendor", "did you mean VLLM_FL_PREFER?"),
        ("VLLM_FL_PREFER", "vendro", "configuration: VLLM_FL_PREFER: 'vendro'"),
        ("VLLM_FL_RANK_TIMEOUT", "-1", "configuration: VLLM_FL_RANK_TIMEOUT"),
        ("VLLM_FL_SHADOW", "rms", "configuration: VLLM_FL_SHADOW: 'rms'"),
        ("VLLM_FL_SHADOW", "rmsnorm=reference", "VLLM_FL_SHADOW: unknown operator 'rmsnorm'"),
        ("VLLM_FL_PER_OP", "rmsnorm=reference", "policy: unknown operator 'rmsnorm'"),
        ("VLLM_FL_ENABLED", "maybe", "configuration: VLLM_FL_ENABLED: 'maybe'"),
        ("VLLM_PLUGINS", "other", "does not name 'fl'"),
        ("VLLM_FL_PLATFORM", "foo", "VLLM_FL_PLATFORM=foo: no backend has defaults"),
        ("VLLM_FL_LOG_LEVEL", "LOUD", "VLLM_FL_LOG_LEVEL: log level 'LOUD' is not accepted"),
        ("VLLM_FL_REPORT", "/proc/nope", "VLLM_FL_REPORT=/proc/nope: no report is written"),
        ("VLLM_FL_DISABLED_PLUGINS", "nope", "VLLM_FL_DISABLED_PLUGINS: unknown plugin 'nope'"),
    ],
)
def test_settings_that_do_not_do_what_they_seem_to(
    variable: str, value: str, expected: str
) -> None:
    code, data = doctor(**{variable: value})
    assert code == 1
    assert expected in problem(data, expected)
    assert not [each for each in data["problems"] if "is broken" in each]


def test_what_start_up_warns_about_is_a_problem_also_where_the_log_is_silent() -> None:
    code, data = doctor(VLLM_FL_LOG_LEVEL="ERROR", VLLM_FL_DISABLED_PLUGINS="nope")
    assert (code, len(data["problems"])) == (1, 1)


def test_the_remedy_is_not_to_install_what_is_only_disabled() -> None:
    _, data = doctor(VLLM_FL_DISABLED_PLUGINS="reference")
    line = problem(data, "nothing can serve ")
    assert "VLLM_FL_DISABLED_PLUGINS=reference disables vllm-fl-reference, which would" in line


def test_an_implementation_whose_package_is_not_there(module: Callable[..., Path]) -> None:
    folder = module(
        "lazy_vendor",
        "from vllm_fl_dispatch import BackendImplKind as K, OpImpl, Verdict\n"
        "no = lambda: Verdict.no('no device')\n"
        "def register(registry):\n"
        "    registry.register_many([\n"
        "        OpImpl('silu_and_mul', 'vendor.lazy', K.VENDOR, 'nope.kernels:f', 'lazy'),\n"
        "        OpImpl('silu_and_mul', 'vendor.far', K.VENDOR, 'nope:f', 'far', available=no)])\n",
    ).parent
    _, data = doctor(folder, VLLM_FL_PLUGIN_MODULES="lazy_vendor")
    (line,) = data["problems"]
    assert "silu_and_mul[vendor.lazy] of module lazy_vendor cannot be loaded: " in line
    assert "there is no module nope, which nope.kernels:f names" in line


def test_a_malformed_file_of_a_stranger(distribution: Callable[..., Path]) -> None:
    site = distribution("stranger", entry_points="[vllm.general_plugins]\nnonsense\n")
    code, data = doctor(site)
    assert code == 1
    assert "not an entry: 'nonsense'" in problem(data, "stranger")
