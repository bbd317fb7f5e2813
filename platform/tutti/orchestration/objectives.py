"""Measures finished trials by the objectives of their study."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.study import Objective
from tutti.ensembling.gain import gain
from tutti.errors import StorageError
from tutti.orchestration.budget import bytes_of
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.tasks.metrics import score

_logger = logging.getLogger(__name__)


class Measure:
    """Measures a trial by all objectives of its study except the score, before its end is recorded in the store.

    Args:
        metrics: each task's metric.
    """

    def __init__(
        self, objectives: Sequence[Objective], *, folder: StudyFolder, store: StudyStore, metrics: Mapping[str, str]
    ) -> None:
        self._objectives, self._folder, self._store, self._metrics = objectives, folder, store, metrics
        self._predictions: dict[str, dict[str, np.ndarray]] = {}  # of finished trials, by key and task

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
            values["disk"] = bytes_of(self._folder.trial(key))
        if "gain" in self._objectives:
            values["gain"] = self._gain(key)
        return {name: float(value) for name in self._objectives if (value := values.get(name)) is not None}

    def _gain(self, key: str) -> float:
        """Mean over tasks of the score that the trial adds to the ensemble of all trials that finished before it."""
        bank = Bank(self._folder.bank)
        finished = [record.key for record in self._store.records() if record.state is TrialState.FINISHED]
        members = [numbers for other in finished if (numbers := self._validation(bank, other)) is not None]
        gains = []
        for task, metric in self._metrics.items():
            predictions = bank.predictions(key, task, "validation")
            assert predictions.labels is not None
            task_score = partial(_score, metric, predictions.labels)
            gains.append(gain([numbers[task] for numbers in members], predictions.numbers, score=task_score))
        return float(np.mean(gains))

    def _validation(self, bank: Bank, key: str) -> dict[str, np.ndarray] | None:
        """A finished trial's predictions of the validation rows; none if the bank has lost them."""
        if key not in self._predictions:
            try:
                self._predictions[key] = {
                    task: bank.predictions(key, task, "validation").numbers for task in self._metrics
                }
            except StorageError as error:
                _logger.warning("The trial %s is left out of the ensemble that others are measured by: %s", key, error)
                return None
        return self._predictions[key]


def _score(metric: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    return score(metric, labels=labels, predicted=predicted)
