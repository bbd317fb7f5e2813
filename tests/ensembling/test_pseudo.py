from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.ensembling.combine import average
from tutti.ensembling.pseudo import confident


def ensemble(seed: int, members: int = 3, rows: int = 20, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    votes = rng.dirichlet(np.full(classes, 0.1), size=(members, rows)).astype(np.float32)
    return average(votes, np.ones(members)), votes


@given(st.integers(0, 10_000), st.floats(0.3, 1))
def test_exactly_the_rows_at_or_above_the_threshold_are_chosen(seed, threshold):
    mean, votes = ensemble(seed)
    result = confident(mean, votes, threshold)
    assert result.rows.tolist() == [row for row in range(20) if mean[row].max() >= threshold - 1e-6]
    assert np.array_equal(result.classes, mean[result.rows].argmax(axis=1))
    assert np.array_equal(result.confidence, mean[result.rows].max(axis=1))
    assert result.confidence.dtype == np.float32


@given(st.integers(0, 10_000))
def test_agreeing_counts_the_members_that_would_say_the_same(seed):
    mean, votes = ensemble(seed)
    result = confident(mean, votes, 0.6)
    for row, chosen, agreeing in zip(result.rows, result.classes, result.agreeing, strict=True):
        assert agreeing == sum(vote[row].argmax() == chosen for vote in votes)


@given(st.integers(0, 10_000), st.permutations(range(4)), st.permutations(range(3)))
def test_permuting_classes_and_members_only_renames_classes(seed, classes, members):
    mean, votes = ensemble(seed)
    plain = confident(mean, votes, 0.6)
    permuted = confident(mean[:, classes], votes[members][:, :, classes], 0.6)
    assert np.array_equal(permuted.rows, plain.rows)
    assert [classes[index] for index in permuted.classes] == plain.classes.tolist()
    assert np.array_equal(permuted.agreeing, plain.agreeing)


@pytest.mark.parametrize("threshold", [0.6, 0.7, 0.9, 0.95, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("members", [1, 3, 5, 7])
def test_members_that_all_just_reach_the_threshold_reach_it_together(threshold, members):
    row = np.array([threshold, 1 - threshold], dtype=np.float32)
    votes = np.broadcast_to(row, (members, 1, 2))
    assert confident(average(votes, np.ones(members)), votes, threshold).rows.tolist() == [0]


def test_a_row_clearly_below_the_threshold_is_left_out():
    row = np.array([[0.98999, 0.01001]], dtype=np.float32)
    assert confident(row, row[None], 0.99).rows.tolist() == []


def test_no_rows_give_an_empty_result():
    nothing = np.empty((0, 3), np.float32)
    result = confident(nothing, nothing[None], 0.5)
    assert [len(part) for part in (result.rows, result.classes, result.confidence, result.agreeing)] == [0] * 4


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.01, float("nan")])
def test_a_threshold_outside_its_range_is_refused(threshold):
    mean, votes = ensemble(0)
    with pytest.raises(ValueError, match="the threshold must be above 0 and at most 1"):
        confident(mean, votes, threshold)


def test_members_of_other_rows_are_refused():
    mean, votes = ensemble(0)
    with pytest.raises(ValueError, match="must have the ensemble's rows and classes"):
        confident(mean, votes[:, 1:], 0.5)
