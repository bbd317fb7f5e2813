"""Metrics of tags, by the entities that they mark.

Labels and predictions are ``(rows, units)`` of tags as in ``tutti.tasks.kinds.entities``. Units whose label is not
known, below 0, do not count. Both rules of seqeval, the default and the strict one, give the same here, since labels
are repaired and decisions are tags of which each entity begins with B.
"""

from __future__ import annotations

import numpy as np

from tutti.tasks.kinds.entities import entities_of


def entity_f_score(labels: np.ndarray, tags: np.ndarray, *, outputs: int, beta: float, average: str) -> float:
    """F-beta of entities, of which place and type must be right.

    Args:
        average: ``micro``, of all entities together, or ``macro``, the mean over types that occur in either.
    """
    return of_entities(entity_counts(labels, tags, outputs=outputs).sum(axis=0), beta=beta, average=average)


def entity_counts(labels: np.ndarray, tags: np.ndarray, *, outputs: int) -> np.ndarray:
    """``(rows, 3, types)`` int64: the entities of each row that are right, that were found, and that there are."""
    true, found = entities_of(labels), entities_of(np.where(labels < 0, 0, tags))
    counts = np.zeros((len(labels), 3, outputs // 2), dtype=np.int64)
    right = np.isin(found.keys, true.keys)
    np.add.at(counts[:, 0], (found.row[right], found.type[right]), 1)
    np.add.at(counts[:, 1], (found.row, found.type), 1)
    np.add.at(counts[:, 2], (true.row, true.type), 1)
    return counts


def of_entities(counts: np.ndarray, *, beta: float, average: str) -> float:
    """``entity_f_score`` by the sum of ``entity_counts``, ``(3, types)``."""
    right, found, true = counts
    return _averaged(right, found, true, beta, average)


OF_ROWS = {"entity_f_score": (entity_counts, of_entities)}
"""Of metrics that sums over rows determine: what is summed, and the score of the sum. Resamples are then sums too."""


def tag_f_score(labels: np.ndarray, tags: np.ndarray, *, outputs: int, beta: float) -> float:
    """F-beta of all tags other than O together, unit by unit, as some competitions on personal data count."""
    known = labels >= 0
    right = ((labels == tags) & (labels > 0)).sum()
    return _averaged(right, (tags[known] > 0).sum(), (labels > 0).sum(), beta, "micro")


def token_f_score(labels: np.ndarray, tags: np.ndarray, *, outputs: int, beta: float) -> float:
    """F-beta of units by their types, whichever tag of its type each has; of characters that of marked characters."""
    true, found = _types(labels), np.where(labels < 0, 0, _types(tags))
    return _averaged(((true == found) & (true > 0)).sum(), (found > 0).sum(), (true > 0).sum(), beta, "micro")


def token_jaccard(labels: np.ndarray, tags: np.ndarray, *, outputs: int) -> float:
    """The mean over rows of the marked units that both share of those that either marks (Jaccard); 1 for none."""
    true, found = _types(labels), np.where(labels < 0, 0, _types(tags))
    shared, either = ((true == found) & (true > 0)).sum(axis=1), ((true > 0) | (found > 0)).sum(axis=1)
    return float(np.where(either > 0, shared / np.maximum(either, 1), 1.0).mean()) if len(labels) else float("nan")


def token_row_f1(labels: np.ndarray, tags: np.ndarray, *, outputs: int) -> float:
    """The mean over rows of the F1 of marked units, as that of answers to questions; 1 where neither marks any."""
    true, found = _types(labels), np.where(labels < 0, 0, _types(tags))
    shared, both = ((true == found) & (true > 0)).sum(axis=1), (true > 0).sum(axis=1) + (found > 0).sum(axis=1)
    return float(np.where(both > 0, 2 * shared / np.maximum(both, 1), 1.0).mean()) if len(labels) else float("nan")


def entity_exact_match(labels: np.ndarray, tags: np.ndarray, *, outputs: int) -> float:
    """The share of rows whose entities are all right, and which have no others."""
    right, found, true = entity_counts(labels, tags, outputs=outputs).sum(axis=2).T
    return float(((right == found) & (right == true)).mean()) if len(labels) else float("nan")


def tag_accuracy(labels: np.ndarray, tags: np.ndarray, *, outputs: int) -> float:
    """The share of units with the right tag."""
    known = labels >= 0
    return float((labels == tags)[known].mean()) if known.any() else float("nan")


def tag_macro_f1(labels: np.ndarray, tags: np.ndarray, *, outputs: int) -> float:
    """The mean over tags of their F1, of those that labels or predictions have."""
    known = labels >= 0
    true, found = labels[known], tags[known].astype(np.int64)
    counts = [np.bincount(each, minlength=outputs) for each in (true[true == found], found, true)]
    return _averaged(counts[0], counts[1], counts[2], 1, "macro")


def _types(tags: np.ndarray) -> np.ndarray:
    return np.where(tags > 0, (tags + 1) // 2, 0)


def _averaged(right: np.ndarray, found: np.ndarray, true: np.ndarray, beta: float, average: str) -> float:
    if average == "micro":
        right, found, true = (np.sum(each, keepdims=True).ravel() for each in (right, found, true))
    below = beta**2 * true + found
    scores = (1 + beta**2) * right[below > 0] / below[below > 0]
    return float(scores.mean()) if len(scores) else 0.0
