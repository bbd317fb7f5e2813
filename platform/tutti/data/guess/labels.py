"""What the labels of one column are: classes, with an order or without, lists of labels, or numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tutti.data.guess.cells import are_numbers, are_whole, distinct, texts
from tutti.data.several_labels import several_labels

_GRADES = re.compile(r".*(score|grade|rating|star|level|rank|severity|quality|difficulty).*", re.IGNORECASE)
_SCALES = (
    ("low", "medium", "high"),
    ("low", "middle", "high"),
    ("bad", "neutral", "good"),
    ("negative", "neutral", "positive"),
    ("ineffective", "adequate", "effective"),
    ("poor", "fair", "good", "excellent"),
    ("easy", "medium", "hard"),
    ("never", "rarely", "sometimes", "often", "always"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
)
"""Words that have an order: the least first."""

_MOST_GRADES = 12
_MOST_CODES = 200  # numbers of more values than these are amounts


@dataclass(frozen=True)
class Labels:
    """How a study file names labels.

    Attributes:
        columns, keys: keys under ``columns:`` and of the task.
        why: by key, the reason.
        metrics: that are likely.
    """

    columns: Mapping[str, Any]
    keys: Mapping[str, Any]
    why: Mapping[str, str]
    metrics: tuple[str, ...]


def labels_of(name: str, cells: Sequence[Any]) -> Labels:
    """What the labels of a column are."""
    column = {} if name == "label" else {"label": name}
    if any(isinstance(cell, list) for cell in cells) or all(text.startswith("[") for text in texts(cells)[:50] or [""]):
        return Labels({"labels": name}, {}, {"columns": "labels: a list in each row"}, ("macro_f1",))
    found = distinct(cells)
    if are_numbers(cells):
        return _numbers(name, column, cells, found)
    if (notice := several_labels(found, column=name)) and (separator := re.search(r"separator: '(.)'", notice)):
        columns = {"labels": name, "separator": separator[1]}
        return Labels(columns, {}, {"columns": "labels: several in a cell"}, ("macro_f1",))
    plain = [label.casefold() for label in found]
    order = next((scale for scale in _SCALES if sorted(scale) == sorted(plain)), None)
    if order:
        ranked = [found[plain.index(word)] for word in order]
        why = "from low to high; take it out where the order means nothing"
        return Labels(column, {"ordered": ranked}, {"ordered": why}, ("macro_f1", "quadratic_kappa"))
    return Labels(column, {}, {}, ("macro_f1", "accuracy"))


def _numbers(name: str, column: Mapping[str, Any], cells: Sequence[Any], found: Sequence[str]) -> Labels:
    whole = are_whole(cells)
    if not whole or len(found) > _MOST_CODES or (len(found) > 30 and len(found) * 5 > len(texts(cells))):
        return Labels(column, {}, {"metric": "one number per row"}, ("rmse", "pearson", "spearman", "mae"))
    steps = {int(after) - int(before) for before, after in pairwise(found)}
    if 3 <= len(found) <= _MOST_GRADES and steps == {1} and _GRADES.fullmatch(name):
        why = f"{found[0]} to {found[-1]}, from low to high"
        return Labels(column, {"ordered": True}, {"ordered": why}, ("quadratic_kappa", "macro_f1", "accuracy"))
    return Labels(column, {}, {}, ("macro_f1", "accuracy"))
