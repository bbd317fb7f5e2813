from __future__ import annotations

import numpy as np
import pytest

from tutti.ensembling.methods.greedy import Greedy, _by_log_loss, _by_squared_error


def shares(counts: np.ndarray) -> np.ndarray:
    return counts / counts.sum()


def plain(known: np.ndarray, steps: int, loss) -> np.ndarray:
    """Shares by Caruana's loop as it is written down: every candidate averaged anew at every step."""
    picks: list[int] = []
    losses: list[float] = []
    for _ in range(steps):
        tried = [loss(known[[*picks, member]].mean(axis=0)) for member in range(len(known))]
        picks.append(int(np.argmin(tried)))
        losses.append(min(tried))
    return shares(np.bincount(picks[: int(np.argmin(losses)) + 1], minlength=len(known)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_the_shortcut_of_the_log_loss_adds_the_members_that_the_plain_loop_adds(seed, spread):
    rng = np.random.default_rng(seed)
    known = rng.beta(2 / spread, 1 / spread, size=(12, 97 + seed)).clip(1e-7, 1).astype(np.float32)
    expected = plain(known.astype(np.float64), 15, lambda mean: -np.log(mean).mean())
    assert np.allclose(shares(_by_log_loss(known, 15)), expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_shortcut_of_the_squared_error_adds_the_members_that_the_plain_loop_adds(seed):
    known = np.random.default_rng(seed).normal(size=(12, 97)) + np.linspace(-1, 1, 12)[:, None]
    expected = plain(known, 15, lambda mean: np.square(mean).mean())
    assert np.allclose(shares(_by_squared_error(known, 15)), expected)


def test_a_member_that_knows_nothing_has_no_weight():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=600)
    logits = rng.normal(size=(3, 600, 3))
    logits[:2, np.arange(600), labels] += 2.5
    votes = (np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)).astype(np.float32)
    votes[2] = rng.dirichlet([0.2] * 3, 600)
    weights = Greedy().fit(votes, labels).weights
    assert weights[2] == 0
    assert weights[:2].min() > 0.25


def test_a_true_class_that_is_called_impossible_does_not_break_it():
    votes = np.array([[[1, 0], [0, 1]], [[0.5, 0.5], [0.5, 0.5]]], dtype=np.float32)
    assert Greedy().fit(votes, np.array([1, 0])).weights.tolist() == [0, 1]


def test_bags_let_more_members_vote_that_are_equally_good():
    rng = np.random.default_rng(1)
    labels = rng.integers(2, size=200)
    right = np.where(rng.random((10, 200)) < 0.75, labels, 1 - labels)
    votes = np.where(np.arange(2) == right[..., None], 0.8, 0.2).astype(np.float32)
    one, many = (Greedy(bags=bags).fit(votes, labels).weights for bags in (1, 10))
    assert (many > 0).sum() > (one > 0).sum()
