"""Selects unlabelled rows for pseudo-labels, and estimates the precision of these labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tutti.tasks.kinds.protocol import Kind

if TYPE_CHECKING:
    from tutti.config.recipe import PseudoLabels

_ROUNDING = 1e-6  # a few float32 steps near 1: the mean of members at 0.99 counts as 0.99


@dataclass(frozen=True, eq=False)
class Opinion:
    """What an ensemble predicts, with confidence and agreement.

    Attributes:
        classes: ``(rows,)`` int64, the most likely class (ties go to the first); 0 for kinds without.
        confidence: ``(rows,)`` float32, or float64 at a temperature: the probability of the least certain decision.
        agreement: ``(rows,)`` float32, the share of the members who decide as the ensemble does.
    """

    classes: np.ndarray
    confidence: np.ndarray
    agreement: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Opinion:
        return Opinion(self.classes[rows], self.confidence[rows], self.agreement[rows])


def opinion(kind: Kind, probabilities: np.ndarray, decided: np.ndarray, by_members: np.ndarray) -> Opinion:
    """What the ensemble decides of each row, how sure it is, and the members' agreement.

    Args:
        probabilities: ``(rows, outputs)`` float32 or float64, the ensemble's.
        decided: ``(rows, ...)``, its decisions.
        by_members: ``(members, rows, ...)``, those of the members with a vote.
    """
    equal = by_members == decided
    agreement = equal.all(axis=tuple(range(2, equal.ndim))).mean(axis=0, dtype=np.float32)
    classes = decided if kind.exclusive and not kind.exchangeable else np.zeros(len(decided), dtype=np.int64)
    of_decisions = np.take_along_axis(kind.distributions(probabilities), kind.truths(decided)[:, None], axis=1)
    confidence = np.fmin.reduce(of_decisions.reshape(decided.shape), axis=tuple(range(1, decided.ndim)))
    return Opinion(classes, confidence, agreement)


def choose(predicted: Opinion, labelling: PseudoLabels, *, prior: np.ndarray, able: np.ndarray) -> np.ndarray:
    """The rows that get a pseudo-label, ``(chosen,)`` int64 in ascending order.

    Args:
        prior: ``(classes,)``, the classes' shares among the training rows.
        able: ``(rows,)`` bool, whether a row may be chosen; other rows do not count for shares.
    """
    candidates = np.flatnonzero(able & (predicted.agreement >= labelling.agreement - _ROUNDING))
    chosen = _SELECT[labelling.select](predicted[candidates], labelling, prior)
    return np.sort(candidates[chosen])


def agrees(agreement: np.ndarray, labelling: PseudoLabels) -> np.ndarray:
    """``(rows,)`` bool: whether members agree enough on texts, by ``(rows,)`` shares, which are the confidence too."""
    threshold = labelling.threshold if labelling.select == "threshold" else 0.0
    return agreement >= max(labelling.agreement, threshold) - _ROUNDING


def _by_threshold(predicted: Opinion, labelling: PseudoLabels, prior: np.ndarray) -> np.ndarray:
    return np.flatnonzero(predicted.confidence.astype(np.float64) >= labelling.threshold - _ROUNDING)


def _by_quantile(predicted: Opinion, labelling: PseudoLabels, prior: np.ndarray) -> np.ndarray:
    counts = np.bincount(predicted.classes, minlength=len(prior))
    return _most_confident(predicted, np.ceil(counts * labelling.share - _ROUNDING))


def _by_prior(predicted: Opinion, labelling: PseudoLabels, prior: np.ndarray) -> np.ndarray:
    return _most_confident(predicted, np.rint(prior * labelling.share * len(predicted.classes)))


def _all(predicted: Opinion, labelling: PseudoLabels, prior: np.ndarray) -> np.ndarray:
    return np.arange(len(predicted.classes))


_SELECT: Mapping[str, Callable[[Opinion, PseudoLabels, np.ndarray], np.ndarray]] = {
    "threshold": _by_threshold,
    "quantile": _by_quantile,
    "prior": _by_prior,
    "all": _all,
    "parts": _all,  # of rows in which there are any
}


def _most_confident(predicted: Opinion, counts: np.ndarray) -> np.ndarray:
    """Up to ``counts`` ``(classes,)`` most confident rows of each class; ties go to the first row."""
    order = np.lexsort((-predicted.confidence, predicted.classes))
    classes = predicted.classes[order]
    rank = np.arange(len(order)) - np.searchsorted(classes, classes)  # within the class, from 0
    return order[rank < counts[classes]]


def drift(shares: np.ndarray, prior: np.ndarray) -> tuple[float, int]:
    """The largest difference of a class's share from its share among the training rows, and the index of the class.

    Rounded to nine digits, so that 0.55 is no further from 0.5 than 0.05.

    Args:
        shares: ``(classes,)``, the classes' shares among the pseudo-labels.
        prior: ``(classes,)``.
    """
    differences = np.round(shares - prior, 9)
    worst = int(np.abs(differences).argmax())
    return float(differences[worst]), worst


def precision(
    predicted: Opinion, decided: np.ndarray, labels: np.ndarray, *, like: Opinion, least_agreement: float
) -> tuple[np.ndarray, np.ndarray]:
    """Counts how many labelled rows comparable to the pseudo-labelled ones are right, by predicted class or label.

    A labelled row is comparable if it has the required agreement and at least the confidence of the least confident
    pseudo-labelled row of its predicted class.

    Args:
        predicted: of labelled rows by an ensemble that was not fitted on them.
        decided: what it decides of them, ``(rows, outputs)`` bool as of ``Kind.held``.
        labels: ``(rows, outputs)`` bool, what is true of them.
        like: predictions for the pseudo-labelled rows.

    Returns:
        ``(outputs,)`` int64: the comparable rows, and the right ones among them.
    """
    lowest = np.full(decided.shape[1], np.inf)
    np.minimum.at(lowest, like.classes, like.confidence)
    confident = predicted.confidence >= lowest[predicted.classes] - _ROUNDING
    comparable = confident & (predicted.agreement >= least_agreement - _ROUNDING)
    judged = decided & comparable[:, None]
    return judged.sum(axis=0), (judged & labels).sum(axis=0)
