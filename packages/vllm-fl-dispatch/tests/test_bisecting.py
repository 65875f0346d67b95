"""The search for culprits, apart from what runs the test."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_fl_dispatch.bisecting.search import Subset, culprits, minimal

ITEMS = tuple("abcdefghijkl")


def any_of(*guilty: str) -> Callable[[Subset], bool]:
    """Fails where all letters of one of these words are on."""
    return lambda on: any(set(word) <= set(on) for word in guilty)


def counted(fails: Callable[[Subset], bool]) -> tuple[Callable[[Subset], bool], list[Subset]]:
    asked: list[Subset] = []

    def ask(on: Subset) -> bool:
        asked.append(on)
        return fails(on)

    return ask, asked


def test_one_of_many_is_found_by_halving() -> None:
    ask, asked = counted(any_of("j"))
    found = culprits(ITEMS, ask)
    assert (found.sets, found.avoid) == ((("j",),), ("j",))
    assert len(asked) <= 10


def test_two_that_fail_only_together_are_one_set_and_one_of_them_is_avoided() -> None:
    found = culprits(ITEMS, any_of("bk"))
    assert found.sets == (("b", "k"),)
    assert found.avoid in (("b",), ("k",))


def test_independent_culprits_are_all_found() -> None:
    found = culprits(ITEMS, any_of("a", "f", "l"))
    assert sorted(found.sets) == [("a",), ("f",), ("l",)]
    assert set(found.avoid) == set("afl")


def test_one_that_hides_the_fault_of_another_is_not_accused() -> None:
    """Not monotone: c fails, but not together with d."""
    found = culprits("abcd", lambda on: "c" in on and ("d" not in on or "a" in on))
    assert found.sets[0] == ("c",)
    assert found.avoid in (("c",), ("a",))


def test_a_verdict_is_asked_for_once() -> None:
    ask, asked = counted(any_of("bk", "d", "ef"))
    culprits(ITEMS, ask)
    assert len(asked) == len({frozenset(on) for on in asked})


guilty_words = st.lists(
    st.sets(st.sampled_from(ITEMS), min_size=1, max_size=3).map(lambda w: "".join(sorted(w))),
    min_size=1,
    max_size=4,
)


@given(guilty_words)
def test_every_set_found_fails_and_nothing_in_it_can_be_left_out(words: list[str]) -> None:
    fails = any_of(*words)
    found = culprits(ITEMS, fails)
    assert found.sets
    for each in found.sets:
        assert fails(each)
        assert not any(fails(part) for part in combinations(each, len(each) - 1))
    off = set(found.avoid)
    assert not fails(tuple(i for i in ITEMS if i not in off)), "avoiding them passes"
    for item in off:
        assert fails(tuple(i for i in ITEMS if i not in off - {item})), "each is needed"


@given(st.sets(st.sampled_from(ITEMS), min_size=1).map(sorted), st.data())
def test_any_predicate_ends_in_a_set_that_is_minimal_by_one(items: list[str], data: object) -> None:
    """Also where the verdicts follow no rule at all."""
    draw = data.draw  # type: ignore[attr-defined]
    known: dict[frozenset[str], bool] = {frozenset(): False, frozenset(items): True}

    def fails(on: Subset) -> bool:
        key = frozenset(on)
        if key not in known:
            known[key] = draw(st.booleans())
        return known[key]

    found = minimal(items, fails)
    assert fails(found)
    if len(found) > 1:
        assert not any(fails(part) for part in combinations(found, len(found) - 1))


@given(st.sampled_from(ITEMS))
def test_the_number_of_questions_grows_with_the_logarithm(culprit: str) -> None:
    ask, asked = counted(any_of(culprit))
    culprits(ITEMS, ask)
    assert len(asked) <= 3 + 2 * 4


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_items(count: int) -> None:
    items = ITEMS[:count]
    assert culprits(items, any_of(items[-1])).avoid == (items[-1],)
