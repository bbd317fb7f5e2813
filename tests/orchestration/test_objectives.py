"""A trial that has finished is measured by the study's objectives, and told with them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from stored_study import put_checkpoint

from tutti.bank.bank import Bank
from tutti.config.space import SearchSpace
from tutti.errors import StorageError
from tutti.orchestration.driver.objectives import Measure
from tutti.records import CheckpointRecord, TrialState
from tutti.search.study_store import StudyStore
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task

FINISHED = TrialState.FINISHED
ROWS = 300
LABELS = np.arange(ROWS) % 3
MOOD = Task("mood", ("a", "b", "c"), pair=False, metric="accuracy", submission="csv")
ALL = ("score", "gain", "seconds", "parameters", "disk")


@pytest.fixture
def store(tmp_path) -> StudyStore:
    given: dict[str, Any] = {"space": SearchSpace(), "sampler": "random", "seed": 0, "objectives": ALL}
    return StudyStore.open(f"sqlite:///{tmp_path / 'optuna.db'}", name="s", **given)


@pytest.fixture
def measured(logged, store):
    """The log of a study of all objectives."""
    logged.log._ender._measure = Measure(ALL, folder=logged.folder, store=store, tasks=[MOOD])
    return logged


def put(logged: Any, trial: Any, wrong: slice, *, sure: float = 0.6) -> float:
    """The trial's predictions, wrong and less sure in some rows; their accuracy."""
    predicted = LABELS.copy()
    predicted[wrong] = (predicted[wrong] + 1) % 3
    likely = np.full(ROWS, sure, np.float32)
    likely[wrong] -= 0.15
    probabilities = np.repeat((1 - likely[:, None]) / 2, 3, axis=1)
    probabilities[np.arange(ROWS), predicted] = likely
    ids, names = np.array([f"r{row}" for row in range(ROWS)]), ("a", "b", "c")
    predictions = Predictions(ids=ids, outputs=probabilities, labels=LABELS, names=names)
    key, score = trial.config["key"], float((predicted == LABELS).mean())
    record = CheckpointRecord(key, trial.config["number"], 1, score, {"mood": score}, None)
    Bank(logged.folder.bank).put(record, {"mood": {"validation": predictions}})
    return score


def finish(logged: Any, trial: Any, score: float, **more: Any) -> None:
    best = {"best_score": score, "best_epoch": 1, "best_task_scores": {"mood": score}, "parameters": 1000}
    logged.epoch(trial, 1, score, final=True, **{"began": 1001.0 - 60.0, **best, **more})
    logged.log.on_trial_complete(0, [], trial)


def test_every_objective_is_told_kept_and_tracked(measured, tmp_path):
    trial = measured.start()
    put_checkpoint(measured.folder.trial("t0000").best, number=0, score=0.8, size=5000)
    score = put(measured, trial, slice(0, 60))
    finish(measured, trial, score)
    disk = sum(file.stat().st_size for file in measured.folder.trial("t0000").best.iterdir())
    expected = {"score": 0.8, "gain": 0.0, "seconds": 60.0, "parameters": 1000.0, "disk": float(disk)}
    assert 5000 < disk < 10_000
    assert measured.record(trial).measured == expected
    assert measured.record(trial).seconds == 60.0
    metrics = measured.run(trial).metrics
    assert {name: [*metrics[name].values()][-1] for name in ALL} == expected
    (stored,) = optuna.load_study(storage=f"sqlite:///{tmp_path / 'optuna.db'}", study_name="s").trials
    assert stored.values == [expected[name] for name in ALL]


def test_a_gain_is_the_weighted_mean_over_tasks(measured, store):
    trial = measured.start()
    put(measured, trial, slice(0, 60))
    bank = Bank(measured.folder.bank)
    mood = bank.predictions("t0000", "mood", "validation")
    tone = replace(mood, labels=(LABELS + 1) % 3)  # right where the mood is wrong
    record = CheckpointRecord("t0000", 0, 1, 0.8, {}, None)
    bank.put(record, {"mood": {"validation": mood}, "tone": {"validation": tone}})
    store.finish("t0000", state=TrialState.FINISHED, score=0.5, measured=dict.fromkeys(ALL, 0.0))
    better = measured.start()
    put(measured, better, slice(0, 30))
    sure = bank.predictions("t0001", "mood", "validation")
    record = CheckpointRecord("t0001", 1, 1, 0.9, {}, None)
    bank.put(record, {"mood": {"validation": sure}, "tone": {"validation": replace(sure, labels=tone.labels)}})
    other = replace(MOOD, name="tone")
    gains = []
    for tasks in ([MOOD], [other], [MOOD, other], [replace(MOOD, weight=3.0), other]):
        measure = Measure(["gain"], folder=measured.folder, store=store, tasks=tasks)
        gains.append(measure("t0001", seconds=0, parameters=0)["gain"])
    assert gains[0] > 0.05
    assert gains[0] != gains[1]
    assert gains[2] == pytest.approx((gains[0] + gains[1]) / 2)
    assert gains[3] == pytest.approx((3 * gains[0] + gains[1]) / 4)


def test_a_gain_counts_the_trials_that_were_told_as_finished_before_and_no_others(measured, store):
    running, stopped, first, second = (measured.start() for _ in range(4))
    for trial in (running, stopped, first, second):
        put(measured, trial, slice(0, 45))
    store.finish(stopped.config["key"], state=TrialState.STOPPED)
    for trial in (first, second):
        finish(measured, trial, 0.85)
    assert measured.record(first).measured["gain"] == 0
    assert measured.record(second).measured["gain"] == pytest.approx(0, abs=1e-6)
    again = Measure(["gain"], folder=measured.folder, store=store, tasks=[MOOD])  # of a resumed study
    third = measured.start()
    put(measured, third, slice(200, 300))
    assert again(third.config["key"], seconds=0, parameters=0)["gain"] == pytest.approx(
        measured.log._ender._measure(third.config["key"], seconds=0, parameters=0)["gain"]
    )


def test_a_study_halts_where_the_predictions_of_an_ended_trial_cannot_be_read(measured):
    lost = measured.start()
    finish(measured, lost, 0.8)
    assert isinstance(measured.log.failure, StorageError)
    assert measured.record(lost).state is TrialState.RUNNING  # a resumed study ends it again


def test_an_earlier_trial_whose_predictions_cannot_be_read_is_left_out_of_the_ensemble(measured, store, caplog):
    for trial in (sound := measured.start(), damaged := measured.start()):
        put(measured, trial, slice(0, 45))
    finish(measured, damaged, 0.85)
    shutil.rmtree(measured.folder.bank / damaged.config["key"])
    measured.log._ender._measure = Measure(ALL, folder=measured.folder, store=store, tasks=[MOOD])  # of a resumed study
    finish(measured, sound, 0.85)
    assert measured.record(sound).measured["gain"] == 0  # as of the first one
    assert "The trial t0001 is left out of the ensemble" in caplog.text


def test_the_seconds_are_those_of_all_attempts_up_to_their_last_reports(measured):
    trial = measured.start()
    measured.epoch(trial, 1, 0.5, began=991.0)  # told at 1001
    measured.epoch(trial, 2, 0.5, began=991.0)
    assert [proposal.resumption.seconds for proposal in measured.store.unfinished()] == [11.0]
    put(measured, trial, slice(0, 45))
    finish(measured, trial, 0.85, began=1000.0)  # by other workers
    assert measured.record(trial).measured["seconds"] == 11.0 + 1.0


def test_predictions_of_the_best_trials_alone_are_kept(measured, monkeypatch):
    monkeypatch.setattr("tutti.orchestration.driver.objectives.MOST", 2)
    for wrong in (60, 30, 45, 90):
        trial = measured.start()
        finish(measured, trial, put(measured, trial, slice(0, wrong)))
    measured.log._ender._measure("t0003", seconds=0, parameters=0)
    assert [score for score, _ in measured.log._ender._measure._best["mood"]] == [0.9, 0.85]
