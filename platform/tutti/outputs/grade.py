"""What predictions are worth on test rows whose labels one has after all."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.errors import Fault, SubmissionError
from tutti.outputs.card import Graded
from tutti.outputs.members import Elected, votes
from tutti.tasks.layouts.reading import check_text, number
from tutti.tasks.metrics import score_decided

if TYPE_CHECKING:
    from tutti.tasks.layouts.protocol import Layout
    from tutti.tasks.task import Task

_HEADERS = (("id", "label"), ("index", "prediction"))
_SHOWN = 5


def read_labels(source: str, *, task: Task, layout: Layout, expected: Sequence[str]) -> np.ndarray:
    """Labels of a test file's rows, in its order: ``(rows,)`` int64 class indices, or float32 values.

    Args:
        source: a file in the task's training layout, or one of ids and labels alone: CSV or tab-separated values with
            the header ``id,label`` or ``index,prediction``, or JSON Lines of ``{"id": ..., "label": ...}``.
        expected: the ids of the test file, in its order.

    Raises:
        TaskFileError: where the file cannot be read.
        SubmissionError: where a row has no label, or one that is none of the task's.
    """
    check_text(source)
    found = _answers(Path(source).read_text(encoding="utf-8-sig"))
    if found is None:
        rows = layout.read(source, labelled=True, numbers=task.regression)
        found = dict(zip(rows["id"], rows["label"], strict=True))
    remedy = "name the labels of this very test file"
    if missing := [each for each in expected if each not in found]:
        named = ", ".join(map(repr, missing[:_SHOWN]))
        got = f"none for {len(missing)} of {len(expected)} rows, such as {named}"
        raise SubmissionError(Fault(source, f"have a label for every test row of {task.name}", got, remedy))
    labels = [found[each] for each in expected]
    if task.regression:
        values = np.array([number(each) for each in labels], dtype=np.float32)
        strange = {each for each, value in zip(labels, values, strict=True) if not np.isfinite(value)}
    else:
        strange = set(labels) - set(task.class_names)
    if strange:
        known = "finite numbers" if task.regression else f"labels of the task ({', '.join(task.class_names)})"
        got = ", ".join(map(repr, sorted(strange)[:_SHOWN]))
        raise SubmissionError(Fault(source, f"hold only {known}", got, remedy))
    return values if task.regression else np.array([task.class_names.index(each) for each in labels], dtype=np.int64)


def grade(bank: Checkpoints, task: Task, part: str, elected: Elected, labels: np.ndarray) -> Graded:
    """Scores the ensemble, and the trial with the best validation score in the task, by the labels of a test part.

    Args:
        labels: ``(rows,)`` class indices or values, of the rows in the test file's order.

    Raises:
        StudyError: as ``votes`` does.
        StorageError: where the bank cannot be read.
    """
    decided = elected.ensemble.decide(votes(bank, task=task, part=part, elected=elected).said)
    alone = bank.predictions(elected.best, task.name, part)
    own = alone.values if alone.probabilities is None else alone.probabilities.argmax(axis=1)
    scores = [
        score_decided(task.metric, labels=labels, decided=each, classes=task.outputs)
        for each in (decided, own)
        if each is not None
    ]
    return Graded(task.name, part, task.metric, len(labels), *scores)


def _answers(text: str) -> Mapping[str, str] | None:
    """Id to label of a file of nothing else, or none where it is of another kind."""
    lines = text.splitlines()
    if lines[0].lstrip().startswith("{"):
        try:
            rows = [json.loads(line) for line in lines if line.strip()]
        except ValueError:
            return None
        if any(set(row) != {"id", "label"} for row in rows):
            return None
        return {str(row["id"]): str(row["label"]) for row in rows}
    for table in (
        [row for row in csv.reader(lines) if row],
        [line.split("\t") for line in lines if line],
    ):
        if tuple(table[0]) in _HEADERS and all(len(row) == 2 for row in table):
            return {row[0]: row[1] for row in table[1:]}
    return None
