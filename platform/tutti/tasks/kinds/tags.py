"""Tags that are classes of words or characters, such as parts of speech: each has one, and they mark no spans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tutti.errors import Fault
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.classes import ordered_classes
from tutti.tasks.kinds.entities import ABSENT
from tutti.tasks.kinds.protocol import Tuner
from tutti.tasks.kinds.tokens import Tokens

_SHOWN = 60  # tags of a row for a reader


class Tags(Tokens):
    """Labels ``(rows, units)`` of tags and outputs ``(rows, units, tags)``, as of entities; decisions are the likeliest
    tags one by one.
    """

    name: ClassVar[str] = "tags"
    spans: ClassVar[str] = "none"
    picture: ClassVar[str] = "confusions_of_units"

    def names_of(self, cells: Iterable[str], order: Sequence[str] = ()) -> tuple[str, ...]:
        return tuple(ordered_classes((tag for cell in cells for tag in json.loads(cell) if tag is not None), order))

    def _legal(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def label_faults(self, labels: LabelCells, names: Sequence[str]) -> Iterator[Fault]:
        if len(names) < 2:
            yield Fault(labels.origin, "have two tags or more", f"{len(names)}", "name the column of the tags")
        yield from self._unknown(labels, names)

    def untrained(self, labels: np.ndarray, names: Sequence[str]) -> list[str]:
        return [name for tag, name in enumerate(names) if not (labels == tag).any()]

    def indicators(self, labels: np.ndarray) -> np.ndarray:
        return self.held(labels, int(labels.max(initial=0)) + 1).astype(np.float32)

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        listed = ", ".join(names[:most]) + ", ..." * (len(names) > most)
        return f"one of {len(names)} tags for each word" + (f" ({listed})" if most else "")

    def decide(self, outputs: np.ndarray, decision: np.ndarray | None = None) -> np.ndarray:
        absent = np.isnan(outputs[..., 0])
        return np.where(absent, ABSENT, np.nan_to_num(outputs).argmax(axis=-1)).astype(np.int16)

    def tuner(self, metric: str) -> Tuner | None:
        return None

    def decision_by_name(self, names: Sequence[str], decision: np.ndarray) -> Mapping[str, float]:
        return {}

    def decision_text(self, names: Sequence[str], decision: np.ndarray | None) -> str:
        return "the likeliest tags"

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        tags = [names[tag] if tag >= 0 else "?" for tag in np.asarray(decided).tolist() if tag != ABSENT]
        return " ".join(tags[:_SHOWN]) + " ..." * (len(tags) > _SHOWN)

    def difference(self, first: np.ndarray, second: np.ndarray) -> float:
        present = first >= 0
        return float((first != second)[present].mean()) if present.any() else 0.0

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """The number of units."""
        return np.asarray((labels != ABSENT).sum(axis=1))
