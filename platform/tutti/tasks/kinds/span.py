"""At most one span of each row, such as the answer to a question in a text: the best one, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tutti.tasks.kinds.entities import ABSENT, Entities, entities_of, types_of
from tutti.tasks.kinds.protocol import Tuner
from tutti.tasks.kinds.tokens import Tokens

_LEAST = 1e-7  # probability, so that logarithms are finite
_OF_OVERLAP = {  # the score of a row by the units that two spans share, and their own
    "token_row_f1": lambda shared, true, found: 2 * shared / np.maximum(true + found, 1),
    "token_jaccard": lambda shared, true, found: shared / np.maximum(true + found - shared, 1),
    "entity_exact_match": lambda shared, true, found: (shared == true) & (shared == found),
}


class Span(Tokens):
    """Labels and outputs as of entities; decisions have one span in each row, or none.

    It is the likeliest span by the product of its tags' probabilities, each relative to that of O. Below a least
    logarithm of this product, the parameter, a row has none; without the parameter below 0, where none is likelier.
    """

    name: ClassVar[str] = "span"
    spans: ClassVar[str] = "one"
    tuned_alone: ClassVar[bool] = True

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        return f"at most one span of {', '.join(types_of(names)) if most else len(types_of(names))} in each row"

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        if not outputs.shape[-2]:  # rows without a word
            return np.empty(outputs.shape[:-1], dtype=np.int16)
        flat = outputs.reshape(-1, *outputs.shape[-2:])
        score, found = best_spans(flat)
        given = score > (0 if decision is None else decision[0])
        tags = np.where(np.isnan(flat[..., 0]), ABSENT, 0).astype(np.int16)
        units = np.arange(tags.shape[1])
        inside = given[:, None] & (units >= found.start[:, None]) & (units < found.end[:, None])
        first = units == found.start[:, None]
        return np.where(inside, 2 * found.type[:, None] + 2 - first, tags).astype(np.int16).reshape(outputs.shape[:-1])

    def tuner(self, metric: str) -> Tuner | None:
        """Of metrics that are a mean over rows."""
        return partial(_tuned, metric=metric) if metric in _OF_OVERLAP else None

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        return {"no span": float(decision[0])}

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        least = 0 if decision is None else decision[0]
        if np.isneginf(least):
            return "the likeliest span, always one"
        return f"the likeliest span, or none below {least:.3g}, the logarithm of how much likelier it is than none"

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        """The tags of each row, as JSON: ``piece_of`` makes a piece of the text of them."""
        return self.cells(decided, names)


def best_spans(probabilities: np.ndarray) -> tuple[np.ndarray, Entities]:
    """``(rows,)`` float64, how much likelier the likeliest span of each row is than none (a logarithm), and the spans.

    Args:
        probabilities: ``(rows, units, tags)``, NaN for units that a row does not have.
    """
    rows, units, _ = probabilities.shape
    if not units:  # rows without a word
        return np.full(rows, -np.inf), Entities(np.arange(rows), *(np.zeros(rows, dtype=np.int64) for _ in range(3)))
    logs = np.log(np.maximum(np.nan_to_num(probabilities, nan=1.0), _LEAST).astype(np.float64))
    above = np.where(np.isnan(probabilities[..., :1]), -np.inf, logs[..., 1:] - logs[..., :1])
    begun, inner = above[..., 0::2], above[..., 1::2]  # (rows, units, types)
    score, start = begun[:, 0].copy(), np.zeros(begun[:, 0].shape, dtype=np.int64)
    best, found = score.copy(), np.stack([start, start + 1])
    for unit in range(1, units):
        longer = score + inner[:, unit]
        goes_on = longer > begun[:, unit]
        score = np.where(goes_on, longer, begun[:, unit])
        start = np.where(goes_on, start, unit)
        better = score > best
        best = np.where(better, score, best)
        found = np.where(better, np.stack([start, np.full_like(start, unit + 1)]), found)
    kind, everyone = best.argmax(axis=1), np.arange(rows)
    return best[everyone, kind], Entities(everyone, found[0, everyone, kind], found[1, everyone, kind], kind)


def _tuned(probabilities: np.ndarray, labels: np.ndarray, *, metric: str) -> np.ndarray | None:
    """``(1,)`` float32: the least score of a span with the best mean over rows; none where 0 is as good."""
    score, found = best_spans(probabilities)
    true, rows = entities_of(labels), len(labels)
    start, end, kind = (np.full(rows, -1) for _ in range(3))
    order = slice(None, None, -1)  # of several entities of a row the first one counts
    start[true.row[order]], end[true.row[order]], kind[true.row[order]] = (
        each[order] for each in (true.start, true.end, true.type)
    )
    shared = np.maximum(np.minimum(end, found.end) - np.maximum(start, found.start), 0) * (kind == found.type)
    given = _OF_OVERLAP[metric](shared, end - start, found.end - found.start).astype(np.float64)
    ranking = np.argsort(-score, kind="stable")
    none = start < 0
    totals = np.append(0.0, np.cumsum((given - none)[ranking]))
    ranked = score[ranking]
    apart = np.append(True, np.append(ranked[1:] < ranked[:-1], True))  # equal scores have equal decisions
    totals = np.where(apart, totals, -np.inf)
    count = rows - int(totals[::-1].argmax())  # of equal ones that with most spans
    if totals[(score > 0).sum()] >= totals[count] - 1e-9:
        return None
    if count == rows:
        return np.array([-np.inf], dtype=np.float32)
    above = ranked[count - 1] if count else ranked[0] + 1
    return np.array([(above + ranked[count]) / 2], dtype=np.float32)
