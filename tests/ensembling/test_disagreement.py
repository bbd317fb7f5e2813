from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from tutti.tasks.kinds.registry import KINDS


def test_identical_members_do_not_disagree():
    votes = np.random.default_rng(0).dirichlet(np.ones(3), size=5).astype(np.float32)
    assert KINDS["classes"].disagreement(np.stack([votes, votes])) == pytest.approx(0, abs=1e-9)


def test_for_two_members_it_is_the_jensen_shannon_divergence():
    first, second = np.random.default_rng(1).dirichlet(np.ones(4), size=(2, 6))
    expected = [jensenshannon(left, right) ** 2 for left, right in zip(first, second, strict=True)]
    assert KINDS["classes"].disagreement(np.stack([first, second])) == pytest.approx(expected)


def test_confident_members_with_different_classes_disagree_more_than_unconfident_ones():
    confident, unconfident = [[[1.0, 0.0]], [[0.0, 1.0]]], [[[0.5, 0.5]], [[0.5, 0.5]]]
    assert KINDS["classes"].disagreement(np.array(confident)) == pytest.approx(np.log(2))
    assert KINDS["classes"].disagreement(np.array(unconfident)) == pytest.approx(0)


def test_for_values_it_is_the_standard_deviation():
    assert KINDS["value"].disagreement(np.array([[1.0, 2.0], [3.0, 2.0]])).tolist() == [1.0, 0.0]
