"""The unlabelled rows of a study's tasks, with what is needed to choose and write their pseudo-labels."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutti.data.clean import clean_rows, row_texts
from tutti.errors import Fault, StorageError, first_line
from tutti.outputs.election.studies import every_cleaning, one_spaced
from tutti.tasks.kinds.probabilities import known

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.data.prepared import Prepared
    from tutti.tasks.build import TaskSpec
    from tutti.tasks.layouts.protocol import Layout
    from tutti.tasks.task import Task

PART = "unlabeled"


@dataclass(frozen=True, eq=False)
class Pool:
    """One task's unlabelled rows.

    Attributes:
        rows: cleaned rows: ``id``, ``text``, and ``text_b`` for pairs.
        seen: ``(rows,)`` bool: whether the row's texts are also those of a row whose label the trials have seen: a
            training or validation row, including pseudo-labels of earlier rounds.
        prior: ``(outputs,)`` float64, the shares of classes or labels among the task's own training rows; else empty.
        layout: the layout of the task's training files.
        suffix: the suffix of such a file, for example ``.tsv``.
        source: SHA-256 of the file that the rows come from.
        round: the number of the round that makes these pseudo-labels, from 1.
    """

    rows: DataFrame
    seen: np.ndarray
    prior: np.ndarray
    layout: Layout
    suffix: str
    source: str
    round: int = 1


def ledger_of(task: str) -> str:
    """The name of the file that records where each pseudo-label of a task comes from."""
    return f"{task}.ledger.parquet"


def pools(prepared: Prepared, specs: Iterable[TaskSpec], *, others: Sequence[Prepared] = ()) -> dict[str, Pool]:
    """The pools of all tasks that have unlabelled rows, by task.

    Args:
        others: other studies whose trials vote too. Rows of a task that they have seen in it count as seen.

    Raises:
        StorageError: if the study's data or an earlier round's ledger cannot be read.
    """
    specs_by_task = {spec.name: spec for spec in specs}
    studies = {task.name: [prepared, *(each for each in others if task.name in each.parts)] for task in prepared.tasks}
    return {
        task.name: Pool(
            rows=(rows := prepared.rows(task.name, PART)),
            seen=_seen(studies[task.name], task.name, rows),
            prior=_prior(prepared, task),
            layout=specs_by_task[task.name].extra_layout,
            suffix=specs_by_task[task.name].training_suffix,
            source=prepared.origins[task.name][PART]["sha256"],
            round=1 + max(_rounds_before(study, task.name) for study in studies[task.name]),
        )
        for task in prepared.tasks
        if PART in prepared.parts[task.name]
    }


def _seen(studies: Sequence[Prepared], task: str, rows: DataFrame) -> np.ndarray:
    steps = every_cleaning(studies, task)
    parts = ((prepared, part) for prepared in studies for part in ("train", "validation"))

    def texts(rows: DataFrame) -> Iterator[tuple[str, ...]]:
        return map(one_spaced, row_texts(clean_rows(rows, steps)))

    labelled = {each for prepared, part in parts for each in texts(prepared.rows(task, part))}
    return np.array([each in labelled for each in texts(rows)], dtype=bool)


def _extra_parts(prepared: Prepared, task: str) -> list[str]:
    """The names of the task's parts that come from ``extra_train``."""
    return [part for part in prepared.origins[task] if part.startswith("extra")]


def _prior(prepared: Prepared, task: Task) -> np.ndarray:
    if not task.kind.probabilistic:
        return np.empty(0)
    prefixes = tuple(f"{part}/" for part in _extra_parts(prepared, task.name))
    own = [not row.startswith(prefixes) for row in prepared.ids(task.name, "train")]
    labels = prepared.labels(task.name, "train")[own]
    held = task.kind.held(labels, task.outputs)
    return held.sum(axis=0) / np.maximum(known(task.kind, labels).sum(axis=0), 1)


def _rounds_before(prepared: Prepared, task: str) -> int:
    """The highest round in the ledgers of the pseudo-labels that the study trained on; 0 if there are none."""
    last = 0
    for part in _extra_parts(prepared, task):
        ledger = Path(prepared.origins[task][part]["source"]).with_name(ledger_of(task))
        try:
            if ledger.is_file():
                last = max(last, pc.max(pq.read_table(ledger, columns=["round"])["round"]).as_py() or 0)
        except (OSError, ValueError) as error:  # pyarrow's errors are subclasses
            got, remedy = first_line(error), "restore the file, or remove it: rounds are then counted anew"
            raise StorageError(Fault(str(ledger), "be a ledger of pseudo-labels", got, remedy)) from error
    return last


def keep_earlier(out: Path, folder: Path, suffixes: Collection[str]) -> Iterator[str]:
    """Copies earlier labels from ``out``, of tasks without new ones in ``folder``; yields the tasks' names."""
    for ledger in sorted(out.glob(ledger_of("*"))):
        if (folder / ledger.name).exists():
            continue
        name = ledger.name.removesuffix(ledger_of(""))
        for file in (ledger, *(out / f"{name}{suffix}" for suffix in suffixes)):
            if file.exists():
                shutil.copy2(file, folder / file.name)
        yield name
