from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.ensembling.select import Selection, top
from tutti.tasks.kinds.registry import KINDS


@given(st.lists(st.floats(allow_nan=True, width=16), max_size=8), st.integers(1, 10))
def test_the_chosen_are_the_best_in_order_and_never_nan(scores, k):
    expected = sorted((index for index, score in enumerate(scores) if score == score), key=lambda i: (-scores[i], i))
    assert top(np.array(scores), k).tolist() == expected[:k]


CLASSES = np.array([[0, 1, 2, 0, 1], [0, 1, 2, 0, 1], [0, 1, 2, 0, 2], [2, 1, 0, 0, 1]])


def test_without_a_rule_all_members_with_a_score_vote_best_first():
    assert Selection().choose(np.array([0.2, np.nan, 0.9, 0.5]), CLASSES, KINDS["classes"]).tolist() == [2, 3, 0]
    assert Selection().choose(np.array([]), CLASSES[:0], KINDS["classes"]).tolist() == []


def test_within_selects_members_near_the_best_and_top_limits_them():
    scores = np.array([0.80, 0.79, 0.775, 0.70])
    assert Selection(within=0.02).choose(scores, CLASSES, KINDS["classes"]).tolist() == [0, 1]
    assert Selection(within=0.03, top=2).choose(scores, CLASSES, KINDS["classes"]).tolist() == [0, 1]
    assert Selection(within=0.0).choose(np.array([0.5, 0.5, 0.4, 0.5]), CLASSES, KINDS["classes"]).tolist() == [0, 1, 3]


def test_within_includes_the_exact_limit():
    for best in (0.9, 0.8):  # in floats 0.8 - 0.1 is more than 0.7
        scores = np.array([best, round(best - 0.1, 1), best - 0.1001])
        assert Selection(within=0.1).choose(scores, CLASSES[:3], KINDS["classes"]).tolist() == [0, 1]


def test_a_member_without_a_score_does_not_count_as_the_best_one():
    assert Selection(within=0.02).choose(np.array([np.nan, 0.8, 0.79, 0.7]), CLASSES, KINDS["classes"]).tolist() == [
        1,
        2,
    ]


def test_a_near_copy_of_a_better_member_is_skipped_for_the_next_member():
    scores = np.array([0.8, 0.9, 0.7, 0.6])
    assert Selection(top=2, diversity=0.01).choose(scores, CLASSES, KINDS["classes"]).tolist() == [1, 2]
    assert Selection(diversity=0.3).choose(scores, CLASSES, KINDS["classes"]).tolist() == [1, 3]
    assert Selection(diversity=0.0).choose(scores, CLASSES, KINDS["classes"]).tolist() == [1, 0, 2, 3]


def test_values_that_differ_only_in_scale_are_near_copies():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 50)).astype(np.float32)
    values = np.stack([first, 2 * first + 1, second])
    assert Selection(diversity=0.01).choose(np.array([0.3, 0.2, 0.1]), values, KINDS["value"]).tolist() == [0, 2]
    assert KINDS["value"].difference(first, 2 * first + 1) == pytest.approx(0, abs=1e-6)
    assert KINDS["value"].difference(first, -first) == pytest.approx(2)
    assert KINDS["value"].difference(first, np.ones(50, np.float32)) == 1
    assert KINDS["value"].difference(np.zeros(50, np.float32), np.ones(50, np.float32)) == 0


def test_a_member_that_predicts_one_value_for_all_rows_is_no_near_copy_of_others():
    values = np.stack([np.full(50, 2.5), np.arange(50.0), np.full(50, 1.5)]).astype(np.float32)
    assert Selection(diversity=0.002).choose(np.array([0.3, 0.2, 0.1]), values, KINDS["value"]).tolist() == [0, 1]


def test_a_near_copy_of_any_voter_is_skipped():
    copies = CLASSES[[0, 3, 0, 3]]
    assert Selection(diversity=0.01).choose(np.array([0.9, 0.8, 0.7, 0.6]), copies, KINDS["classes"]).tolist() == [0, 1]
