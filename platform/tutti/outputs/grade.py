"""Scores predictions on test rows whose labels the user has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.errors import Fault, SubmissionError, TaskFileError
from tutti.outputs.card import Graded
from tutti.outputs.members import Elected, votes
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.layouts.reading import number
from tutti.tasks.layouts.table import Table, column_names
from tutti.tasks.metrics import score_decided

if TYPE_CHECKING:
    from tutti.tasks.layouts.protocol import Layout
    from tutti.tasks.task import Task

_HEADERS = (("id", "label"), ("index", "prediction"))
_SHOWN = 5


def read_labels(source: str, *, task: Task, layout: Layout, expected: Sequence[str]) -> np.ndarray:
    """Reads labels of a test file's rows, in its order: ``(rows,)`` int64 class indices, or float32 values.

    Args:
        source: a file in the task's training layout, or a table (.csv, .tsv, .jsonl, .json, .parquet) of two columns:
            ``id`` and ``label``, or ``index`` and ``prediction``.
        expected: the ids of the test file, in its order.

    Raises:
        TaskFileError: if the file cannot be read, or a label of a regression is not a number.
        SubmissionError: if a test row has no label or an unknown one, or if the file's ids only count its rows, and
            these are more than the test file's.
    """
    found = _layout_of(source, layout)
    rows = found.read(source, labelled=True, numbers=task.regression)
    by_id = dict(zip(rows["id"], rows["label"], strict=True))
    numbered = isinstance(found, Glue) or (isinstance(found, Table) and found.id is None)  # training rows without ids
    remedy = "name the labels of this very test file"
    if missing := [row for row in expected if row not in by_id]:
        named = ", ".join(map(repr, missing[:_SHOWN]))
        got = f"none for {len(missing)} of {len(expected)} rows, such as {named}"
        if numbered:
            remedy += ", with their ids: a table of the columns id and label"
        raise SubmissionError(Fault(source, f"have a label for every test row of {task.name}", got, remedy))
    if len(by_id) > len(expected) and numbered:  # row numbers fit any file, so a longer one is not this test file's
        rows_of = f"the {len(expected)} rows of the test file of {task.name}"
        rule = f"have {rows_of} and no others, since its ids only count rows"
        raise SubmissionError(Fault(source, rule, f"{len(by_id)} rows", remedy))
    labels = [by_id[row] for row in expected]
    if task.regression:
        return np.array([number(label) for label in labels], dtype=np.float32)
    if unknown := set(labels) - set(task.class_names):
        rule = f"hold only labels of the task ({', '.join(task.class_names)})"
        got = ", ".join(map(repr, sorted(unknown)[:_SHOWN]))
        raise SubmissionError(Fault(source, rule, got, remedy))
    return np.array([task.class_names.index(label) for label in labels], dtype=np.int64)


def grade(bank: Checkpoints, task: Task, part: str, elected: Elected, labels: np.ndarray) -> Graded:
    """Scores the ensemble and the trial with the best validation score in the task on labels of a test part.

    The best trial gets no score if it has no predictions for these rows, which only members must have.

    Args:
        labels: ``(rows,)`` class indices or values, in the test file's order.

    Raises:
        StudyError: as ``votes`` does.
        StorageError: if the bank cannot be read.
    """

    def score_of(decided: np.ndarray) -> float:
        return score_decided(task.metric, labels=labels, decided=decided, classes=task.outputs)

    together = votes(bank, task=task, part=part, elected=elected)
    single = None
    if part in bank.parts(elected.best).get(task.name, ()):
        alone = bank.predictions(elected.best, task.name, part)
        if np.array_equal(alone.ids, together.ids) and alone.class_names == task.class_names:
            single = score_of(alone.numbers if task.regression else alone.numbers.argmax(axis=1))
    score = score_of(elected.ensemble.decide(together.combined))
    return Graded(task.name, part, task.metric, len(labels), score, single)


def _layout_of(source: str, layout: Layout) -> Layout:
    """The layout of a table of ids and labels if the file is such a table; otherwise the task's own layout."""
    try:
        names = set(column_names(source))
    except TaskFileError:  # for example, the competition layout's .csv, which is tab-separated
        return layout
    return next((Table(id=id_, text=id_, label=label) for id_, label in _HEADERS if names == {id_, label}), layout)
