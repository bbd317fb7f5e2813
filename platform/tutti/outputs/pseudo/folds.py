"""What the models of one fold say, which never saw the fold's rows: the teachers of a student of the same folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tutti.bank.electorate import Checkpoints
from tutti.config.folder import fold_name
from tutti.errors import Fault, StudyError
from tutti.outputs.election.member_checks import LABELLED
from tutti.outputs.pseudo.pool import PART
from tutti.tasks.objective import study_score
from tutti.tasks.predictions import Predictions
from tutti.tasks.scorer import Scorer

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.data.prepared import Prepared
    from tutti.records import CheckpointRecord
    from tutti.tasks.task import Task


class OfFold:
    """The trials of a study with folds as if the rows of one fold did not exist.

    Their validation rows are those of the other folds, by which they are ranked and weighed; their predictions for
    unlabelled rows are those of the fold's own model, which was trained without the fold's rows.

    Args:
        folds: by task ``(validation rows,)``, the fold of each.
    """

    def __init__(self, bank: Checkpoints, tasks: Sequence[Task], folds: Mapping[str, np.ndarray], *, fold: int) -> None:
        self._bank, self._fold = bank, fold
        self._tasks = {task.name: task for task in tasks}
        self._kept = {task: own != fold for task, own in folds.items()}

    def records(self) -> list[CheckpointRecord]:
        return [self._rescored(record) for record in self._bank.records()]

    def parts(self, key: str) -> dict[str, list[str]]:
        parts = self._bank.parts(key)
        own = f"{PART}-{fold_name(self._fold)}"
        return {
            task: [part for part in known if part != PART] + [PART] * (own in known) for task, known in parts.items()
        }

    def predictions(self, key: str, task: str, part: str) -> Predictions:
        if part == PART:
            return self._bank.predictions(key, task, f"{PART}-{fold_name(self._fold)}")
        found = self._bank.predictions(key, task, part)
        if part != LABELLED:
            return found
        kept = self._kept[task]
        assert found.labels is not None
        scores = None if found.log_probabilities is None else found.log_probabilities[kept]
        return Predictions.of(
            self._tasks[task],
            ids=found.ids[kept],
            outputs=found.outputs[kept],
            labels=found.labels[kept],
            log_probabilities=scores,
        )

    def _rescored(self, record: CheckpointRecord) -> CheckpointRecord:
        scores = dict(record.task_scores)
        for name in scores.keys() & self._tasks.keys():
            task = self._tasks[name]
            if not task.scored_otherwise:
                own = self.predictions(record.key, name, LABELLED)
                assert own.labels is not None
                scores[name] = Scorer.of(task).score(own.labels, own.outputs)
        known = [task for task in self._tasks.values() if task.name in scores]
        return replace(record, task_scores=scores, score=study_score(scores, known))


def folds_of(studies: Mapping[str, Prepared]) -> dict[str, np.ndarray]:
    """By task ``(validation rows,)``, the fold of each row, which must be the same in all studies.

    Raises:
        StudyError: if it is not, or there are no folds.
    """
    found: dict[str, np.ndarray] = {}
    for name, prepared in studies.items():
        if not prepared.settings["split"].get("folds"):
            remedy = "label rows without folds, or set split.folds in a new study"
            raise StudyError(Fault(f"the study {name}", "have folds", "none", remedy))
        for task in prepared.tasks:
            folds = prepared.folds(task.name)
            folds = folds[folds >= 0]
            if not np.array_equal(found.setdefault(task.name, folds), folds):
                rule = f"have the folds of {next(iter(studies))}, so that no model saw what another is judged by"
                raise StudyError(Fault(f"the study {name}, task {task.name}", rule, "others", "leave it out"))
    return found


def without_fold(
    validation: Mapping[str, DataFrame], folds: Mapping[str, np.ndarray], fold: int
) -> dict[str, DataFrame]:
    """By task, its validation rows but those of a fold."""
    return {task: rows[folds[task] != fold].reset_index(drop=True) for task, rows in validation.items()}
