"""Where members do not agree: the rows worth a look, for a wrong label or a hard text."""

from __future__ import annotations

import numpy as np

_LEAST = 1e-12


def disagreement(votes: np.ndarray) -> np.ndarray:
    """How much the members disagree on each row, ``(rows,)`` float64; 0 where they say the same.

    Of probabilities the Jensen-Shannon divergence (Lin 1991) in nats: the entropy of the mean less the mean entropy. Of
    values the standard deviation.

    Args:
        votes: ``(members, rows, classes)`` probabilities, or ``(members, rows)`` values.
    """
    votes = votes.astype(np.float64)
    if votes.ndim == 2:
        return votes.std(axis=0)
    return np.maximum(_entropy(votes.mean(axis=0)) - _entropy(votes).mean(axis=0), 0.0)


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    return -(probabilities * np.log(np.maximum(probabilities, _LEAST))).sum(axis=-1)
