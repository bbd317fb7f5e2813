"""The gain of a trial is what it adds to the ensemble of the others."""

from __future__ import annotations

import numpy as np
import pytest
from scorers import score

from tutti.ensembling.gain import gain

ROWS, CLASSES = 600, 3


@pytest.fixture
def labels() -> np.ndarray:
    return np.arange(ROWS) % CLASSES


@pytest.fixture
def member(labels):
    """Probabilities that are right except in rows ``first`` to ``last``, where the next class is more likely."""

    def made(first: int, last: int, *, sure: float = 0.6) -> np.ndarray:
        predicted = labels.copy()
        predicted[first:last] = (predicted[first:last] + 1) % CLASSES
        likely = np.where(np.arange(ROWS) < last, 0.5, sure) if first == 0 else np.full(ROWS, sure)
        others = (1 - likely) / (CLASSES - 1)
        numbers = np.repeat(others[:, None], CLASSES, axis=1)
        numbers[np.arange(ROWS), predicted] = likely
        return numbers.astype(np.float32)

    return made


@pytest.fixture
def worth(labels):
    def of(newcomer: np.ndarray, *others: np.ndarray) -> float:
        return gain(others, newcomer, score=lambda mean: score("macro_f1", labels=labels, predicted=mean))

    return of


def test_the_first_trial_has_no_gain_as_its_score_does_not_compare_with_the_gains_of_later_ones(worth, member):
    assert worth(member(0, 60)) == 0


def test_a_weaker_but_different_trial_gains_more_than_a_near_copy_of_the_best(worth, member, labels):
    best, near_copy, different = member(0, 90), member(0, 88), member(400, 600, sure=0.7)
    scores = [score("macro_f1", labels=labels, predicted=each) for each in (best, near_copy, different)]
    assert scores[1] > scores[0] > scores[2]
    assert worth(different, best) > worth(near_copy, best) + 0.05
    assert worth(different, best, different) == pytest.approx(0, abs=0.01)  # nobody needs it twice


def test_a_better_trial_gains_at_least_its_lead(worth, member, labels):
    weak, strong = member(0, 300), member(500, 520)
    better = [score("macro_f1", labels=labels, predicted=each) for each in (strong, weak)]
    assert worth(strong, weak) >= better[0] - better[1] - 1e-9


def test_a_trial_that_is_always_wrong_gains_nothing_and_harms_unconfident_others(worth, member):
    wrong = member(1, 600, sure=0.99)
    assert worth(wrong, member(0, 90, sure=0.45)) < -0.1
    assert worth(wrong, member(0, 90, sure=0.9)) == pytest.approx(0, abs=0.005)  # its one right row


def test_values_of_a_regression_are_averaged_too():
    rng = np.random.default_rng(0)
    labels = rng.normal(size=400)
    members = [(labels + rng.normal(size=400)).astype(np.float32) for _ in range(2)]
    result = gain(members[:1], members[1], score=lambda mean: score("neg_mse", labels=labels, predicted=mean))
    assert result == pytest.approx(0.5, abs=0.15)  # the mean of two errors of variance 1 has half of it


def test_five_members_may_vote():
    errors = np.sqrt(5) * np.repeat(np.eye(5, dtype=np.float32), 10, axis=1)  # the mean of n has the error 1 / n
    result = gain([*errors[:4]], errors[4], score=lambda mean: -float(np.square(mean).mean()))
    assert result == pytest.approx(1 / 4 - 1 / 5)


def test_the_newcomer_may_have_several_votes_and_the_best_mean_counts_whatever_follows():
    """The errors of others are 3 and 9; with three votes against one of theirs the newcomer's -1 makes up for a 3."""
    weak, good, newcomer = (np.full(4, error, dtype=np.float32) for error in (9, 3, -1))
    assert gain([weak, good], newcomer, score=lambda mean: -float(np.square(mean).mean())) == pytest.approx(9)
