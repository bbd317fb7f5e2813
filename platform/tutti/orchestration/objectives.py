"""What a study's objectives are of a trial that has finished."""

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
    """Measures a trial by a study's objectives but for the score, when it has ended and before it is told.

    Args:
        metrics: each task's metric.
    """

    def __init__(
        self, objectives: Sequence[Objective], *, folder: StudyFolder, store: StudyStore, metrics: Mapping[str, str]
    ) -> None:
        self._objectives, self._folder, self._store, self._metrics = objectives, folder, store, metrics
        self._votes: dict[str, dict[str, np.ndarray]] = {}  # of finished trials, by task

    def __call__(self, key: str, *, seconds: float, parameters: int | None) -> dict[str, float]:
        """The trial's objectives by name, without those that cannot be known.

        Args:
            seconds: wall time of training, evaluation and saving.
            parameters: weights that its last stage trained.

        Raises:
            StorageError: where its checkpoint or its predictions cannot be read.
        """
        known: dict[str, float | None] = {"seconds": seconds, "parameters": parameters}
        if "disk" in self._objectives:
            known["disk"] = bytes_of(self._folder.trial(key))
        if "gain" in self._objectives:
            known["gain"] = self._gain(key)
        return {name: float(value) for name in self._objectives if (value := known.get(name)) is not None}

    def _gain(self, key: str) -> float:
        """The mean over tasks of what the trial adds to the ensemble of those that were told as finished before it."""
        bank = Bank(self._folder.bank)
        finished = [record.key for record in self._store.records() if record.state is TrialState.FINISHED]
        others = [votes for other in finished if (votes := self._of(bank, other)) is not None]
        gains = []
        for task, metric in self._metrics.items():
            said = bank.predictions(key, task, "validation")
            assert said.labels is not None
            scored = partial(_score, metric, said.labels)
            gains.append(gain([votes[task] for votes in others], said.numbers, score=scored))
        return float(np.mean(gains))

    def _of(self, bank: Bank, key: str) -> dict[str, np.ndarray] | None:
        """What a finished trial says of the validation rows; nothing where the bank has lost it."""
        if key not in self._votes:
            try:
                self._votes[key] = {task: bank.predictions(key, task, "validation").numbers for task in self._metrics}
            except StorageError as error:
                _logger.warning("The trial %s is left out of the ensemble that others are measured by: %s", key, error)
                return None
        return self._votes[key]


def _score(metric: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    return score(metric, labels=labels, predicted=predicted)
