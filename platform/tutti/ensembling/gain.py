"""What one more member adds to an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tutti.ensembling.select import top

MOST = 50
"""Others that are looked at, the best first: with those behind them it would take long and change little."""
VOTES = 5
"""Of an ensemble, as in the recipe ``baseline``; a member may have several. With more, a bad newcomer is not heard."""


def gain(others: Sequence[np.ndarray], newcomer: np.ndarray, *, score: Callable[[np.ndarray], float]) -> float:
    """How much better the best ensemble with the newcomer scores than the best one without it.

    Both are grown by forward selection with replacement (Caruana et al. 2004, Ensemble selection from libraries of
    models) on the score itself: the one without from the best member, the one with from the newcomer. To these, one by
    one, those are added with whom the plain mean scores best, and the best of these means counts. A newcomer that is
    weak but wrong about other rows is thus worth what it mends, a near-copy of a member nothing, and one that harms
    however little it is heard less than nothing. Without any others it is worth its own score.

    Args:
        others: of each ``(rows, classes)`` float32 probabilities, or ``(rows,)`` float32 values.
        newcomer: the same.
        score: of such a mean; higher is better.
    """
    alone = score(newcomer)
    if not others:
        return alone
    scores = np.array([score(other) for other in others])
    best = top(scores, MOST)
    voters = [others[index] for index in best]
    without = _grown(voters, voters[0], scores[best[0]], score)
    return _grown([*voters, newcomer], newcomer, alone, score) - without


def _grown(
    voters: Sequence[np.ndarray], start: np.ndarray, reached: float, score: Callable[[np.ndarray], float]
) -> float:
    """The best score that forward selection comes to from its first member, whose own is ``reached``."""
    total = start.copy()
    for count in range(2, VOTES + 1):
        found = [score((total + voter) / np.float32(count)) for voter in voters]
        pick = int(np.argmax(found))
        reached = max(reached, found[pick])
        total += voters[pick]
    return float(reached)
