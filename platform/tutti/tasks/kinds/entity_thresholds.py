"""Decisions on entities: how much less than its probability O counts, and how sure each type has to be."""

from __future__ import annotations

import numpy as np

from tutti.tasks.kinds.entities import Entities, best_paths, entities_of, sureness, without

_OUTSIDE = (0.0, -0.7, -1.4, -2.1, -3.0)  # added to the logarithm of O's probability
_ROUNDS = 3  # over all types


def tune_entities(probabilities: np.ndarray, labels: np.ndarray, *, beta: float, macro: bool) -> np.ndarray | None:
    """``(1 + types,)`` float32 of the best F-beta on these rows: what is added to the logarithm of O's probability, and
    the least ``sureness`` of each type's entities; none where no parameters are as good.

    A threshold lies halfway between the last entity that it keeps and the next one, so that it does not hang on a
    single row's probability. Types are tuned in turn, each with the others as they are.

    Args:
        probabilities: ``(rows, units, tags)``.
        labels: ``(rows, units)``.
        macro: whether F-beta is the mean over types; otherwise it is of all entities together.
    """
    types = (probabilities.shape[-1] - 1) // 2
    true = entities_of(labels)
    unknown = labels < 0
    totals = np.bincount(true.type, minlength=types)
    best, found = None, -1.0
    for outside in _OUTSIDE:
        tags = best_paths(probabilities, outside)
        tags[unknown] = np.minimum(tags[unknown], 0)
        of_tags = entities_of(tags)
        thresholds, score = _thresholds(of_tags, sureness(probabilities, of_tags), true, totals, beta, macro)
        plain = outside == 0 and score <= _score(*_counts(of_tags, true, types), totals, beta, macro) + 1e-12
        if score > found + 1e-9:
            best, found = None if plain else np.array([outside, *thresholds], dtype=np.float32), score
    if best is None or not unknown.any():
        return best
    # Thresholds were found for entities without their units of unknown tags, and are applied to whole ones.
    plain_tags = best_paths(probabilities)
    tags = best_paths(probabilities, float(best[0]))
    of_tags = entities_of(tags)
    tags = without(tags, of_tags, sureness(probabilities, of_tags) < best[1:][of_tags.type])
    scores = []
    for each in (tags, plain_tags):
        masked = entities_of(np.where(unknown, np.minimum(each, 0), each))
        scores.append(_score(*_counts(masked, true, types), totals, beta, macro))
    return best if scores[0] > scores[1] else None


def _counts(found: Entities, true: Entities, types: int) -> tuple[np.ndarray, np.ndarray]:
    right = np.isin(found.keys, true.keys)
    return np.bincount(found.type[right], minlength=types), np.bincount(found.type, minlength=types)


def _thresholds(
    found: Entities, sure: np.ndarray, true: Entities, totals: np.ndarray, beta: float, macro: bool
) -> tuple[np.ndarray, float]:
    types = len(totals)
    right = np.isin(found.keys, true.keys)
    by_type = []
    for number in range(types):
        own = found.type == number
        order = np.argsort(-sure[own], kind="stable")
        hits = np.append(0, right[own][order].cumsum())
        by_type.append((sure[own][order], hits))
    kept = np.array([len(own) for own, _ in by_type])
    for _ in range(1 if macro else _ROUNDS):
        for number, (_, hits) in enumerate(by_type):
            if not len(hits) - 1:
                continue
            others = np.arange(types) != number
            rights = sum(by_type[other][1][kept[other]] for other in np.flatnonzero(others)) if not macro else 0
            count = kept[others].sum() if not macro else 0
            total = totals.sum() if not macro else totals[number]
            scores = _f(hits + rights, np.arange(len(hits)) + count, total, beta)
            kept[number] = len(scores) - 1 - int(scores[::-1].argmax())  # of equal ones that with most entities
    thresholds = np.zeros(types)
    for number, (own, _) in enumerate(by_type):
        count = int(kept[number])
        if count < len(own):
            above = own[count - 1] if count else 1.0
            thresholds[number] = (above + own[count]) / 2
    rights = np.array([hits[count] for (_, hits), count in zip(by_type, kept, strict=True)])
    return thresholds, _score(rights, kept, totals, beta, macro)


def _score(right: np.ndarray, found: np.ndarray, totals: np.ndarray, beta: float, macro: bool) -> float:
    if not macro:
        return float(_f(right.sum(), found.sum(), totals.sum(), beta))
    present = (found > 0) | (totals > 0)
    return float(_f(right, found, totals, beta)[present].mean()) if present.any() else 0.0


def _f(right: np.ndarray, found: np.ndarray, total: np.ndarray, beta: float) -> np.ndarray:
    """F-beta by numbers of entities; 0 where there are none."""
    below = beta**2 * np.asarray(total, dtype=np.float64) + found
    return np.divide((1 + beta**2) * right, below, out=np.zeros(np.broadcast(right, below).shape), where=below > 0)
