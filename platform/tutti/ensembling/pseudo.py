"""Which unlabelled rows get a pseudo-label, and how often such labels are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tutti.errors import Fault

_ROUNDING = 1e-6  # a few float32 steps near 1: a mean of members that all say 0.99 counts as 0.99


@dataclass(frozen=True, eq=False)
class Opinion:
    """What an ensemble thinks of rows.

    Attributes:
        classes: ``(rows,)`` int64, the class of highest probability (of equals the first).
        confidence: ``(rows,)`` float32, that probability.
        agreement: ``(rows,)`` float32, the share of the members that give that class the highest probability.
    """

    classes: np.ndarray
    confidence: np.ndarray
    agreement: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Opinion:
        return Opinion(self.classes[rows], self.confidence[rows], self.agreement[rows])


@dataclass(frozen=True)
class Labelling:
    """How rows are chosen and labelled.

    Attributes:
        select: ``threshold`` takes the rows whose confidence is at least ``threshold``; ``quantile`` of each class the
            ``share`` of its rows that is the surest (Zou et al. 2018, class-balanced self-training); ``prior`` so many
            of each class that ``share`` of those that may be have the class shares of training, or all there are;
            ``all`` takes every row.
        agreement: the least share of members that must say the label by themselves, whatever ``select`` says.
        labels: ``hard`` for the likeliest class, ``soft`` for the probabilities.
        max_drift: by how much a class's share among the labels may differ from its share among the training rows, in
            either direction; none for any.
    """

    select: Literal["threshold", "quantile", "prior", "all"] = "threshold"
    threshold: float = 0.99
    share: float = 0.5
    agreement: float = 0.0
    labels: Literal["hard", "soft"] = "hard"
    max_drift: float | None = 0.05


def opinion(probabilities: np.ndarray, member_probabilities: np.ndarray) -> Opinion:
    """What is said of each row, and how many of those who vote would say it alone.

    Args:
        probabilities: ``(rows, classes)`` float32, the ensemble's.
        member_probabilities: ``(members, rows, classes)`` float32, those of the members that have a vote.

    Raises:
        ValueError: where shapes disagree.
    """
    if member_probabilities.shape[1:] != probabilities.shape:
        got = f"{member_probabilities.shape} and {probabilities.shape}"
        rule = "have the ensemble's rows and classes"
        raise ValueError(str(Fault("the members' probabilities", rule, got, "give both for the same rows")))
    best = probabilities.argmax(axis=1)
    agreeing = (member_probabilities.argmax(axis=2) == best).mean(axis=0, dtype=np.float32)
    return Opinion(best, probabilities[np.arange(len(best)), best], agreeing)


def choose(said: Opinion, labelling: Labelling, *, prior: np.ndarray, able: np.ndarray) -> np.ndarray:
    """The rows that get a pseudo-label, ``(chosen,)`` int64 in ascending order.

    Args:
        prior: ``(classes,)``, the classes' shares among the training rows.
        able: ``(rows,)`` bool, whether a row may be chosen; the others count for no share.
    """
    candidates = np.flatnonzero(able & (said.agreement >= labelling.agreement - _ROUNDING))
    chosen = _SELECT[labelling.select](said[candidates], labelling, prior)
    return np.sort(candidates[chosen])


def _at_threshold(said: Opinion, labelling: Labelling, prior: np.ndarray) -> np.ndarray:
    return np.flatnonzero(said.confidence.astype(np.float64) >= labelling.threshold - _ROUNDING)


def _quantiles(said: Opinion, labelling: Labelling, prior: np.ndarray) -> np.ndarray:
    there = np.bincount(said.classes, minlength=len(prior))
    return _surest(said, np.ceil(there * labelling.share - _ROUNDING))


def _like_training(said: Opinion, labelling: Labelling, prior: np.ndarray) -> np.ndarray:
    return _surest(said, np.rint(prior * labelling.share * len(said.classes)))


def _every(said: Opinion, labelling: Labelling, prior: np.ndarray) -> np.ndarray:
    return np.arange(len(said.classes))


_SELECT: Mapping[str, Callable[[Opinion, Labelling, np.ndarray], np.ndarray]] = {
    "threshold": _at_threshold,
    "quantile": _quantiles,
    "prior": _like_training,
    "all": _every,
}


def _surest(said: Opinion, counts: np.ndarray) -> np.ndarray:
    """Of each class its surest rows, as many as ``counts`` says or as there are; of equals the first."""
    order = np.lexsort((-said.confidence, said.classes))
    classes = said.classes[order]
    place = np.arange(len(order)) - np.searchsorted(classes, classes)  # in its class, from 0
    return order[place < counts[classes]]


def drift(shares: np.ndarray, prior: np.ndarray) -> tuple[float, int]:
    """The largest difference of a class's share from its share among the training rows, and whose it is.

    Args:
        shares: ``(classes,)``, the classes' shares among the pseudo-labels.
        prior: ``(classes,)``.
    """
    apart = shares - prior
    worst = int(np.abs(apart).argmax())
    return float(apart[worst]), worst


def precision(
    said: Opinion, labels: np.ndarray, *, like: Opinion, least_agreement: float, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """How often labels like those that were given are right, counted on labelled rows.

    A labelled row counts for the class that is said of it, where it has the agreement that is asked for and is at least
    as sure as the least sure row that was chosen for the class.

    Args:
        said: what is said of labelled rows by an ensemble that was not fitted to them.
        labels: ``(rows,)`` their class indices.
        like: what is said of the rows that were chosen.

    Returns:
        ``(classes,)`` int64: rows that count, and those of them that are right.
    """
    lowest = np.full(classes, np.inf)
    np.minimum.at(lowest, like.classes, like.confidence)
    counted = (said.confidence >= lowest[said.classes] - _ROUNDING) & (said.agreement >= least_agreement - _ROUNDING)
    right = counted & (said.classes == labels)
    judged, hits = (np.bincount(said.classes[which], minlength=classes) for which in (counted, right))
    return judged, hits
