"""Selects the members of an ensemble."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutti.tasks.kinds.protocol import Kind

ROUNDING = 1e-9  # scores that differ by less are equal


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the ``k`` highest scores, best first.

    Args:
        scores: ``(members,)``. Ties go to the lower index; NaN is never chosen.

    Returns:
        ``(at most k,)`` int64: fewer if there are fewer scores.
    """
    scores = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-scores, kind="stable")
    return order[~np.isnan(scores[order])][:k]


@dataclass(frozen=True)
class Selection:
    """The rule that selects voters from the candidates.

    Attributes:
        top: maximum number of voters, best first; none for no limit.
        within: maximum distance to the best score; none for no limit.
        diversity: a candidate that differs by less than this from a better voter is skipped as a near-copy; 0 skips
            nobody. See ``Kind.difference``.
    """

    top: int | None = None
    within: float | None = None
    diversity: float = 0.0

    def choose(self, scores: np.ndarray, decisions: np.ndarray, kind: Kind) -> np.ndarray:
        """Indices of the voters, best first, ``(voters,)`` int64.

        Args:
            scores: ``(members,)``; NaN is never chosen.
            decisions: ``(members, rows, ...)``, each member's own, as ``kind`` decides.
        """
        order = top(scores, len(scores))
        if self.within is not None and len(order):
            order = order[scores[order] >= scores[order[0]] - self.within - ROUNDING]
        voters: list[int] = []
        for index in order:
            if self.top is not None and len(voters) == self.top:
                break
            if all(kind.difference(decisions[index], decisions[voter]) >= self.diversity for voter in voters):
                voters.append(int(index))
        return np.array(voters, dtype=np.int64)
