"""Tags as labels: each word or character of a row has one, and together they mark entities."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.classes import ordered_classes
from tutti.tasks.kinds.entities import (
    ABSENT,
    OUTSIDE,
    UNKNOWN,
    best_paths,
    entities_of,
    repaired,
    sureness,
    tag_names,
    types_of,
    without,
)
from tutti.tasks.kinds.entity_thresholds import tune_entities
from tutti.tasks.kinds.probabilities import divergence, few_numbers, probability_fault
from tutti.tasks.kinds.protocol import Kind, Tuner

_SHOWN = 5  # names in a message


class Tokens(Kind):
    """Labels ``(rows, units)`` of tags, outputs ``(rows, units, tags)`` probabilities that sum to 1.

    A unit is a word or character. Tags are those of ``tutti.tasks.kinds.entities``: O, then B and I of each type. Rows
    have as many units as the longest; the others' labels are ``ABSENT``, and their outputs NaN. Decisions are the
    likeliest tags of which each entity begins with B; their parameters are those of ``tune_entities``.
    """

    name: ClassVar[str] = "tokens"
    probabilistic: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    spans: ClassVar[str] = "many"
    picture: ClassVar[str] = "scores_by_type"

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        tags = {tag for cell in cells for tag in self._tags(cell) if tag is not None} - {OUTSIDE}
        return tag_names(ordered_classes((tag[2:] for tag in tags), order))

    def _tags(self, cell: str) -> Iterable[str | None]:
        """All tags of a row; none for what is not known."""
        tags: list[str | None] = json.loads(cell)
        return tags

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        index: dict[str | None, int] = {None: UNKNOWN, **{name: number for number, name in enumerate(names)}}
        return self._legal(self._padded([[index[tag] for tag in json.loads(cell)] for cell in cells]))

    def _padded(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        labels = np.full((len(rows), max(map(len, rows), default=1)), ABSENT, dtype=np.int32)
        for row, tags in enumerate(rows):
            labels[row, : len(tags)] = tags
        return labels

    def _legal(self, labels: np.ndarray) -> np.ndarray:
        """Labels as decisions are: each entity begins with B."""
        return repaired(labels)

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        if len(names) < 3:
            yield Fault(labels.origin, "mark an entity at least", "no tag but O", "name the column of the tags")
        yield from self._unknown(labels, names)

    def _unknown(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        """A fault for each file beside that of training rows with tags that these do not have."""
        for where, cells in (*([labels.validation] if labels.validation else ()), *labels.extra.items()):
            tags = {tag for cell in cells for tag in self._tags(cell) if tag is not None}
            if others := sorted({tag[2 * bool(self.spans != "none") :] for tag in tags - {*names}}):
                rule, remedy = f"have tags that occur in {labels.origin}", "correct them, or add rows"
                yield Fault(where, rule, ", ".join(map(repr, others[:_SHOWN])), remedy)

    def untrained(self, labels: np.ndarray, names: Sequence[str]) -> list[str]:
        """Types of which training rows have no entity; tags within one may be untaught where all are of one unit."""
        taught = {*entities_of(labels).type.tolist()}
        return [name for number, name in enumerate(types_of(names)) if number not in taught]

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        """Which types a row has."""
        types = np.arange(1, int(labels.max(initial=0)) + 1, 2)
        return np.stack([(labels == tag).any(axis=1) for tag in types], axis=1).astype(np.float32)

    def shape(self, rows: int, outputs: int) -> tuple[int, ...]:
        raise TypeError("the shape of outputs depends on the longest row")

    def fault(self, outputs: np.ndarray, labels: np.ndarray | None, names: Sequence[str]) -> tuple[str, str] | None:
        if outputs.ndim != 3 or outputs.shape[2] != len(names):
            return f"have probabilities of shape (rows, units, {len(names)})", f"shape {outputs.shape}"
        absent = np.isnan(outputs)
        if (absent.any(axis=2) != absent.all(axis=2)).any():
            return "have probabilities that are numbers", "NaN"
        if fault := probability_fault(np.where(absent, 0, outputs)):
            return fault
        if labels is not None and labels.shape != outputs.shape[:2]:
            return f"have labels of shape {outputs.shape[:2]}", f"labels of shape {labels.shape}"
        if labels is not None and ((labels == ABSENT) != absent[..., 0]).any():
            return "have as many tags in each row as labels", "others"
        return None

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        types = types_of(names)
        listed = ", ".join(types[:most]) + ", ..." * (len(types) > most)
        return f"entities of {len(types)} types" + (f" ({listed})" if most else "")

    def guess(self, labels: np.ndarray, outputs: int) -> np.ndarray:
        drawn = np.random.default_rng(0).dirichlet(np.ones(outputs), labels.shape).astype(np.float32)
        drawn[labels == ABSENT] = np.nan
        return drawn

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        if not outputs.shape[-2]:  # rows without a word
            return np.empty(outputs.shape[:-1], dtype=np.int16)
        flat = outputs.reshape(-1, *outputs.shape[-2:])
        tags = best_paths(flat, 0.0 if decision is None else float(decision[0]))
        if decision is not None and decision[1:].any():
            found = entities_of(tags)
            tags = without(tags, found, sureness(flat, found) < decision[1:][found.type])
        return tags.reshape(outputs.shape[:-1])

    def tuner(self, metric: str) -> Tuner | None:
        """Of F-beta of entities; others are right most often at the likeliest tags."""
        average, _, beta = metric.rpartition("_f")
        if average not in ("entity", "entity_macro"):
            return None
        return partial(tune_entities, beta=float(beta), macro=average == "entity_macro")

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        return dict(zip((OUTSIDE, *types_of(names)), decision.tolist(), strict=True))

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        if decision is None:
            return "the likeliest tags"
        least = dict(zip(types_of(names), decision[1:].tolist(), strict=True))
        return f"the likeliest tags with {decision[0]:+.3g} for O, entities from {few_numbers(least)} on"

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        """The tags of each row, with spaces between."""
        return [" ".join(names[tag] for tag in row if tag >= 0) for row in decided.tolist()]

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        spelled = {UNKNOWN: None, **dict(enumerate(names))}
        rows = ([spelled[tag] for tag in row if tag != ABSENT] for row in decided.tolist())
        return [json.dumps(row, ensure_ascii=False) for row in rows]

    def held(self, decided: np.ndarray, outputs: int) -> np.ndarray:
        """Which tags each row has."""
        return np.stack([(decided == tag).any(axis=1) for tag in range(outputs)], axis=1)

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        """Each entity with its units, counted from 1."""
        types, found = types_of(names), entities_of(np.asarray(decided)[None])
        listed = [
            f"{types[kind]} {first + 1}" + (f"-{last}" if last > first + 1 else "")
            for first, last, kind in zip(found.start.tolist(), found.end.tolist(), found.type.tolist(), strict=True)
        ]
        return ", ".join(listed) or "none"

    def wrong(self, decided: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.asarray(((decided != labels) & (labels >= 0)).any(axis=1))

    def loss(self, outputs: np.ndarray, labels: np.ndarray) -> float:
        """The mean over units whose tag is known."""
        row, unit = (labels >= 0).nonzero()
        right = outputs[row, unit, labels[row, unit]].astype(np.float64)
        return float(-np.log(right.clip(min=1e-30)).mean()) if len(right) else 0.0

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        """The share of units with other tags, of those to which one of the two gives any."""
        either = (first > 0) | (second > 0)
        return float((first != second)[either].mean()) if either.any() else 0.0

    def disagreement(self, votes: np.ndarray) -> np.ndarray:
        """The sum over units of the divergence."""
        of_units = divergence(self.distributions(votes)).reshape(votes.shape[1:3])
        return np.asarray(np.nansum(of_units, axis=1))

    def same(self, votes: np.ndarray) -> np.ndarray:
        decided = self.decide(votes)
        return np.asarray((decided == decided[0]).all(axis=(0, 2)))

    def distributions(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.reshape(*outputs.shape[:-3], -1, outputs.shape[-1])

    def from_distributions(self, distributions: np.ndarray, rows: int) -> np.ndarray:
        return distributions.reshape(*distributions.shape[:-2], rows, -1, distributions.shape[-1])

    def truths(self, labels: np.ndarray) -> np.ndarray:
        return np.maximum(labels, -1).astype(np.int64).ravel()

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """The number of units with a tag other than O."""
        return np.asarray((labels > 0).sum(axis=1))
