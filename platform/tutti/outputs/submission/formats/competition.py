"""The competition's format: JSON Lines, one object for each row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tutti.outputs.submission.formats.protocol import Item


class Competition:
    """``{"id": "0", "label": "108"}`` in ``task_predict.json``, in lower case; a regression's label is a number.

    Several labels are a list of names, several numbers or probabilities an object with a number by each name.
    """

    def place(self, task: str, part: str) -> tuple[str, str]:
        return part, f"{task.lower()}_predict.json"

    def render(self, ids: Sequence[str], labels: Sequence[Item]) -> bytes:
        rows = zip(ids, labels, strict=True)
        lines = (json.dumps({"id": row, "label": _label(label)}, ensure_ascii=False) for row, label in rows)
        return "".join(f"{line}\n" for line in lines).encode()


def _label(item: Item) -> object:
    """The names that a row has where the item holds decisions."""
    if isinstance(item, Mapping) and all(isinstance(value, int) for value in item.values()):
        return [name for name, given in item.items() if given]
    return item
