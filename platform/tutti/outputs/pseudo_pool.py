"""The unlabelled rows of a study's tasks, with what their labels are judged by and written as."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutti.data.clean import row_texts
from tutti.data.prepare import clean_rows
from tutti.errors import Fault, StorageError
from tutti.outputs.studies import every_cleaning

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.data.prepared import Prepared
    from tutti.tasks.build import TaskSpec
    from tutti.tasks.layouts.protocol import Layout

PART = "unlabeled"


@dataclass(frozen=True, eq=False)
class Pool:
    """One task's unlabelled rows.

    Attributes:
        rows: ``id``, ``text``, perhaps ``text_b``, as they were cleaned.
        seen: ``(rows,)`` bool, whether a row's texts stand among those that the study's trials know labels of: its
            training and validation rows, and pseudo-labels of earlier rounds.
        prior: ``(classes,)`` float64, the classes' shares among the task's own training rows; empty for a regression.
        layout: how the task's training files are laid out.
        suffix: of such a file, such as ``.tsv``.
        source: SHA-256 of the file that the rows come from.
        round: how often pseudo-labels were made on the way to these, from 1.
    """

    rows: DataFrame
    seen: np.ndarray
    prior: np.ndarray
    layout: Layout
    suffix: str
    source: str
    round: int = 1


def ledger_of(task: str) -> str:
    """The name of the file that says of each pseudo-label of a task where it comes from."""
    return f"{task}.ledger.parquet"


def pools(prepared: Prepared, specs: Iterable[TaskSpec], *, beside: Sequence[Prepared] = ()) -> dict[str, Pool]:
    """Those of all tasks that have unlabelled rows.

    Args:
        beside: other studies of the same tasks, whose trials vote too: what they have seen is seen.

    Raises:
        StorageError: where the study's data or an earlier round's ledger cannot be read.
    """
    layouts, every = {spec.name: spec for spec in specs}, (prepared, *beside)
    return {
        task.name: Pool(
            rows=(rows := prepared.rows(task.name, PART)),
            seen=_seen(every, task.name, rows),
            prior=_prior(prepared, task.name, len(task.class_names)),
            layout=layouts[task.name].extra_layout,
            suffix=layouts[task.name].training_suffix,
            source=prepared.origins[task.name][PART]["sha256"],
            round=1 + max(_rounds_before(each, task.name) for each in every),
        )
        for task in prepared.tasks
        if PART in prepared.parts[task.name]
    }


def _seen(studies: Sequence[Prepared], task: str, rows: DataFrame) -> np.ndarray:
    steps = every_cleaning(studies, task)
    parts = ((prepared, part) for prepared in studies for part in ("train", "validation"))
    known = {texts for prepared, part in parts for texts in row_texts(clean_rows(prepared.rows(task, part), steps))}
    return np.array([texts in known for texts in row_texts(clean_rows(rows, steps))], dtype=bool)


def _extra(prepared: Prepared, task: str) -> list[str]:
    """The names of the task's sources that are files of ``extra_train``."""
    return [part for part in prepared.origins[task] if part.startswith("extra")]


def _prior(prepared: Prepared, task: str, classes: int) -> np.ndarray:
    if not classes:
        return np.empty(0)
    train = prepared.rows(task, "train")
    prefixes = tuple(f"{part}/" for part in _extra(prepared, task))
    labels = train["label"].to_numpy()[[not row.startswith(prefixes) for row in train["id"]]]
    return np.bincount(labels, minlength=classes) / max(len(labels), 1)


def _rounds_before(prepared: Prepared, task: str) -> int:
    """The last round in the ledgers beside the files of pseudo-labels that the study trained on; 0 without any."""
    last = 0
    for part in _extra(prepared, task):
        ledger = Path(prepared.origins[task][part]["source"]).with_name(ledger_of(task))
        try:
            if ledger.is_file():
                last = max(last, pc.max(pq.read_table(ledger, columns=["round"])["round"]).as_py() or 0)
        except (OSError, ValueError) as error:  # pyarrow's errors are such
            got, remedy = str(error).splitlines()[0], "restore the file, or remove it: rounds are then counted anew"
            raise StorageError(Fault(str(ledger), "be a ledger of pseudo-labels", got, remedy)) from error
    return last
