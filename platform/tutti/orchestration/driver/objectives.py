"""Measures finished trials by the objectives of their study."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tutti import mirror
from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.study import Objective
from tutti.ensembling.gain import MOST, gain
from tutti.ensembling.select import top
from tutti.errors import StorageError
from tutti.orchestration.upkeep.budget import bytes_of
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.tasks.objective import study_score
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task

_logger = logging.getLogger(__name__)


class Measure:
    """Measures a trial by all objectives of its study except the score, before its end is recorded in the store.

    Args:
        tasks: the study's.
    """

    def __init__(
        self, objectives: Sequence[Objective], *, folder: StudyFolder, store: StudyStore, tasks: Sequence[Task]
    ) -> None:
        self._objectives, self._folder, self._store = objectives, folder, store
        self._tasks = tasks
        self._scorers = {task.name: Scorer.of(task.as_voted) for task in tasks}
        self._known: set[str] = set()  # keys of the finished trials that are in _best, or were
        # by task, scores and predictions
        self._best: dict[str, list[tuple[float, np.ndarray]]] = {task: [] for task in self._scorers}

    def __call__(self, key: str, *, seconds: float, parameters: int | None) -> dict[str, float]:
        """The trial's objectives by name, without those that are unknown.

        Args:
            seconds: wall time of training, evaluation and saving.
            parameters: number of weights that its last stage trained.

        Raises:
            StorageError: if its checkpoint or its predictions cannot be read.
        """
        values: dict[str, float | None] = {"seconds": seconds, "parameters": parameters}
        if "disk" in self._objectives:
            trial = self._folder.trial(key)
            stored = mirror.sizes(trial.path)
            values["disk"] = sum(size for name, size in stored.items() if "best" in name.split("/")) or bytes_of(trial)
        if "gain" in self._objectives:
            values["gain"] = self._gain(key)
        return {name: float(value) for name in self._objectives if (value := values.get(name)) is not None}

    def _gain(self, key: str) -> float:
        """The score that the trial adds to the ensemble of all trials that finished before it, a weighted mean."""
        bank = Bank(self._folder.bank)
        for record in self._store.records():
            if record.state is TrialState.FINISHED and record.key not in self._known:
                mirror.pull(self._folder.bank / record.key)
                self._learn(bank, record.key)
        gains = {}
        for task in self._scorers:
            task_score, numbers = self._of(bank, key, task)
            others = [other for _, other in self._best[task]]
            gains[task] = gain(others, numbers, score=task_score)
        return study_score(gains, self._tasks)

    def _learn(self, bank: Bank, key: str) -> None:
        """Keeps a finished trial's predictions of the validation rows where they are among a task's best.

        Further ones have no part in a gain, and those of all trials may not fit into memory. A trial whose predictions
        the bank has lost is left out, and asked for again at the next call.
        """
        try:
            found = {task: self._of(bank, key, task) for task in self._scorers}
        except StorageError as error:
            _logger.warning("The trial %s is left out of the ensemble that others are measured by: %s", key, error)
            return
        self._known.add(key)
        for task, (task_score, numbers) in found.items():
            kept = [*self._best[task], (task_score(numbers), numbers)]
            self._best[task] = [kept[index] for index in sorted(top(np.array([each for each, _ in kept]), MOST))]

    def _of(self, bank: Bank, key: str, task: str) -> tuple[Callable[[np.ndarray], float], np.ndarray]:
        """The score of predictions of a task's validation rows, and those of a trial."""
        predictions = bank.predictions(key, task, "validation")
        assert predictions.labels is not None
        return partial(self._scorers[task].score, predictions.labels), predictions.outputs
