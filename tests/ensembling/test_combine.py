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
