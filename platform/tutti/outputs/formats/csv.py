"""Comma-separated values, quoted after RFC 4180."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence


class Csv:
    """Header ``id,label`` in ``TASK.csv``; rows end with a carriage return and a line feed."""

    def file_name(self, task: str) -> str:
        return f"{task}.csv"

    def render(self, ids: Sequence[str], labels: Sequence[str] | Sequence[float]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(("id", "label"))
        writer.writerows(zip(ids, labels, strict=True))
        return text.getvalue().encode()
