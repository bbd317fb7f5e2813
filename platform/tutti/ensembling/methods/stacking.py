"""Stacking: a regression on what the members say, held close to saying nothing new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tutti.ensembling.calibrate import log_probabilities
from tutti.ensembling.methods.protocol import Weighted, check, check_members


@dataclass(frozen=True)
class Stacking:
    """Stacked generalisation (Wolpert 1992; Breiman 1996) with strong regularisation.

    Classes: a multinomial logistic regression on the members' log-probabilities, centred in each row. It has no
    intercept, which is not regularised and would outvote what is: so held back, coefficients make the answer soft and
    leave its order, but with an intercept the most frequent class would win. A class without a fitted row gets
    probability 0. Where all rows are of one class, or there are more classes than half of the rows, there is nothing to
    learn and all members weigh the same.

    Values: a ridge regression of what the plain mean is wrong by on the members' distances from it, so that
    regularisation leads to the plain mean, and never away from the labels' scale.

    One member is taken at its word. Copies of all members change nothing: more members are held back more.

    Args:
        C: inverse strength of the regularisation, as scikit-learn has it, of one member; of ten it is a tenth of that.
            Small on purpose: with 1 for ten members a hundred rows are learned by heart.
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
    """``weights`` are shares of the coefficients' sizes: what a member says moves the answer by so much."""

    model: Any
    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        check_members(votes, len(self.weights))
        said = np.zeros(votes.shape[1:], dtype=np.float32)
        if len(said):
            said[:, self.model.classes_] = self.model.predict_proba(_log_odds(votes))
        return said


@dataclass(frozen=True, eq=False)
class _Ridge:
    """``weights`` sum to 1, but one may be below 0."""

    weights: np.ndarray

    def combine(self, votes: np.ndarray) -> np.ndarray:
        check_members(votes, len(self.weights))
        return (self.weights @ votes.astype(np.float64)).astype(np.float32)


def _ridge(votes: np.ndarray, labels: np.ndarray, alpha: float) -> np.ndarray:
    """Weights ``(members,)`` that sum to 0, of the members' distances from their mean."""
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
