"""FlagGems is imported once and leaves nothing behind; each way to fail has its reason."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_fl_dispatch import DeviceSpec, Verdict, probing
from vllm_fl_dispatch.types import Origin
from vllm_fl_flaggems import containment, diagnosis, library, probe, trial

#: A flag_gems that does what the real one does to a process, and says for whom it was set up.
WELL = """
import os, sys
import flag_gems.patches
print("[Note] No specialized common operators were found")
import warnings
warnings.warn("warmup and rep are deprecated", DeprecationWarning)
sys.path.append(os.path.dirname(__file__))
os.environ["FLAGGEMS_SOURCE_DIR"] = "here"
vendor_name = os.environ["GEMS_VENDOR"]
database = os.environ["FLAGGEMS_DB_URL"]
flagtune = os.environ.get("USE_FLAGTUNE")
__version__ = "5.0.2"
imports = globals().get("imports", 0) + 1
def here(): ...
"""
Plant = Callable[[str], Path]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Puts a flag_gems, beside a Triton that it works with, on the path of this process."""
    monkeypatch.setattr(library, "_outcome", None)
    monkeypatch.setattr(probe, "NODE_VENDORS", {"null": "nvidia"})
    monkeypatch.setattr(probing, "version_of", {"triton": "3.6.0", "flag-gems": "5.0.2"}.get)
    monkeypatch.setattr(probing, "module_installed", _found_unless_hidden)
    monkeypatch.setenv("FLAGGEMS_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.delenv("GEMS_VENDOR", raising=False)
    described(monkeypatch, None)

    def put(code: str) -> Path:
        package = tmp_path / "site" / "flag_gems"
        (package / "utils").mkdir(parents=True)
        (package / "__init__.py").write_text(code)
        (package / "patches.py").write_text("import os\nos.abort()\n")
        (package / "utils" / "__init__.py").touch()
        (package / "utils" / "code_cache.py").write_text("def code_cache_dir(): ...\n")
        monkeypatch.syspath_prepend(str(package.parent))
        return package

    yield put
    for name in [name for name in sys.modules if name.partition(".")[0] == "flag_gems"]:
        del sys.modules[name]


def _found_unless_hidden(name: str, hint: str = "") -> Verdict:
    return Verdict.no(f"{name} is hidden") if name in hidden else Verdict.yes()


hidden: set[str] = set()


def described(monkeypatch: pytest.MonkeyPatch, vendor: str | None) -> None:
    """Let a backend describe a device of this vendor, or none."""
    spec = DeviceSpec("acme", "cuda", vendor or "", "CUDA", "torch.cuda", "nccl", "VISIBLE")
    record: Any = types.SimpleNamespace(source=types.SimpleNamespace(origin=Origin("vllm-fl-acme")))
    monkeypatch.setattr(library, "devices", lambda records: [(record, spec)] if vendor else [])


def reason() -> str:
    with pytest.raises(library.FlagGemsUnavailable) as caught:
        library.load()
    return str(caught.value)


def test_the_import_leaves_nothing_behind(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(WELL)
    monkeypatch.setenv("USE_FLAGTUNE", "1")
    path, environment = list(sys.path), dict(os.environ)
    gems = library.load()
    assert gems.vendor_name == "nvidia"
    assert gems.flagtune is None
    assert sys.path == path
    assert dict(os.environ) == environment
    assert capsys.readouterr().out == ""


def test_its_patches_of_vllm_are_never_run(plant: Plant) -> None:
    plant(WELL)  # its module of patches would end this process
    library.load()
    assert sys.modules[containment.PATCHES].__all__ == []


def test_it_is_imported_once_and_the_verdict_stays(plant: Plant) -> None:
    plant(WELL)
    assert library.outcome() is None
    assert library.load() is library.load()
    assert library.outcome() == Verdict.yes()


@pytest.mark.parametrize("rank", ["0", "3"])
def test_each_rank_tunes_into_a_file_of_its_own(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    plant(WELL)
    monkeypatch.setenv("RANK", rank)
    assert library.load().database.endswith(f"_triton_3_6_0_rank{rank}.db")


def test_a_database_that_the_user_names_is_used(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(WELL)
    monkeypatch.setenv("FLAGGEMS_DB_URL", "sqlite:///:memory:")
    assert library.load().database == "sqlite:///:memory:"


def test_without_a_writable_home_a_private_folder_is_used(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(WELL)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLAGGEMS_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(containment.tempfile, "tempdir", str(tmp_path))
    assert str(tmp_path / "vllm-fl-flaggems-") in library.load().database


def test_the_vendor_is_that_of_the_described_device(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(WELL)
    described(monkeypatch, "ascend")
    assert library.load().vendor_name == "ascend"


@pytest.mark.parametrize(
    ("device", "variable", "expected"),
    [
        ("nvidia", "amd", "GEMS_VENDOR='amd', but the device that vllm-fl-acme describes is"),
        ("nvidia", "arm", "GEMS_VENDOR='arm', but"),
    ],
)
def test_a_wrong_vendor_is_refused(
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
    device: str | None,
    variable: str | None,
    expected: str,
) -> None:
    plant(WELL)
    described(monkeypatch, device)
    if variable:
        monkeypatch.setenv("GEMS_VENDOR", variable)
    assert expected in reason()
    assert "flag_gems" not in sys.modules


def test_no_device_at_all_is_said_without_an_import(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(WELL)
    monkeypatch.setattr(probe, "NODE_VENDORS", {"no-such-node": "nvidia"})
    assert "no device that flag-gems has a backend for; found: none; it has nvidia" in reason()
    assert "flag_gems" not in sys.modules


def test_a_device_that_flag_gems_does_not_know_is_named(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(WELL)
    described(monkeypatch, "acme")
    monkeypatch.setattr(probe, "NODE_VENDORS", {"no-such-node": "nvidia"})
    assert "found: acme (the device that vllm-fl-acme describes); it has nvidia" in reason()


def test_of_two_devices_the_one_that_flag_gems_knows_counts(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(WELL)
    described(monkeypatch, "cpu")  # a backend of the host beside a device node of NVIDIA
    assert library.load().vendor_name == "nvidia"


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ('RuntimeError("No device were detected on your machine !")', "RuntimeError: No device"),
        ('AssertionError("Torch not compiled with CUDA enabled")', "AssertionError: Torch not"),
        ('AttributeError("module torch has no attribute npu")', "AttributeError: module torch"),
        ('ModuleNotFoundError("torch_mlu")', "ModuleNotFoundError: torch_mlu"),
        ('TypeError("unexpected keyword")', "TypeError: unexpected keyword"),
        ("SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_whatever_the_import_raises_is_the_reason_for_good(
    plant: Plant, raised: str, expected: str
) -> None:
    plant(f"import sys\nsys.path.append('stray')\nraise {raised}\n")
    assert f"import flag_gems raised {expected}" in reason()
    assert "stray" not in sys.path
    # A second attempt would raise something else; the first reason stays.
    assert f"import flag_gems raised {expected}" in reason()


def test_half_an_import_of_someone_else_is_not_tried_again(plant: Plant) -> None:
    plant(WELL)
    sys.modules["flag_gems.runtime"] = types.ModuleType("flag_gems.runtime")
    assert reason() == "an earlier import of flag_gems failed in this process"


def test_set_up_for_another_vendor_before(plant: Plant) -> None:
    plant(WELL)
    sys.modules["flag_gems"] = other = types.ModuleType("flag_gems")
    other.vendor_name = "ascend"  # type: ignore[attr-defined]
    plant_utils(other)
    assert "was set up for 'ascend' before, but the device nodes is 'nvidia'" in reason()


def plant_utils(package: types.ModuleType) -> None:
    package.__path__ = []
    for name in ("flag_gems.utils", "flag_gems.utils.code_cache"):
        sys.modules[name] = module = types.ModuleType(name)
        module.__path__ = []
        module.code_cache_dir = lambda: None  # type: ignore[attr-defined]


def test_a_device_that_torch_does_not_see(plant: Plant) -> None:
    plant(
        WELL + "import types\n"
        "runtime = types.SimpleNamespace("
        "device=types.SimpleNamespace(device_count=0, name='cuda'))\n"
    )
    assert reason() == "torch sees no device: torch.cuda.device_count() is 0"


def test_a_missing_requirement_is_named(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(WELL)
    monkeypatch.setattr(sys.modules[__name__], "hidden", {"sqlalchemy"})
    assert reason() == "sqlalchemy is hidden"


def test_a_function_that_the_release_lacks_is_named(plant: Plant) -> None:
    plant(WELL)
    assert library.function("here")
    with pytest.raises(library.FlagGemsUnavailable, match="has no function gone"):
        library.function("gone")


def test_a_cheap_entry_is_not_taken_where_a_vendor_overrides(plant: Plant) -> None:
    package = plant(
        WELL + "from flag_gems.generic import public, other\nother.__module__ = 'vendor'"
    )
    (package / "generic.py").write_text(
        "def public(): ...\ndef other(): ...\ndef cheap_public(): ...\ndef cheap_other(): ...\n"
    )
    assert library.function("public", cheap="flag_gems.generic:cheap_public").__name__ == (
        "cheap_public"
    )
    assert library.function("other", cheap="flag_gems.generic:cheap_other").__name__ == "other"


@pytest.mark.parametrize(
    ("versions", "missing", "nodes", "said"),
    [
        ({"triton": "3.8.0"}, set(), {}, "FlagGems: triton 3.8.0 is outside the range"),
        ({}, set(), {}, "FlagGems: triton is not installed"),
        ({"triton": "3.6.0"}, {"flag_gems"}, {}, "FlagGems: flag_gems is hidden"),
        ({"triton": "3.6.0"}, {"sqlalchemy"}, {}, "FlagGems: sqlalchemy is hidden"),
        ({"triton": "3.6.0"}, set(), {"none": "nvidia"}, "accelerator: no accelerator device"),
    ],
    ids=["new", "no-triton", "no-library", "no-sqlalchemy", "no-device"],
)
def test_the_doctor_names_what_is_missing(
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str],
    missing: set[str],
    nodes: dict[str, str],
    said: str,
) -> None:
    monkeypatch.setattr(probing, "version_of", versions.get)
    monkeypatch.setattr(sys.modules[__name__], "hidden", missing)
    monkeypatch.setattr(diagnosis.trial, "attempt", lambda: Verdict.yes("5.0.2"))
    if nodes:
        monkeypatch.setattr(probe, "NODE_VENDORS", nodes)
    assert any(line.startswith(said) for line in diagnosis.lines()), list(diagnosis.lines())


# -- what the doctor says ------------------------------------------------------------------------


def trial_command(monkeypatch: pytest.MonkeyPatch, prelude: str) -> None:
    code = f"{prelude}\nfrom vllm_fl_flaggems.trial import main\nraise SystemExit(main())"
    monkeypatch.setattr(trial, "COMMAND", (sys.executable, "-c", code))


@pytest.mark.parametrize(
    ("code", "works", "said"),
    [
        ("print('flag-gems trial: 5.0.2')", True, "5.0.2"),
        ("print('flag-gems trial: no backend'); raise SystemExit(1)", False, "no backend"),
        ("import os; os.abort()", False, "ended the process with SIGABRT"),
        ("raise SystemExit('oh')", False, "ended the process: oh"),
    ],
)
def test_a_trial_survives_whatever_the_import_does(
    monkeypatch: pytest.MonkeyPatch, code: str, works: bool, said: str
) -> None:
    monkeypatch.setattr(trial, "COMMAND", (sys.executable, "-c", code))
    found = trial.attempt()
    assert bool(found) == works
    assert said in found.reason


def test_the_doctor_tries_the_import_and_gives_its_reason(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = plant("raise RuntimeError('it broke')")
    prelude = f"""
import sys
sys.path.insert(0, {str(package.parent)!r})
from vllm_fl_dispatch import Verdict, probing
from vllm_fl_flaggems import library, probe
probe.NODE_VENDORS.clear()
probe.NODE_VENDORS["null"] = "nvidia"
library.library_installed = Verdict.yes
library.devices = lambda records: []
"""
    trial_command(monkeypatch, prelude)
    lines = list(diagnosis.lines())
    assert "import: fails: import flag_gems raised RuntimeError: it broke" in lines
    assert library.outcome() is None, "the process of the doctor imported it"


def test_the_doctor_explains_the_pins_that_pip_check_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["numpy==1.26.4", "pip>=1"])
    (line,) = [line for line in diagnosis.lines() if line.startswith("pip check")]
    assert "numpy==1.26.4 (found " in line
    assert "pip install --no-deps flag-gems" in line
    assert "pip>=1" not in line
