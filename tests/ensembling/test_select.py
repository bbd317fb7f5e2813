from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.ensembling.select import top


@given(st.lists(st.floats(allow_nan=True, width=16), max_size=8), st.integers(1, 10))
def test_the_chosen_are_the_best_in_order_and_never_nan(scores, k):
    expected = sorted((index for index, score in enumerate(scores) if score == score), key=lambda i: (-scores[i], i))
    assert top(np.array(scores), k).tolist() == expected[:k]


def test_of_equal_scores_the_lower_index_comes_first():
    assert top(np.array([0.5, 0.9, 0.5, 0.9]), 3).tolist() == [1, 3, 0]


def test_fewer_scores_than_asked_for_are_all_chosen():
    assert top(np.array([0.1, 0.2]), 5).tolist() == [1, 0]


def test_scores_that_are_all_nan_choose_nobody():
    assert top(np.array([np.nan, np.nan]), 2).tolist() == []


def test_choosing_nobody_on_purpose_is_refused():
    with pytest.raises(ValueError, match="must be at least 1; got 0"):
        top(np.array([0.1]), 0)
