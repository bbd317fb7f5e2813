from __future__ import annotations

import numpy as np
import pytest

from tutti.ensembling.methods.greedy import Greedy, _by_log_loss, _by_squared_error
from tutti.tasks.kinds.registry import KINDS


def shares(counts: np.ndarray) -> np.ndarray:
    return counts / counts.sum()


def plain_loop(terms: np.ndarray, steps: int, loss) -> np.ndarray:
    """Shares by Caruana's algorithm as published, which averages every candidate at every step."""
    picks: list[int] = []
    losses: list[float] = []
    for _ in range(steps):
        candidate_losses = [loss(terms[[*picks, member]].mean(axis=0)) for member in range(len(terms))]
        picks.append(int(np.argmin(candidate_losses)))
        losses.append(min(candidate_losses))
    return shares(np.bincount(picks[: int(np.argmin(losses)) + 1], minlength=len(terms)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("spread", "rows"), [(0.3, 97), (3.0, 97), (10.0, 19)])
def test_log_loss_selection_with_bounds_equals_the_plain_loop(seed, spread, rows):
    rng = np.random.default_rng(seed)
    terms = rng.beta(2 / spread, 1 / spread, size=(12, rows + seed)).clip(1e-7, 1).astype(np.float32)
    expected = plain_loop(terms.astype(np.float64), 15, lambda mean: -np.log(mean).mean())
    assert np.allclose(shares(_by_log_loss(terms, 15)), expected)


@pytest.mark.parametrize("seed", range(20))
def test_squared_error_selection_by_products_equals_the_plain_loop(seed):
    terms = np.random.default_rng(seed).normal(size=(12, 97)) + np.linspace(-1, 1, 12)[:, None]
    expected = plain_loop(terms, 15, lambda mean: np.square(mean).mean())
    assert np.allclose(shares(_by_squared_error(terms, 15)), expected)


def test_an_uninformative_member_gets_no_weight():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=600)
    logits = rng.normal(size=(3, 600, 3))
    logits[:2, np.arange(600), labels] += 2.5
    votes = (np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)).astype(np.float32)
    votes[2] = rng.dirichlet([0.2] * 3, 600)
    weights = Greedy(KINDS["classes"]).fit(votes, labels).weights
    assert weights[2] == 0
    assert weights[:2].min() > 0.25


def test_a_true_class_with_probability_zero_is_handled():
    votes = np.array([[[1, 0], [0, 1]], [[0.5, 0.5], [0.5, 0.5]]], dtype=np.float32)
    assert Greedy(KINDS["classes"]).fit(votes, np.array([1, 0])).weights.tolist() == [0, 1]


def test_bagging_gives_weight_to_more_equally_good_members():
    rng = np.random.default_rng(1)
    labels = rng.integers(2, size=200)
    right = np.where(rng.random((10, 200)) < 0.75, labels, 1 - labels)
    votes = np.where(np.arange(2) == right[..., None], 0.8, 0.2).astype(np.float32)
    single_bag, ten_bags = (Greedy(KINDS["classes"], bags=bags).fit(votes, labels).weights for bags in (1, 10))
    assert (ten_bags > 0).sum() > (single_bag > 0).sum()


def test_a_row_that_all_members_are_surely_wrong_in_does_not_hide_who_is_better():
    votes = np.repeat(np.array([[[0.4, 0.6]], [[0.1, 0.9]]], dtype=np.float32), 40, axis=1)
    votes[:, 0] = [1, 0]
    assert Greedy(KINDS["classes"]).fit(votes, np.ones(40, dtype=np.int64)).weights.tolist() == [0, 1]
