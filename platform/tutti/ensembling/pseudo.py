"""Which unlabelled rows an ensemble is sure of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.errors import Fault

_ROUNDING = 1e-6  # a few float32 steps near 1: a mean of members that all say 0.99 counts as 0.99


@dataclass(frozen=True, eq=False)
class Confident:
    """The rows that reached the threshold, in the order they were given.

    Attributes:
        rows: ``(chosen,)`` int64 indices of rows.
        classes: ``(chosen,)`` int64, the class of highest probability (of equals the first).
        confidence: ``(chosen,)`` float32, that probability.
        agreeing: ``(chosen,)`` int64, how many members give that class the highest probability.
    """

    rows: np.ndarray
    classes: np.ndarray
    confidence: np.ndarray
    agreeing: np.ndarray


def confident(probabilities: np.ndarray, member_probabilities: np.ndarray, threshold: float) -> Confident:
    """Rows whose highest probability is at least ``threshold``, give or take float32 rounding.

    Args:
        probabilities: ``(rows, classes)`` float32, the ensemble's.
        member_probabilities: ``(members, rows, classes)`` float32, those of the members that have a vote.
        threshold: above 0, at most 1; a row that just reaches it is chosen.

    Raises:
        ValueError: where shapes disagree or the threshold lies outside its range.
    """
    if member_probabilities.shape[1:] != probabilities.shape:
        got = f"{member_probabilities.shape} and {probabilities.shape}"
        rule = "have the ensemble's rows and classes"
        raise ValueError(str(Fault("the members' probabilities", rule, got, "give both for the same rows")))
    if not 0 < threshold <= 1:
        fault = Fault("the threshold", "be above 0 and at most 1", str(threshold), "give a share such as 0.99")
        raise ValueError(str(fault))
    best = probabilities.argmax(axis=1)
    confidence = probabilities[np.arange(len(best)), best]
    rows = np.flatnonzero(confidence.astype(np.float64) >= threshold - _ROUNDING)
    votes = member_probabilities[:, rows].argmax(axis=2)
    return Confident(rows, best[rows], confidence[rows], (votes == best[rows]).sum(axis=0))
