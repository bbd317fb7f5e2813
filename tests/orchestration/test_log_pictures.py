"""A finished trial gets a picture for each of its tasks."""

from __future__ import annotations

import numpy as np

from tutti.bank.bank import Bank
from tutti.records import CheckpointRecord, TrialState
from tutti.tasks.predictions import Predictions


def test_a_finished_trial_gets_a_picture_for_each_task_with_validation_rows(logged):
    predictions = Predictions(
        ids=np.array(["a", "b"]),
        outputs=np.eye(2, dtype=np.float32),
        labels=np.array([0, 1]),
        names=("n", "y"),
    )
    parts = {"mood": {"validation": predictions, "test": predictions}, "odd": {"test": predictions}}
    Bank(logged.folder.bank).put(CheckpointRecord("t0000", 0, 1, 0.8, {"mood": 0.8}, None), parts)
    logged.folder.trial("t0000").path.mkdir(parents=True)
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, **logged.FINAL)
    logged.log.on_trial_complete(0, [], trial)
    logged.log.close()
    assert logged.run(trial).pictures == {"confusion_matrix/mood": b"mood: 2 rows"}
    assert not logged.folder.trial("t0000").pictures_owed.exists()


def test_the_picture_of_a_regression_has_a_name_of_its_own(logged):
    predictions = Predictions(
        ids=np.array(["a"]), outputs=np.array([1.5], np.float32), labels=np.array([2], np.float32)
    )
    Bank(logged.folder.bank).put(
        CheckpointRecord("t0000", 0, 1, 0.8, {"mood": 0.8}, None), {"mood": {"validation": predictions}}
    )
    trial = logged.start()
    logged.epoch(trial, 1, 0.8, **logged.FINAL)
    logged.log.on_trial_complete(0, [], trial)
    logged.log.close()
    assert logged.run(trial).pictures == {"predicted_and_true/mood": b"mood: 1 rows"}


def test_a_picture_that_cannot_be_drawn_costs_a_warning_and_nothing_else(logged, caplog):
    logged.folder.trial("t0000").path.mkdir(parents=True)
    trial = logged.start()  # its bank entry is missing
    logged.epoch(trial, 1, 0.8, **logged.FINAL)
    logged.log.on_trial_complete(0, [], trial)
    logged.log.close()
    assert logged.run(trial).state is TrialState.FINISHED
    assert logged.run(trial).pictures == {}
    assert "were not drawn: the bank" in caplog.text
    assert logged.folder.trial("t0000").pictures_owed.exists()
