"""The competition's format: JSON Lines, one object for each row."""

from __future__ import annotations

import json
from collections.abc import Sequence


class Competition:
    """``{"id": "0", "label": "108"}`` in ``task_predict.json``, in lower case; a regression's label is a number."""

    def place(self, task: str, part: str) -> tuple[str, str]:
        return part, f"{task.lower()}_predict.json"

    def render(self, ids: Sequence[str], labels: Sequence[str] | Sequence[float]) -> bytes:
        rows = zip(ids, labels, strict=True)
        lines = (json.dumps({"id": row, "label": label}, ensure_ascii=False) for row, label in rows)
        return "".join(f"{line}\n" for line in lines).encode()
