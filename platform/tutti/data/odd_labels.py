"""Labels that make a class of what hardly is one: slips of writing, missing labels, numbers, classes nobody judges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tutti.errors import Fault, TaskFileError, counted
from tutti.tasks.number_text import NUMBER
from tutti.tasks.spelling import is_placeholder, look, plain

_SHOWN = 3


def odd_labels(labels: pd.Series, *, source: str) -> list[str]:
    """Notices of labels that may be another class than they make, or none.

    Args:
        labels: of the training rows, as strings. Different ones are classes of their own.
        source: the file, which the notices begin with.

    Raises:
        TaskFileError: where the labels are numbers, most of which no other row has: there is no class to learn.
    """
    counts, notices = labels.value_counts(), []
    alike: dict[str, list[str]] = defaultdict(list)
    for label in sorted(counts.index):
        alike[look(label)].append(f"{label!r} ({counted(int(counts[label]), 'row')})")
    if same := [" and ".join(written) for written in alike.values() if len(written) > 1]:
        rule = "are classes of their own; if they differ by a slip alone, write them alike"
        notices.append(f"{source}: {_listed(same)} {rule}")
    if missing := [
        f"{label!r} ({counted(int(rows), 'row')})" for label, rows in counts.items() if is_placeholder(str(label))
    ]:
        rule = "is a class like any other" if len(missing) == 1 else "are classes like any other"
        notices.append(f"{source}: {_listed(missing)} {rule}; take these rows out if their label is missing")
    if _are_measured([*map(str, counts.index)]):
        got, remedy = f"{len(counts)} different numbers in {len(labels)} rows", "such as rmse or pearson"
        if len(counts) * 2 > len(labels):
            rule = "have several rows of each class, as a metric of classes asks"
            remedy = f"name a metric of numbers, {remedy}"
            raise TaskFileError(Fault(source, rule, got, remedy))
        notices.append(f"{source}: {got} are a class each; if they are amounts, name a metric of numbers, {remedy}")
    return notices


def unjudged_classes(classes: Sequence[str], *, train: np.ndarray, validation: np.ndarray, task: str) -> str | None:
    """A notice of the classes that no validation row has, so that no score says how they are learnt.

    Args:
        classes: the names.
        train, validation: ``(rows,)`` the class index of each row.
    """
    judged = {*validation.tolist()}
    missing = [
        f"{name!r} ({counted(int((train == index).sum()), 'training row')})"
        for index, name in enumerate(classes)
        if index not in judged
    ]
    if not missing:
        return None
    return f"{task}: no validation row is of the class {_listed(missing)}, which no score judges"


def _are_measured(labels: Sequence[str]) -> bool:
    """Whether all labels are numbers, and some are no whole ones."""
    return all(map(NUMBER.fullmatch, labels)) and not all(plain(label).lstrip("-").isdigit() for label in labels)


def _listed(entries: Sequence[str]) -> str:
    more = len(entries) - _SHOWN
    return ", ".join(entries[:_SHOWN]) + (f" and {counted(more, 'other')}" if more > 0 else "")
