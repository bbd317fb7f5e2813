"""Who may vote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.errors import Fault

_ROUNDING = 1e-9  # scores that are equal but for their last digits are equal


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the ``k`` highest scores, best first.

    Args:
        scores: ``(members,)``. Of equal scores the one with the lower index comes first; NaN is never chosen.
        k: at least 1.

    Returns:
        ``(at most k,)`` int64: fewer where there are fewer scores.

    Raises:
        ValueError: where ``k`` is below 1.
    """
    if k < 1:
        raise ValueError(str(Fault("the number of members", "be at least 1", str(k), "ask for one or more")))
    scores = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-scores, kind="stable")
    return order[~np.isnan(scores[order])][:k]


@dataclass(frozen=True)
class Selection:
    """Who votes, out of all who could.

    Attributes:
        top: at most so many, the best; none for no limit.
        within: only who scores at most so much less than the best; none for no such rule.
        diversity: who differs by less than this from a better one that votes is passed over as its near-copy; 0 passes
            over nobody. Classes differ by the share of rows in which they are not the same, values by 1 less their
            correlation.
    """

    top: int | None = None
    within: float | None = None
    diversity: float = 0.0

    def choose(self, scores: np.ndarray, decided: np.ndarray) -> np.ndarray:
        """Indices of those who vote, best first, ``(voters,)`` int64.

        Args:
            scores: ``(members,)``; NaN is never chosen.
            decided: ``(members, rows)``, the classes (integers) or the values (floats) that each would say.
        """
        order = top(scores, max(len(scores), 1))
        if self.within is not None and len(order):
            order = order[scores[order] >= scores[order[0]] - self.within - _ROUNDING]
        kept: list[int] = []
        for index in order:
            if self.top is not None and len(kept) == self.top:
                break
            if all(difference(decided[index], decided[other]) >= self.diversity for other in kept):
                kept.append(int(index))
        return np.array(kept, dtype=np.int64)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """How much two members differ: 0 where they say the same. See ``Selection.diversity``."""
    if np.issubdtype(one.dtype, np.integer):
        return float((one != other).mean()) if len(one) else 0.0
    if len(one) < 2 or not (np.ptp(one) and np.ptp(other)):
        return 0.0
    return 1 - float(np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1])
