"""Who may vote."""

from __future__ import annotations

import numpy as np

from tutti.errors import Fault


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
