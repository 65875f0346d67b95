"""Bundles for machines without a network, on tiny wheels."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import archive
import left_out
import make
import resolve

PYTHON = ".".join(map(str, sys.version_info[:2]))
TARGET = resolve.Target(PYTHON, platform.machine())


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wheels of a folder, for uv and pip, in the place of an index."""
    index = tmp_path / "index"
    index.mkdir()
    settings = tmp_path / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{index}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


@pytest.fixture
def resolved(tmp_path: Path) -> Any:
    """What a target needs, of these wheels."""

    def run(*roots: str, target: resolve.Target = TARGET, **options: Any) -> resolve.Resolved:
        return resolve.resolve(map(Requirement, roots), tmp_path / "wheels", target, **options)

    return run


def versions(found: resolve.Resolved) -> dict[str, str]:
    return {name: str(resolve.version_of(path)) for name, path in found.wheels.items()}


# -- which wheels -----------------------------------------------------------------------------


def test_requirements_are_followed_for_the_target_not_for_this_machine(
    wheel: Any, resolved: Any
) -> None:
    wheel(
        "server",
        requires=[
            'newer; python_version > "3.11"',
            'older; python_version < "3.12"',
            'apple; sys_platform == "darwin"',
            'arm; platform_machine == "aarch64"',
            'graphs; extra == "plot"',
            "web[fast]",
        ],
    )
    wheel("web", requires=['speedup; extra == "fast"', 'slow; extra == "slow"'])
    for name in ("newer", "older", "arm", "graphs", "speedup"):
        wheel(name)
    found = resolved("server", target=resolve.Target("3.12", "x86_64"))
    assert versions(found).keys() == {"server", "web", "newer", "speedup"}
    found = resolved("server[plot]", target=resolve.Target("3.11", "aarch64"))
    assert versions(found).keys() == {"server", "web", "older", "arm", "graphs", "speedup"}


def test_wheels_that_are_kept_are_not_fetched_again(
    wheel: Any, resolved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel("server", requires=["json"])
    wheel("json")
    first = resolved("server")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert resolved("server") == first


def test_wheels_that_are_given_are_taken(wheel: Any, resolved: Any) -> None:
    ours = wheel("ours", requires=["json"], folder="built")
    other = wheel("other", requires=["ours>=1"], folder="built")
    wheel("json")
    found = resolved("ours", "other", given={"ours": ours, "other": other})
    assert found.wheels.keys() == {"ours", "other", "json"}
    assert found.wheels["ours"] == ours


def test_what_does_not_exist_is_an_error_that_says_who_asks(wheel: Any, resolved: Any) -> None:
    wheel("server", requires=["json>=4"])
    wheel("json", "3.0")
    with pytest.raises(RuntimeError, match=r"json>=4"):
        resolved("server")


def test_the_targets_own_decides_about_versions_and_is_not_carried(
    wheel: Any, resolved: Any
) -> None:
    """Neither is what only it requires."""
    wheel("server", requires=["torch==2.11.0", "numpy>=2", "nvidia-tools", "json"])
    wheel("torch", "2.11.0", requires=["sympy", "json<2"])
    for name, version in (("numpy", "2.5"), ("nvidia-tools", "13.0"), ("sympy", "1.14"),
                          ("json", "1.0"), ("json", "2.0")):  # fmt: skip
        wheel(name, version)
    found = resolved("server", present=["numpy"])
    assert versions(found) == {"server": "1.0", "json": "1.0"}
    assert {name: str(version) for name, version in found.elsewhere.items()} == {
        "numpy": "2.5",
        "nvidia-tools": "13.0",
        "torch": "2.11.0",
    }


def test_some_are_carried_without_what_they_require(wheel: Any, resolved: Any) -> None:
    wheel("server", requires=["numpy>=2"])
    wheel("numpy", "2.5")
    for version in ("5.0.1", "5.0.2", "5.0.3"):
        wheel("flag-gems", version, requires=["numpy==1.26.4"])
    found = resolved("server", "flag-gems<5.0.3")
    assert versions(found) == {"server": "1.0", "numpy": "2.5", "flag-gems": "5.0.2"}


# -- which files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "python", "chip", "kept"),
    [
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "3.12", None, True),
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "3.12", "8.0", True),
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "3.12", "9.0", False),
        ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "3.12", "9.0", True),
        ("vllm/third_party/deep_gemm/_C.cpython-311-x86_64-linux-gnu.so", "3.12", None, False),
        ("vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so", "3.12", None, True),
        ("vllm/_C_stable_libtorch.abi3.so", "3.12", "9.0", True),
    ],
)
def test_kernels_for_others_are_left_out(
    name: str, python: str, chip: str | None, kept: bool
) -> None:
    assert (left_out.file(name, python=python, chip=chip) is None) is kept


def test_a_wheel_is_laid_out_as_pip_would(wheel: Any) -> None:
    path = wheel(
        "tool",
        files={
            "tool/a.py": b"",
            "tool-1.0.data/purelib/tool/b.py": b"",
            "tool-1.0.data/scripts/tool": b"",
        },
    )
    names = [member.name for member in archive.members([path])]
    assert names[2:] == ["tool/a.py", "tool/b.py"]


# -- archives ---------------------------------------------------------------------------------

NOISE = {f"vllm/{name}": os.urandom(300_000) for name in ("a.so", "b.so", "c.so")}
CODE = {"vllm/__init__.py": b"__version__ = '0.26.0'\n", "vllm/kernels/_C.abi3.so": b"\x7fELF"}
LIMIT = 400_000


@pytest.fixture
def bundle(wheel: Any, tmp_path: Path) -> Path:
    """A bundle of one vLLM in several pieces, for this machine."""
    made = make.Bundle(tmp_path / "bundle", TARGET, None, LIMIT)
    made.folder.mkdir()
    made.add("vllm", [wheel("vllm", "0.26.0", files={**CODE, **NOISE})])
    made.elsewhere({"packaging": Version("0.1"), "pluggy": Version("0.1")}, ["packaging", "pluggy"])
    made.manifest["expects"]["pytest"] = pytest.__version__
    made.write()
    return made.folder


def run(bundle: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(bundle / "install.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def edit(bundle: Path, change: Any) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_no_piece_is_above_the_limit_and_the_same_wheels_give_the_same_pieces(
    bundle: Path, wheel: Any, tmp_path: Path
) -> None:
    pieces = json.loads((bundle / "manifest.json").read_text())["archives"]["vllm"]["pieces"]
    assert len(pieces) == 3
    for piece in pieces:
        assert (bundle / piece["name"]).stat().st_size == piece["size"] <= LIMIT
    again = archive.pack(
        sorted(archive.members([tmp_path / "index" / "vllm-0.26.0-py3-none-any.whl"])),
        tmp_path / "vllm.tar.xz",
        10 * LIMIT,
    )
    whole = b"".join((bundle / piece["name"]).read_bytes() for piece in pieces)
    assert len(again) == 1
    assert (tmp_path / "vllm.tar.xz").read_bytes() == whole


def test_it_installs_what_was_packed_and_does_so_once(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    done = run(bundle, target)
    assert done.stdout == f"export PYTHONPATH={target / 'vllm'}\n", done.stderr
    for name, content in {**CODE, **NOISE}.items():
        assert (target / "vllm" / name).read_bytes() == content
    seen = subprocess.run(
        [sys.executable, "-c", "import importlib.metadata as m; print(m.version('vllm'))"],
        env={**os.environ, "PYTHONPATH": str(target / "vllm")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert seen.stdout == "0.26.0\n"
    for piece in bundle.glob("vllm.tar.xz*"):
        piece.unlink()  # nothing is new, so nothing is read
    assert run(bundle, target).returncode == 0


def test_a_renewed_archive_replaces_the_old_one(bundle: Path, wheel: Any, tmp_path: Path) -> None:
    target = tmp_path / "target"
    run(bundle, target)
    made = make.Bundle(bundle, TARGET, None, LIMIT)
    made.add("vllm", [wheel("vllm", "0.26.1", files={"vllm/__init__.py": b"new"})])
    made.write()
    assert run(bundle, target).returncode == 0
    names = sorted(p.name for p in (target / "vllm").rglob("*") if p.is_file())
    assert names == ["METADATA", "WHEEL", "__init__.py"]
    assert not list(bundle.glob("vllm.tar.xz.*"))


def test_what_has_arrived_can_be_used_already(bundle: Path, wheel: Any, tmp_path: Path) -> None:
    made = make.Bundle(bundle, TARGET, None, LIMIT)
    made.manifest = json.loads((bundle / "manifest.json").read_text())
    made.add("more", [wheel("extra")])
    made.write()
    arriving = (bundle / "more.tar.xz").rename(tmp_path / "more.tar.xz")
    target = tmp_path / "target"
    assert "more.tar.xz: missing" in run(bundle, target).stderr
    done = run(bundle, target, "--only", "vllm")
    assert done.stdout == f"export PYTHONPATH={target / 'vllm'}\n", done.stderr
    arriving.rename(bundle / "more.tar.xz")
    done = run(bundle, target, "--only", "more")
    assert done.stdout == f"export PYTHONPATH={target / 'vllm'}:{target / 'more'}\n", done.stderr


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "bytes, expected"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"), "SHA-256 differs"),
    ],
    ids=["missing", "short", "changed"],
)
def test_a_damaged_piece_is_named_before_anything_is_unpacked(
    bundle: Path, tmp_path: Path, damage: Any, said: str
) -> None:
    damage(bundle / "vllm.tar.xz.02")
    done = run(bundle, tmp_path / "target")
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("vllm.tar.xz")]
    assert line.startswith("vllm.tar.xz.02: ")
    assert said in line
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["target"].update(python="3.1"), f"Python {PYTHON}, expected 3.1"),
        (lambda m: m["target"].update(machine="mips"), "expected mips"),
        (lambda m: m["expects"].update(packaging="0.1"), "expected 0.1"),
        (lambda m: m["expects"].update(nowhere="2.0"), "nowhere is not installed, expected 2.0"),
        (lambda m: m["present"].append("nowhere"), "nowhere is not installed, expected any"),
    ],
)
def test_another_machine_is_refused_unless_told_otherwise(
    bundle: Path, tmp_path: Path, change: Any, said: str
) -> None:
    edit(bundle, change)
    done = run(bundle, tmp_path / "target")
    assert done.returncode != 0
    assert said in done.stderr
    assert not (tmp_path / "target").exists()
    assert run(bundle, tmp_path / "target", "--anyway").returncode == 0


def test_the_variant_without_compiled_modules_is_of_links(bundle: Path, tmp_path: Path) -> None:
    target, empty = tmp_path / "target", tmp_path / "empty"
    done = run(bundle, target, "--empty", empty)
    assert done.stdout == f"export PYTHONPATH={empty}:{target / 'vllm'}\n", done.stderr
    assert (empty / "vllm" / "__init__.py").resolve() == target / "vllm" / "vllm" / "__init__.py"
    assert not list(empty.rglob("*.so"))
    assert [path.name for path in empty.glob("*.dist-info")] == ["vllm-0.26.0+empty.dist-info"]


def test_what_is_left_out_is_in_the_manifest(wheel: Any, tmp_path: Path) -> None:
    made = make.Bundle(tmp_path, TARGET, "9.0", LIMIT)
    made.add("vllm", [wheel("vllm", files={"vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": b"1234"})])
    names = {"torch": "2.11.0", "nvidia-tools": "13.1", "flashinfer-python": "0.6"}
    made.elsewhere({name: Version(version) for name, version in names.items()}, ["numpy"])
    assert made.manifest["archives"]["vllm"]["files"] == 2, "METADATA and WHEEL"
    assert made.manifest["expects"] == {"torch": "2.11.0"}
    (files,) = made.manifest["archives"]["vllm"]["left_out"]
    assert files["files"] == "vllm/vllm_flash_attn/_vllm_fa2_C*.so"
    assert files["bytes"] == 4
    left = [row["requirement"] for row in made.manifest["left_out"]]
    assert left == ["nvidia-tools==13.1", "flashinfer-python==0.6"]
    assert all(row["reason"] for row in [files, *made.manifest["left_out"]])


@pytest.fixture
def small_index(monkeypatch: pytest.MonkeyPatch, wheel: Any) -> None:
    ours = wheel("vllm-fl-dispatch", requires=["pluggy"], folder="ours")
    monkeypatch.setattr(make, "our_wheels", lambda folder: {"vllm-fl-dispatch": ours})
    for name in ("vllm", "flag-gems", "pluggy", "pytest", "rich"):
        wheel(name)


def test_only_some_archives_are_renewed(
    small_index: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ["make.py", "--output", str(tmp_path / "b"), "--vllm", "vllm", "--flag-gems",
                 "flag-gems", "--with", "pytest", "--python", PYTHON]  # fmt: skip
    monkeypatch.setattr(sys, "argv", arguments)
    make.main()
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    carried = {name: set(a["distributions"]) for name, a in manifest["archives"].items()}
    assert carried == {
        "vllm-fl": {"vllm-fl-dispatch"},
        "vllm": {"vllm", "flag-gems", "pluggy"},
        "more": {"pytest"},
    }
    (tmp_path / "b" / "vllm.tar.xz").unlink()
    monkeypatch.setattr(sys, "argv", [*arguments, "--with", "pytest", "rich", "--only", "more"])
    make.main()
    renewed = json.loads((tmp_path / "b" / "manifest.json").read_text())["archives"]
    assert set(renewed["more"]["distributions"]) == {"pytest", "rich"}
    assert {n: renewed[n] for n in ("vllm", "vllm-fl")} == {
        n: manifest["archives"][n] for n in ("vllm", "vllm-fl")
    }
    assert not (tmp_path / "b" / "vllm.tar.xz").exists()


def test_what_a_target_has_is_read_from_a_freeze(tmp_path: Path) -> None:
    freeze = tmp_path / "freeze.txt"
    freeze.write_text(
        "# pip freeze\nNumPy==2.5.2\nruamel.yaml==1\n-e git+https://host/x#egg=x\n"
        "torch @ file:///wheels/torch.whl\n"
    )
    assert make.present(freeze) == ["numpy", "ruamel-yaml", "torch"]
    assert make.present(None) == []
