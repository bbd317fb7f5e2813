"""Entities in tags, whole parts at a time: tag 0 is O, and of each type there is B (odd), which begins one, and I."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

OUTSIDE = "O"
ABSENT, UNKNOWN = -1, -2
"""In place of tags: of units that a row does not have, and of units whose tag is not known."""

_LEAST = 1e-7  # probability, so that logarithms are finite


@dataclass(frozen=True, eq=False)
class Entities:
    """Entities of ``(rows, units)`` tags, in the order of rows and units.

    Attributes:
        row, start, end, type: ``(entities,)`` int64; ``end`` is the unit after the last one.
    """

    row: np.ndarray
    start: np.ndarray
    end: np.ndarray
    type: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    @property
    def keys(self) -> np.ndarray:
        """``(entities,)`` int64: equal for entities of equal places and types, of tags of the same shape."""
        return ((self.row * 2**20 + self.start) * 2**12 + np.minimum(self.end - self.start, 2**12 - 1)) * 2**9 + (
            self.type
        )


def types_of(names: Sequence[str]) -> tuple[str, ...]:
    """The types of entities, by the names of tags."""
    return tuple(name.removeprefix("B-") for name in names[1::2])


def tag_names(types: Sequence[str]) -> tuple[str, ...]:
    """The names of tags, by types of entities."""
    return OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI")


def entities_of(tags: np.ndarray) -> Entities:
    """The entities of ``(rows, units)`` tags. An I that follows no tag of its type begins one, as seqeval has it."""
    types = np.where(tags > 0, (tags + 1) // 2, 0)  # 0 outside
    before, after = _shifted(types, 1), _shifted(types, -1)
    begins = (types > 0) & ((tags % 2 == 1) | (before != types))
    ends = (types > 0) & ((after != types) | (_shifted(tags, -1) % 2 == 1))
    row, start = begins.nonzero()
    return Entities(row, start, ends.nonzero()[1] + 1, types[begins] - 1)


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    """What stands one unit before (1) or after (-1) each; 0 beyond the ends."""
    shifted = np.zeros_like(values)
    if by == 1:
        shifted[..., 1:] = values[..., :-1]
    else:
        shifted[..., :-1] = values[..., 1:]
    return shifted


def repaired(tags: np.ndarray) -> np.ndarray:
    """The tags, where each entity begins with B; entities stay as they are."""
    types = np.where(tags > 0, (tags + 1) // 2, 0)
    return np.where((types > 0) & (_shifted(types, 1) != types), 2 * types - 1, tags)


def best_paths(probabilities: np.ndarray, outside: float = 0.0) -> np.ndarray:
    """The likeliest tags ``(rows, units)`` int16 of which each entity begins with B; ``ABSENT`` where units are NaN.

    Most often these are the likeliest tags one by one. Where they are not, it is the path of the highest product of
    probabilities (Viterbi 1967): an I follows a tag of its type alone, so a step takes as many operations as tags.

    Args:
        probabilities: ``(rows, units, tags)``, NaN for units that a row does not have.
        outside: added to the logarithm of O's probability; below 0 more entities are found.
    """
    absent = np.isnan(probabilities[..., 0])
    if outside:
        probabilities = probabilities.copy()
        probabilities[..., 0] *= np.exp(outside)
    best = np.where(absent[..., None], 0, probabilities).argmax(axis=-1).astype(np.int16)
    best[absent] = 0
    wrong = np.flatnonzero((repaired(best) != best).any(axis=1))
    block = max(2**21 // max(probabilities[:1].size, 1), 1)
    for first in range(0, len(wrong), block):
        rows = wrong[first : first + block]
        best[rows] = _viterbi(np.where(absent[rows, :, None], 1, probabilities[rows]))
    best[absent] = ABSENT
    return best


def _viterbi(probabilities: np.ndarray) -> np.ndarray:
    rows, units, tags = probabilities.shape
    scores = np.log(np.maximum(probabilities, _LEAST)).transpose(1, 0, 2)
    before = np.empty((units, rows, tags), dtype=np.int16)
    inner, everyone = np.arange(2, tags, 2), np.arange(rows)
    total = scores[0].copy()
    total[:, inner] = -np.inf
    for unit in range(1, units):
        likeliest = total.argmax(axis=1)
        before[unit] = likeliest[:, None]
        following = scores[unit] + total[everyone, likeliest][:, None]
        begun, gone_on = total[:, inner - 1], total[:, inner]
        before[unit][:, inner] = np.where(begun >= gone_on, inner - 1, inner)
        following[:, inner] = scores[unit][:, inner] + np.maximum(begun, gone_on)
        total = following
    path = np.empty((rows, units), dtype=np.int16)
    path[:, -1] = total.argmax(axis=1)
    for unit in range(units - 1, 0, -1):
        path[:, unit - 1] = before[unit][everyone, path[:, unit]]
    return path


def sureness(probabilities: np.ndarray, found: Entities) -> np.ndarray:
    """``(entities,)`` float64: the mean over an entity's units of the probability of its type.

    Args:
        probabilities: ``(rows, units, tags)``.
    """
    if not len(found):
        return np.zeros(0)
    lengths = found.end - found.start
    entity = np.repeat(np.arange(len(found)), lengths)
    unit = found.start[entity] + np.arange(len(entity)) - np.repeat(lengths.cumsum() - lengths, lengths)
    row, tag = found.row[entity], 2 * found.type[entity] + 1
    of_type = probabilities[row, unit, tag] + probabilities[row, unit, tag + 1].astype(np.float64)
    return np.bincount(entity, weights=of_type, minlength=len(found)) / lengths


def sure_parts(probabilities: np.ndarray, tags: np.ndarray, threshold: float, *, marks: bool) -> np.ndarray:
    """The tags of units that are sure enough, ``UNKNOWN`` in place of the others.

    Of entities their ``sureness`` counts, and all units of one are kept or none.

    Args:
        probabilities: ``(rows, units, tags)``.
        marks: whether tags mark spans.
    """
    own = np.take_along_axis(probabilities, np.maximum(tags, 0)[..., None].astype(np.int64), axis=2)[..., 0]
    unsure = (own < threshold) & (tags >= 0)
    if marks:
        found = entities_of(tags)
        in_unsure = without(tags, found, sureness(probabilities, found) >= threshold) > 0
        unsure = np.where(tags > 0, in_unsure, unsure)
    return np.where(unsure, UNKNOWN, tags).astype(tags.dtype)


def without(tags: np.ndarray, found: Entities, unsure: np.ndarray) -> np.ndarray:
    """The tags, with O in place of some entities.

    Args:
        found: the entities of the tags.
        unsure: ``(entities,)`` bool, which of them go.
    """
    changes = np.zeros((len(tags), tags.shape[1] + 1), dtype=np.int16)
    np.add.at(changes, (found.row[unsure], found.start[unsure]), 1)
    np.add.at(changes, (found.row[unsure], found.end[unsure]), -1)
    return np.where(changes.cumsum(axis=1)[:, :-1] > 0, np.int16(0), tags)
