"""Where plugins come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_fl_dispatch.discovery import module_sources, scan_distributions

ENTRY = """\
[vllm_fl.plugin]
acme = vllm_fl_acme.plugin
"""


def test_an_entry_point_is_found_with_its_distribution(distribution: Callable[..., Path]) -> None:
    site = distribution("vllm-fl-acme", "0.3", ENTRY)
    (source,) = scan_distributions([str(site)]).sources
    assert (source.name, source.target) == ("acme", "vllm_fl_acme.plugin")
    assert str(source.origin) == "vllm-fl-acme 0.3"


def test_other_groups_are_not_plugins_of_ours(distribution: Callable[..., Path]) -> None:
    site = distribution("other", entry_points="[vllm.general_plugins]\nfl = a:b\n")
    scan = scan_distributions([str(site)])
    assert scan.sources == ()
    assert [entry.name for entry in scan.vllm_entry_points] == ["fl"]


def test_only_the_first_distribution_of_a_name_counts(distribution: Callable[..., Path]) -> None:
    new = distribution("vllm-fl-acme", "0.3", ENTRY, folder="new")
    old = distribution("vllm_fl.acme", "0.1", ENTRY.replace("plugin", "gone"), folder="old")
    scan = scan_distributions([str(new), str(old)])
    assert [source.origin.version for source in scan.sources] == ["0.3"]
    ((_, used, ignored),) = scan.shadowed
    assert used.startswith(str(new))
    assert ignored.startswith(str(old))


def test_a_stale_egg_info_that_hides_a_new_install_is_reported(
    distribution: Callable[..., Path],
) -> None:
    stale = distribution("vllm-fl-acme", "0.1", folder="stale", suffix="egg-info")
    new = distribution("vllm-fl-acme", "0.3", ENTRY, folder="new")
    scan = scan_distributions([str(stale), str(new)])
    assert scan.sources == ()
    assert len(scan.shadowed) == 1


def test_an_equal_copy_as_editable_installs_leave_it_is_no_word_worth(
    distribution: Callable[..., Path],
) -> None:
    site = distribution("vllm-fl-acme", "0.3", ENTRY, folder="site")
    source = distribution("vllm-fl-acme", "0.3", ENTRY, folder="src", suffix="egg-info")
    scan = scan_distributions([str(site), str(source)])
    assert len(scan.sources) == 1
    assert scan.shadowed == ()


def test_what_an_interrupted_removal_left_does_not_end_the_scan(
    distribution: Callable[..., Path],
) -> None:
    site = distribution("vllm-fl-acme", "0.3", ENTRY)
    (site / "vllm_fl_acme-0.3.dist-info" / "METADATA").unlink()
    (source,) = scan_distributions([str(site)]).sources
    assert (source.name, str(source.origin)) == ("acme", "vllm_fl_acme")


def test_eggs_are_told_apart_though_their_folders_have_one_name(tmp_path: Path) -> None:
    eggs = [tmp_path / f"{name}-1.0-py3.11.egg" for name in ("one", "two")]
    for egg in eggs:
        info = egg / "EGG-INFO"
        info.mkdir(parents=True)
        (info / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {egg.name[:3]}\n")
        (info / "entry_points.txt").write_text(f"[vllm_fl.plugin]\n{egg.name[:3]} = a\n")
    scan = scan_distributions([str(egg) for egg in eggs])
    assert [source.name for source in scan.sources] == ["one", "two"]
    assert scan.shadowed == ()


def test_one_malformed_file_does_not_end_the_scan(distribution: Callable[..., Path]) -> None:
    bad = distribution("vllm-fl-bad", entry_points="[vllm_fl.plugin]\nno equals sign\nb = b.m\n")
    distribution("vllm-fl-acme", entry_points=ENTRY)
    scan = scan_distributions([str(bad)])
    assert {source.name for source in scan.sources} == {"acme", "b"}
    ((file, problem),) = scan.problems
    assert file.endswith("entry_points.txt:2")
    assert "no equals sign" in problem


def test_modules_are_named_by_a_comma_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FL_PLUGIN_MODULES", " pkg.a , pkg.b:register,,pkg.a")
    assert [source.target for source in module_sources()] == ["pkg.a", "pkg.b:register"]
