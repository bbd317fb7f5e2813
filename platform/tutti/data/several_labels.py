"""Finds classes whose names are several names with a separator between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_SEPARATORS = ("|", ";", ",")
_OCCURRENCES = 1.5  # of each part, on average: names with a comma, such as those of places, have parts of their own


def several_labels(names: Sequence[str], *, column: str) -> str | None:
    """A notice, where most of these names look like lists of labels: their parts recur in several of them."""
    for separator in _SEPARATORS:
        lists = [name for name in names if separator in name.strip(separator)]
        parts = Counter(part.strip() for name in names for part in name.split(separator) if part.strip())
        if len(lists) * 2 > len(names) and parts.total() > _OCCURRENCES * len(parts):
            example = f"columns: {{labels: {column}, separator: {separator!r}}}"
            return (
                f"classes such as {lists[0]!r} look like several labels, which `{example}` would learn each by itself"
            )
    return None
