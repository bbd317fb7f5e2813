"""Stacking: a strongly regularised regression on the members' votes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tutti.ensembling.calibrate import log_probabilities
from tutti.ensembling.methods.protocol import Weighted, check, check_members


@dataclass(frozen=True)
class Stacking:
    """Stacked generalisation (Wolpert 1992; Breiman 1996) with strong regularisation.

    Classes: multinomial logistic regression on the members' log-probabilities, centred in each row. It has no
    intercept: scikit-learn does not regularise the intercept, so it would dominate the small coefficients and predict
    the most frequent class. Without one, regularisation softens the probabilities but keeps their order. A class
    without a fitted row gets probability 0. Weights are equal if all rows have one class, or if there are more classes
    than half of the rows.

    Values: ridge regression of the plain mean's error on the members' deviations from the mean, so that regularisation
    shrinks towards the plain mean and keeps the labels' scale.

    A single member is returned unchanged. Duplicating all members changes nothing, since the regularisation grows with
    their number.

    Args:
        C: inverse regularisation strength as in scikit-learn, divided by the number of members. Small on purpose: with
            1 for ten members it overfits a hundred rows.
    """

    C: float = 0.1
    values: ClassVar[bool] = True

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> _Logistic | _Ridge | Weighted:
        check(votes, labels, values=self.values)
        uniform = np.full(len(votes), 1 / len(votes))
        if len(votes) == 1 or len(labels) < 2 or np.ptp(labels) == 0:
            return Weighted(uniform)
        strength = self.C / len(votes)
        if votes.ndim == 2:
            return _Ridge(uniform + _ridge(votes.astype(np.float64), labels.astype(np.float64), 1 / strength))
        if 2 * len(np.unique(labels)) > len(labels):
            return Weighted(uniform)
        from sklearn.linear_model import LogisticRegression  # slow to import

        model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1000, tol=1e-6)
        model.fit(_log_odds(votes), labels)
        sizes = np.abs(model.coef_).reshape(len(model.coef_), *votes.shape[::2]).sum(axis=(0, 2))
        return _Logistic(model, sizes / sizes.sum() if sizes.any() else uniform)


@dataclass(frozen=True, eq=False)
class _Logistic:
    """``weights`` are the members' shares of the absolute coefficients, a measure of their influence."""

    model: Any
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        check_members(votes, len(self.weights))
        probabilities = np.zeros(votes.shape[1:], dtype=np.float32)
        if len(probabilities):
            probabilities[:, self.model.classes_] = self.model.predict_proba(_log_odds(votes))
        return probabilities


@dataclass(frozen=True, eq=False)
class _Ridge:
    """``weights`` sum to 1 and may be negative."""

    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        check_members(votes, len(self.weights))
        return (self.weights @ votes.astype(np.float64)).astype(np.float32)


def _ridge(votes: np.ndarray, labels: np.ndarray, alpha: float) -> np.ndarray:
    """Coefficients ``(members,)`` of the members' deviations from their mean; they sum to 0."""
    from sklearn.linear_model import Ridge  # slow to import

    scale = labels.std()
    mean = votes.mean(axis=0)
    model = Ridge(alpha=alpha, fit_intercept=False).fit((votes - mean).T / scale, (labels - mean) / scale)
    return model.coef_ - model.coef_.mean()


def _log_odds(votes: np.ndarray) -> np.ndarray:
    """``(rows, members * classes)`` float64, centred over the classes of each member."""
    logs = log_probabilities(votes)
    logs -= logs.mean(axis=2, keepdims=True)
    return logs.transpose(1, 0, 2).reshape(votes.shape[1], -1)
