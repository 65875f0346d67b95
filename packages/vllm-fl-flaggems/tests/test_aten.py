"""Which ATen operators are replaced, and that it is said."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import PolicyError, SelectionPolicy
from vllm_fl_dispatch.policy import PLATFORM
from vllm_fl_flaggems import aten, diagnosis, library

KNOWN = ("add", "copy_", "mm", "softmax")


def policy(names: set[str], **values: Any) -> SelectionPolicy:
    shipped = SelectionPolicy().with_values(
        f"{PLATFORM} cuda.yaml", flagos_blacklist=frozenset({"copy_"})
    )
    return shipped.with_values("the user", flagos_aten=frozenset(names), **values)


def test_all_leaves_out_what_platform_and_vendor_leave_out() -> None:
    assert aten.wanted(policy({"*"}), KNOWN, unused=["softmax"]) == ("add", "mm")


def test_a_name_that_the_user_gives_stands_above_the_platforms_list(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aten.logger, "propagate", True)
    monkeypatch.setattr(aten.logger.parent, "propagate", True)
    assert aten.wanted(policy({"copy_", "mm"}), KNOWN) == ("copy_", "mm")
    assert "names copy_, which the platform defaults leave out" in caplog.text
    assert aten.wanted(policy({"*", "copy_"}), KNOWN) == KNOWN


def test_a_name_that_the_user_leaves_out_is_left_out() -> None:
    chosen = policy({"copy_", "mm"}).with_values("the user", flagos_blacklist=frozenset({"mm"}))
    assert aten.wanted(chosen, KNOWN) == ("copy_",)


def test_an_unknown_name_is_a_warning_and_strictly_an_error() -> None:
    assert aten.wanted(policy({"softmx", "mm"}), KNOWN) == ("mm",)
    with pytest.raises(PolicyError, match=r"\(the user\).*no 'softmx'; did you mean 'softmax'\?"):
        aten.wanted(policy({"softmx"}, strict=True), KNOWN)


@pytest.fixture
def gems(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """A flag_gems with one function, for the device of torch's tests."""

    def only_enable(lib: Any, include: list[str]) -> None:
        made.asked.append(include)
        lib.impl("mm", lambda a, b: a.new_full((a.shape[0], b.shape[1]), 7.0), "CPU")

    made = types.SimpleNamespace(
        vendor_name="nvidia", FULL_CONFIG_BY_FUNC={"mm": []}, only_enable=only_enable, asked=[]
    )
    monkeypatch.setattr(library, "load", lambda: made)
    yield made
    aten.undo()


def test_torch_calls_it_until_it_is_undone(gems: types.SimpleNamespace) -> None:
    two = torch.ones(2, 2)
    assert aten.apply(policy({"mm"})) == aten.replaced() == ("mm",)
    assert torch.equal(two.mm(two), torch.full((2, 2), 7.0))
    aten.undo()
    assert torch.equal(two.mm(two), torch.full((2, 2), 2.0))
    assert aten.replaced() == ()


def test_it_is_done_once(gems: types.SimpleNamespace) -> None:
    assert aten.apply(policy({"mm"})) == aten.apply(policy({"mm"})) == ("mm",)
    assert gems.asked == [["mm"]]


@pytest.mark.parametrize(
    "off", [policy(set()), policy({"*"}, use_flagos=False), policy({"unknown"})], ids=str
)
def test_nothing_is_replaced_unasked(gems: types.SimpleNamespace, off: SelectionPolicy) -> None:
    assert aten.apply(off) == ()
    assert gems.asked == []


def test_the_reference_is_said_to_be_none(
    gems: types.SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aten.logger, "propagate", True)
    monkeypatch.setattr(aten.logger.parent, "propagate", True)
    aten.apply(policy({"mm"}))
    assert "no independent reference here" in caplog.text
    manager = types.SimpleNamespace(policy=policy({"mm"}))
    monkeypatch.setattr(diagnosis, "get_default_manager", lambda: manager)
    (line,) = [line for line in diagnosis.lines() if line.startswith("ATen")]
    assert "mm replaced" in line
    assert "`reference` then runs on FlagGems too" in line
