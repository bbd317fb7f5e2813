from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from tutti.ensembling.disagreement import disagreement


def test_members_that_say_the_same_do_not_disagree():
    said = np.random.default_rng(0).dirichlet(np.ones(3), size=5).astype(np.float32)
    assert disagreement(np.stack([said, said])) == pytest.approx(0, abs=1e-9)


def test_of_two_members_it_is_the_jensen_shannon_divergence():
    one, other = np.random.default_rng(1).dirichlet(np.ones(4), size=(2, 6))
    expected = [jensenshannon(left, right) ** 2 for left, right in zip(one, other, strict=True)]
    assert disagreement(np.stack([one, other])) == pytest.approx(expected)


def test_members_that_are_sure_of_other_classes_disagree_more_than_members_that_are_unsure():
    sure, unsure = [[[1.0, 0.0]], [[0.0, 1.0]]], [[[0.5, 0.5]], [[0.5, 0.5]]]
    assert disagreement(np.array(sure)) == pytest.approx(np.log(2))
    assert disagreement(np.array(unsure)) == pytest.approx(0)


def test_of_values_it_is_the_standard_deviation():
    assert disagreement(np.array([[1.0, 2.0], [3.0, 2.0]])).tolist() == [1.0, 0.0]
