from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tutti.ensembling.combine import average


@st.composite
def votes(draw) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities ``(members, rows, classes)`` float32 and weights, some of them 0."""
    members, rows, classes = draw(st.integers(1, 6)), draw(st.integers(0, 5)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    probabilities = rng.dirichlet(np.full(classes, 0.3), size=(members, rows)).astype(np.float32)
    weights = draw(st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=members, max_size=members).filter(any))
    return probabilities, np.array(weights)


def close(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and bool(np.allclose(left, right, atol=2e-7, rtol=0))


@given(votes(), st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(vote, random):
    probabilities, weights = vote
    order = random.sample(range(len(weights)), len(weights))
    assert close(average(probabilities[order], weights[order]), average(probabilities, weights))


@given(votes(), st.randoms(use_true_random=False))
def test_permuting_classes_permutes_the_result(vote, random):
    probabilities, weights = vote
    classes = probabilities.shape[2]
    order = random.sample(range(classes), classes)
    assert np.array_equal(average(probabilities[:, :, order], weights), average(probabilities, weights)[:, order])


@given(votes(), st.floats(1e-300, 1e300))
def test_one_member_is_itself(vote, weight):
    probabilities, _ = vote
    assert np.array_equal(average(probabilities[:1], np.array([weight])), probabilities[0])


@given(votes(), st.integers(2, 4))
def test_copies_of_all_members_change_nothing(vote, copies):
    probabilities, weights = vote
    copied = average(np.concatenate([probabilities] * copies), np.concatenate([weights] * copies))
    assert close(copied, average(probabilities, weights))


@given(votes())
def test_copies_of_one_member_are_that_member(vote):
    probabilities, weights = vote
    copies = np.repeat(probabilities[:1], len(weights), axis=0)
    assert close(average(copies, weights), probabilities[0])


@given(votes())
def test_rows_sum_to_one_and_are_float32(vote):
    result = average(*vote)
    assert result.dtype == np.float32
    assert np.allclose(result.sum(axis=1), 1, atol=1e-6)


@given(votes(), st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_counts(vote, factor):
    probabilities, weights = vote
    assert close(average(probabilities, weights * factor), average(probabilities, weights))


def test_the_mean_is_the_weighted_mean():
    probabilities = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32)
    assert average(probabilities, np.array([3, 1])).tolist() == [[0.75, 0.25]]


def test_values_are_averaged_like_probabilities():
    values = np.array([[1.0, -4.0, 0.0], [5.0, 4.0, 0.1]], dtype=np.float32)
    mean = average(values, np.array([3, 1]))
    assert mean.dtype == np.float32
    assert mean.tolist() == [2.0, -2.0, np.float32(np.float32(0.1) / 4)]


@given(votes())
def test_the_values_of_one_class_are_the_column_of_all(vote):
    probabilities, weights = vote
    assert np.array_equal(average(probabilities[:, :, 0], weights), average(probabilities, weights)[:, 0])


def test_a_member_of_weight_zero_is_not_even_read():
    probabilities = np.array([[[0.25, 0.75]], [[np.nan, np.nan]]], dtype=np.float32)
    assert average(probabilities, np.array([2.0, 0.0])).tolist() == [[0.25, 0.75]]


def test_the_inputs_stay_as_they_were():
    probabilities, weights = np.full((2, 3, 2), 0.5, np.float32), np.array([2.0, 6.0])
    average(probabilities, weights)
    assert weights.tolist() == [2.0, 6.0]
    assert (probabilities == 0.5).all()
