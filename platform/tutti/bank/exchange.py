"""Predictions as tables that other programs read and write: an id, and a column for each output."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from tutti.errors import Fault, StudyError, TaskFileError, nearest
from tutti.tasks.kinds.values import columns
from tutti.tasks.layouts.cells import id_text
from tutti.tasks.layouts.ids import is_id_name
from tutti.tasks.layouts.table import column_names, table_blocks
from tutti.tasks.number_text import parse_number, shortest
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task

_SUM = 1e-3  # how far the probabilities of a row may be from 1 in all: files are often rounded
_SHOWN = 5  # ids in a message


def output_columns(task: Task) -> tuple[str, ...]:
    """The columns of a task's outputs, as ``tutti predict`` calls them: ``p_NAME`` of each class, or the numbers.

    Raises:
        StudyError: where a row has no fixed number of outputs.
    """
    if task.kind.generative or task.kind.sequential:
        rule, got = "have numbers that stand in a row of a table", task.kind.describe(task.names)
        raise StudyError(Fault(f"the task {task.name}", rule, got, "name another task"))
    if not task.names:
        return ("value",)
    return tuple(f"p_{name}" for name in task.names) if task.kind.probabilistic else task.names


def to_csv(predictions: Predictions, task: Task) -> str:
    """A table that ``read_outputs`` reads again, to the last bit."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["id", *output_columns(task)])
    for name, row in zip(predictions.ids.tolist(), columns(predictions.outputs), strict=True):
        writer.writerow([name, *("" if each != each else shortest(each) for each in row)])
    return text.getvalue()


def read_outputs(file: str, task: Task, ids: Sequence[str]) -> np.ndarray:
    """The outputs of the rows with these ids, in their order and in the shape of the task's kind.

    The columns are those of ``output_columns``, with or without ``p_``; of two classes the second one's is enough.
    Further columns are passed over. Probabilities that sum to 1 but for rounding are made to.

    Args:
        file: CSV, TSV, JSON, Parquet or Excel.

    Raises:
        TaskFileError: naming missing columns, missing and surplus rows, and cells that are no such numbers.
    """
    header, wanted = column_names(file), output_columns(task)
    found = [next((own for own in (name, name.removeprefix("p_")) if own in header), None) for name in wanted]
    of_second = task.kind.exclusive and len(wanted) == 2 and found[0] is None and found[1] is not None
    if missing := [name for name, own in zip(wanted, found, strict=True) if own is None and not of_second]:
        got, remedy = f"the columns {', '.join(header)}", nearest(missing[0], header, otherwise="rename the columns")
        raise TaskFileError(Fault(file, f"have a column for each output, {', '.join(wanted)}", got, remedy))
    id_name = next((name for name in ("id", *header) if name in header and is_id_name(name)), None)
    if id_name is None:
        raise TaskFileError(
            Fault(file, "have the ids of its rows", f"the columns {', '.join(header)}", "add a column id")
        )
    used = [name for name in found if name is not None]
    table, places, place = next(table_blocks(file, None, wanted={id_name, *used}))
    theirs = [id_text(cell) for cell in table[id_name]]
    faults = [*_id_faults(file, theirs, ids)]
    if faults:
        raise TaskFileError(*faults)
    cells = np.array([[_number(cell) for cell in table[name]] for name in used]).T
    may_lack = task.kind.comparative  # rows with a single text
    wrong = np.isinf(cells) | (np.isnan(cells) & ~(np.arange(cells.shape[1]) > 0) if may_lack else np.isnan(cells))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        got = repr(table[used[column]][row])
        raise TaskFileError(
            Fault(f"{file}, {place} {places[row]}", f"have a number in {used[column]!r}", got, "correct it")
        )
    index = {name: row for row, name in enumerate(theirs)}
    outputs = cells[[index[name] for name in ids]]
    if of_second:
        outputs = np.hstack([1 - outputs, outputs])
    return _checked(file, outputs.astype(np.float32), task)


def _checked(file: str, outputs: np.ndarray, task: Task) -> np.ndarray:
    kind = task.kind
    if kind.probabilistic and ((outputs < 0) | (outputs > 1)).any():
        rule, remedy = "have probabilities, from 0 to 1", "take the softmax or sigmoid of such scores"
        raise TaskFileError(Fault(file, rule, f"{outputs.flat[np.abs(outputs - 0.5).argmax()]:g}", remedy))
    if kind.exclusive:
        sums = outputs.sum(axis=1, keepdims=True, dtype=np.float64)
        if (far := np.abs(sums - 1)).max(initial=0) > _SUM:
            got = f"{sums.flat[far.argmax()]:.6g} in a row"
            raise TaskFileError(Fault(file, "have probabilities of which those of a row sum to 1", got, "divide by it"))
        if kind.fault(outputs, None, task.names):  # which is far stricter
            outputs = (outputs / sums).astype(np.float32)
    return outputs.reshape(kind.shape(len(outputs), task.outputs))


def _id_faults(file: str, theirs: Sequence[str], ids: Sequence[str]) -> list[Fault]:
    faults = []
    counted = dict.fromkeys(theirs, 0)
    for name in theirs:
        counted[name] += 1
    lists = (
        ("have each id once", [name for name, count in counted.items() if count > 1], "again", "take the copies out"),
        ("have all rows of the study", [name for name in ids if name not in counted], "missing", "predict them too"),
        ("have no other rows", [*{*theirs} - {*ids}], "surplus", "take them out, or name the file of these rows"),
    )
    for rule, names, what, remedy in lists:
        if names:
            listed = ", ".join(map(repr, sorted(names)[:_SHOWN])) + ", ..." * (len(names) > _SHOWN)
            faults.append(Fault(file, rule, f"{len(names)} {what}: {listed}", remedy))
    return faults


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else float(parse_number(str(cell or "")))
