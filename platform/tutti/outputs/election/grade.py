"""Scores predictions on test rows whose labels the user has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tutti.bank.electorate import Checkpoints
from tutti.data.clean import clean_rows, have_texts_of, row_texts
from tutti.errors import Fault, SubmissionError, TaskFileError
from tutti.outputs.election.card import Graded
from tutti.outputs.election.members import Elected, votes
from tutti.outputs.submission.formats.glue import official, spelled
from tutti.tasks.layouts.candidates import ambiguous, answer_form, answered, from_json
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.ids import is_id_name
from tutti.tasks.layouts.reading import REPEATED, CellCheck, raise_any
from tutti.tasks.layouts.table import Table, column_names
from tutti.tasks.scorer import Scorer

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.config.cleaning import Cleaning
    from tutti.data.prepared import Prepared
    from tutti.tasks.layouts.protocol import Layout
    from tutti.tasks.task import Task

_GLUE_LABEL = "prediction"
_GLUE_HEADER = ("index", _GLUE_LABEL)
_SHOWN = 5


def read_labels(
    source: str, *, task: Task, layout: Layout, expected: DataFrame, cleaning: Cleaning, glue: str | None = None
) -> np.ndarray:
    """Reads labels of a test file's rows, in its order, in the shape of the task's kind.

    Args:
        source: a file in the task's training layout, or a table as ``tasks.layouts.table`` reads it, of two columns:
            ``id``, in any spelling, and ``label``, or the task's own column of labels; or ``index`` and ``prediction``,
            whose labels may have GLUE's spelling. Of several labels or numbers it may have a column for each.
        expected: the test file's rows in their order, cleaned: ``id``, ``text`` and, for pairs, ``text_b``.
        cleaning: what was done to their texts.
        glue: the GLUE task that it is; none for the one of its name, if there is one.

    Raises:
        TaskFileError: if the file cannot be read, or a label of a regression is not a number.
        SubmissionError: if a test row has no label, an unknown one, or another text.
    """
    found = layout
    if not task.kind.sequential:  # whose labels go with the words of a row
        found = _layout_of(source, layout, () if task.kind.exclusive else task.names)
    try:
        rows = _read_rows(found, source, expected["id"], check=task.kind.cell_fault)
    except TaskFileError as error:
        if found is not layout:
            raise
        other = "or name a table of two columns, id and label"
        raise TaskFileError(*(replace(each, remedy=f"{each.remedy}, {other}") for each in error.faults)) from error
    raise_any(rows.attrs.get(REPEATED, ()), origin=source)  # which of them is meant?
    by_id, ids = rows.set_index("id"), expected["id"]
    remedy = "name the labels of this very test file, or a table of its ids and labels (columns id and label)"
    if missing := [row for row in ids if row not in by_id.index]:
        got = f"none for {_some_of(missing, ids)}"
        raise SubmissionError(Fault(source, f"have a label for every test row of {task.name}", got, remedy))
    in_order = by_id.loc[ids]
    if found is layout:  # ids often only count rows, so that those of any longer file fit
        pairs = zip(ids, row_texts(expected), row_texts(clean_rows(in_order, cleaning)), strict=True)
        if others := [row for row, text, found_text in pairs if text != found_text]:
            got = f"others for {_some_of(others, ids)}"
            raise SubmissionError(Fault(source, f"have the texts of the test rows of {task.name}", got, remedy))
    labels = in_order["label"].tolist()
    if task.kind.exchangeable and found is not layout:
        labels = _letters(labels, expected, source)
    if isinstance(found, Table) and found.label == _GLUE_LABEL:
        names = _names_by_spelling(task, official(glue or task.name))
        labels = [label if label in task.names else names.get(label, label) for label in labels]
    if unknown := set(task.kind.names_of(labels)) - set(task.names) if labels else set():
        rule = f"hold only labels of the task ({', '.join(task.names)})"
        got = ", ".join(map(repr, sorted(unknown)[:_SHOWN]))
        raise SubmissionError(Fault(source, rule, got, remedy))
    parsed = task.kind.parse(labels, task.names)
    return parsed.astype(np.int64) if task.kind.exclusive else parsed


def _letters(labels: Sequence[str], expected: DataFrame, source: str) -> list[str]:
    """Labels of a file without candidates as letters, by the candidates of the test rows."""
    own = from_json(expected["choices"].tolist())
    if (form := answer_form(labels, own)) is None:
        raise SubmissionError(ambiguous(source))
    return answered(labels, own, form)[0]


def trained_on(prepared: Prepared, task: str, rows: DataFrame) -> int:
    """The number of ``rows`` with the texts of rows of the task's training file, held out or not.

    Raises:
        StorageError: if the study's data are damaged.
    """
    parts = ["train"] if "validation" in prepared.origins[task] else ["train", "validation"]
    train = pd.concat([prepared.rows(task, part) for part in parts])
    return int(have_texts_of(rows, train[~train["id"].str.match(r"extra\d+/")]).sum())


def _read_rows(layout: Layout, source: str, ids: Iterable[str], *, check: CellCheck) -> DataFrame:
    """The labelled rows; those of a table with a column of ids, which labelled rows need not have, by these."""
    if isinstance(layout, Table) and layout.id is None:
        for name in layout.id_columns(source):
            with suppress(TaskFileError):  # its values are no ids
                rows = replace(layout, id=name).read(source, labelled=True, check=check)
                if set(ids) <= set(rows["id"]):
                    return rows
    return layout.read(source, labelled=True, check=check)


def _names_by_spelling(task: Task, file: str | None) -> dict[str, str]:
    """The task's classes by GLUE's spelling in an official file, such as 1 for ``acceptable``; empty if it has none."""
    try:
        return dict(zip(spelled(file or "", task.names), task.names, strict=True))
    except SubmissionError:
        return {}


def _some_of(rows: Sequence[str], ids: Sized) -> str:
    return f"{len(rows)} of {len(ids)} rows, such as {', '.join(map(repr, rows[:_SHOWN]))}"


def grade(bank: Checkpoints, task: Task, part: str, elected: Elected, labels: np.ndarray) -> Graded:
    """Scores the ensemble and the trial with the best validation score in the task on labels of a test part.

    The best trial gets no score if it has no predictions for these rows, which only members must have.

    Args:
        labels: ``(rows,)`` class indices or values, in the test file's order.

    Raises:
        StudyError: as ``votes`` does.
        StorageError: if the bank cannot be read.
    """
    task = task.as_voted
    scorer = Scorer.of(task)
    together = votes(bank, task=task, part=part, elected=elected)
    single = None
    if part in bank.parts(elected.best).get(task.name, ()):
        alone = bank.predictions(elected.best, task.name, part)
        if np.array_equal(alone.ids, together.ids) and alone.names == task.names:
            decision = elected.single.fit(elected.ballot).decision
            single = scorer(labels, scorer.judged(alone.outputs, decision))
    score = scorer(labels, elected.ensemble.judged(together.combined))
    return Graded(task.name, part, task.metric, len(labels), score, single)


def _layout_of(source: str, layout: Layout, several: Sequence[str]) -> Layout:
    """The layout of a table of ids and labels if the file is such a table; otherwise the task's own layout.

    Args:
        several: names of labels or numbers that may have a column each.
    """
    match layout:
        case Table():
            table = layout
        case Competition(separator=separator):
            table = Table(several=separator is not None, separator=separator)
        case _:
            table = Table()
    own = table.label
    try:
        names = column_names(source, wanted={*_GLUE_HEADER, "id", "label", own, *several})
    except TaskFileError:  # for example, the competition layout's .csv, which is tab-separated
        return layout
    for id_ in filter(is_id_name, names):
        if several and {*names} == {id_, *several}:
            return Table(id=id_, text=id_, labels=tuple(several))
    headers = (_GLUE_HEADER, *((name, label) for name in names if is_id_name(name) for label in ("label", own)))
    plain = Table(several=table.several, separator=table.separator)
    tables = (replace(plain, id=id_, text=id_, label=label) for id_, label in headers)
    return next((each for each in tables if {*names} == {each.id, each.label}), layout)
