"""Entities of several types that may overlap: each type has tags of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from tutti.tasks.kinds.entities import ABSENT, OUTSIDE, UNKNOWN, entities_of, types_of
from tutti.tasks.kinds.tokens import Tokens


class Overlapping(Tokens):
    """Labels and outputs as of entities, but each type has units of its own: a row of n words has n times as many units
    as types, those of the first type first. Of its tags each has O, B and I of its type alone.

    All that is said of units is so of each word and type: what is averaged, decided, tuned and counted. In cells, lists
    of JSON, a word has a list of tags, or null where none is known; ``?-TYPE`` stands for an unknown one of that type.
    """

    name: ClassVar[str] = "overlapping"
    spans: ClassVar[str] = "overlapping"

    def _tags(self, cell: str) -> Iterable[str | None]:
        return (tag.replace("?", "B", 1) for tag in chain.from_iterable(own or () for own in json.loads(cell)))

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> np.ndarray:
        lane = {name: number for number, name in enumerate(types_of(names))}
        tags = {**{f"?-{name}": UNKNOWN for name in lane}, **{name: number for number, name in enumerate(names)}}
        rows = []
        for cell in cells:
            words = json.loads(cell)
            by_type = np.zeros((len(lane), len(words)), dtype=np.int32)
            for word, own in enumerate(words):
                by_type[:, word] = UNKNOWN if own is None else 0
                for tag in own or ():
                    by_type[lane[tag[2:]], word] = tags[tag]
            rows.append(by_type.ravel().tolist())
        return self._legal(self._padded(rows))

    def describe(self, names: Sequence[str], *, most: int = 0) -> str:
        return f"{super().describe(names, most=most)}, which may overlap"

    def cells(self, decided: np.ndarray, names: Sequence[str]) -> list[str]:
        types = types_of(names)

        def listed(own: Sequence[int]) -> list[str] | None:
            if own and max(own) == UNKNOWN:
                return None
            written = (f"?-{name}" if tag == UNKNOWN else names[tag] for tag, name in zip(own, types, strict=True))
            return [each for each in written if each != OUTSIDE]

        rows = (self.by_word(row, names).tolist() for row in decided)
        return [json.dumps([listed(own) for own in row], ensure_ascii=False) for row in rows]

    def spell(self, decided: np.ndarray, names: Sequence[str]) -> list[Any]:
        """The tags of each row with spaces between, those of a word with ``|``."""
        return [
            " ".join("|".join(own or ()) or OUTSIDE for own in json.loads(row)) for row in self.cells(decided, names)
        ]

    def text(self, decided: Any, names: Sequence[str], *, exact: bool = False) -> str:
        words = len(self.by_word(np.asarray(decided), names))
        types, found = types_of(names), entities_of(np.asarray(decided)[None])
        listed = []
        for start, end, kind in zip(found.start.tolist(), found.end.tolist(), found.type.tolist(), strict=True):
            first, last = start - kind * words + 1, end - kind * words
            listed.append(f"{types[kind]} {first}" + (f"-{last}" if last > first else ""))
        return ", ".join(listed) or "none"

    def by_word(self, row: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """``(words, types)`` tags of one row."""
        present = row[row != ABSENT]
        return present.reshape(len(names) // 2, -1).T
