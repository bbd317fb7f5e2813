from __future__ import annotations

import numpy as np

from tutti.ensembling.methods.score import by_score


def test_weights_are_in_proportion_to_scores():
    assert np.allclose(by_score(np.array([0.6, 0.3, 0.1])), [0.6, 0.3, 0.1])
    assert np.allclose(by_score(np.array([0.9, 0.3])), [0.75, 0.25])


def test_a_score_that_is_not_above_zero_has_no_vote():
    assert by_score(np.array([0.5, 0.0, -0.2, np.nan, np.inf])).tolist() == [1, 0, 0, 0, 0]


def test_without_any_score_above_zero_all_vote_alike():
    assert by_score(np.array([0.0, -1.0])).tolist() == [0.5, 0.5]
