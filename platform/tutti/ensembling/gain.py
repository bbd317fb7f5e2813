"""What one more member adds to an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tutti.ensembling.select import top

MOST = 50
"""Maximum number of other members considered, best first; more take long and change little."""
VOTES = 5
"""Votes per ensemble, as in the recipe ``baseline``; a member may have several. More would hide a bad newcomer."""


def gain(others: Sequence[np.ndarray], newcomer: np.ndarray, *, score: Callable[[np.ndarray], float]) -> float:
    """The best ensemble score with the newcomer minus the best one without it.

    Both ensembles are grown by forward selection with replacement on the score itself (Caruana et al. 2004, Ensemble
    selection from libraries of models), one from the best other member, one from the newcomer. Each step adds the
    member with the best score of the plain mean; the best of these means counts. A weak newcomer gains if it corrects
    errors of the others, a near-copy gains 0, and a harmful one less than 0. Without others the gain is 0, as a score
    does not compare with later gains.

    Args:
        others: ``(rows, classes)`` float32 probabilities, or ``(rows,)`` float32 values, of each other member.
        newcomer: the same of the newcomer.
        score: score of such a mean; higher is better.
    """
    if not others:
        return 0.0
    scores = np.array([score(other) for other in others])
    best = top(scores, MOST)
    candidates = [others[index] for index in best]
    without = _best_score(candidates, candidates[0], scores[best[0]], score)
    return _best_score([*candidates, newcomer], newcomer, score(newcomer), score) - without


def _best_score(
    candidates: Sequence[np.ndarray], start: np.ndarray, start_score: float, score: Callable[[np.ndarray], float]
) -> float:
    """The best score that forward selection reaches from the member ``start``."""
    total, best = start.copy(), start_score
    for count in range(2, VOTES + 1):
        scores = [score((total + candidate) / np.float32(count)) for candidate in candidates]
        pick = int(np.argmax(scores))
        best = max(best, scores[pick])
        total += candidates[pick]
    return float(best)
