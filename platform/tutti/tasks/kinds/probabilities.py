"""What all kinds with probabilities share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tutti.tasks.kinds.protocol import Kind

_SHOWN = 5  # numbers in a cell of a table
_BLOCK = 2**15  # numbers, 256 KiB
LEAST_PROBABILITY = 1e-7
"""Probabilities are clipped here, so that logarithms are finite and one wrong row does not dominate a loss."""


def log_probabilities(probabilities: np.ndarray) -> np.ndarray:
    """Clipped logarithms in the input's shape, float64; computed in the input's precision."""
    return np.log(np.maximum(probabilities, LEAST_PROBABILITY)).astype(np.float64)


def softmax(logs: np.ndarray) -> np.ndarray:
    """``(rows, alternatives)`` float64 of rows that sum to 1, in proportion to the exponentials."""
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def in_blocks(logs: np.ndarray) -> list[np.ndarray]:
    """The rows of ``(rows, classes)`` in blocks that stay in a core's cache while a step passes over them."""
    length = max(_BLOCK // max(logs.shape[1], 1), 1)
    return [logs[start : start + length] for start in range(0, len(logs), length)]


def known(kind: Kind, labels: np.ndarray) -> np.ndarray:
    """Whether what rows have is known, bool: ``(rows, 1)`` for classes and tags, ``(rows, k)`` for several labels."""
    if kind.sequential:
        return np.ones((len(labels), 1), dtype=bool)
    return kind.truths(labels).reshape(len(labels), -1) >= 0


def divergence(votes: np.ndarray) -> np.ndarray:
    """How much members' distributions differ, ``(members, units, alternatives)`` to ``(units,)`` float64.

    It is the Jensen-Shannon divergence (Lin 1991) in nats: the entropy of the mean minus the mean entropy.
    """
    from scipy.special import entr  # slow to import

    votes = votes.astype(np.float64)
    of_mean, of_members = entr(votes.mean(axis=0)).sum(axis=-1), entr(votes).sum(axis=-1)
    return np.maximum(of_mean - of_members.mean(axis=0), 0.0)


def probability_fault(probabilities: np.ndarray) -> tuple[str, str] | None:
    """What makes numbers no probabilities, as of ``Kind.fault``."""
    if not np.isfinite(probabilities).all():
        return "have probabilities that are numbers", "NaN or infinity"
    if (probabilities < 0).any() or (probabilities > 1 + 1e-3).any():
        worst = probabilities.min() if (probabilities < 0).any() else probabilities.max()
        return "have probabilities from 0 to 1", f"{worst:g}"
    return None


def few_numbers(numbers: Mapping[str, float]) -> str:
    """The first few numbers with their names, and how many more there are."""
    listed = [f"{name} {value:.3g}" for name, value in numbers.items()]
    more = [f"and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    return ", ".join([*listed[:_SHOWN], *more])
