"""The selection of cases that is run where time is short."""

from __future__ import annotations

import itertools

from pairs import pairwise


def test_any_two_values_meet_in_few_combinations() -> None:
    axes = (["half", "bfloat16"], [64, 80, 96, 128, 256], "pdc", ["plain", "window", "softcap"])
    chosen = pairwise(*axes)
    assert len(chosen) < 20, "of 90"
    for (i, first), (j, second) in itertools.combinations(enumerate(axes), 2):
        met = {(each[i], each[j]) for each in chosen}
        assert met == set(itertools.product(first, second))
    assert chosen == pairwise(*axes)
