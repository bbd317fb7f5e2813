"""Labels for a student with the same folds: what a fold's rows say cannot reach the student that is judged by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tutti.bank.bank import Bank
from tutti.config.recipe import PseudoLabels
from tutti.outputs.election.poll import Poll, Rule
from tutti.outputs.pseudo.folds import OfFold, without_fold
from tutti.outputs.pseudo.labels import label
from tutti.outputs.pseudo.pool import Pool
from tutti.records import CheckpointRecord
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.predictions import Predictions
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task

TASK = Task("mood", ("calm", "glad"), pair=False, metric="accuracy", submission="competition")
ROWS, POOL = 80, 10
FOLDS = {"mood": np.arange(ROWS) % 2}
LABELS = (np.arange(ROWS) // 2) % 2
TWIN = 3  # an unlabelled row like a training row of fold 0, whose label is wrong: a model that saw it says it again


def sure_of(classes: np.ndarray, confidence: float = 0.95) -> np.ndarray:
    probabilities = np.full((len(classes), 2), 1 - confidence, dtype=np.float32)
    probabilities[np.arange(len(classes)), classes] = confidence
    return probabilities


@pytest.fixture
def bank(tmp_path) -> Bank:
    """Two trials: each is right in one fold's rows alone. Models that trained on fold 0 have learnt its wrong row."""
    bank = Bank(tmp_path / "bank")
    truth = np.arange(POOL) % 2
    for number in range(2):
        known = FOLDS["mood"] == number
        validation = sure_of(np.where(known, LABELS, np.arange(ROWS) % 3 % 2))
        by_fold = [truth.copy(), truth.copy()]
        by_fold[1][TWIN] = 1 - truth[TWIN]  # the model that is judged on fold 1 has trained on fold 0
        unlabelled = [sure_of(each, 0.999 if fold else 0.9) for fold, each in enumerate(by_fold)]
        ids = np.array([f"u{row}" for row in range(POOL)])
        parts = {
            "validation": Predictions.of(
                TASK, ids=np.array([f"r{row}" for row in range(ROWS)]), outputs=validation, labels=LABELS
            ),
            "unlabeled": Predictions.of(TASK, ids=ids, outputs=np.mean(unlabelled, axis=0), labels=None),
        }
        for fold, outputs in enumerate(unlabelled):
            parts[f"unlabeled-fold-{fold}"] = Predictions.of(TASK, ids=ids, outputs=outputs, labels=None)
        score = Scorer.of(TASK).score(LABELS, validation)
        bank.put(CheckpointRecord(f"t000{number}", number, 2, score, {"mood": score}, None), {"mood": parts})
    return bank


def labels(bank: object, validation: dict[str, pd.DataFrame]) -> tuple[list[str], set[str]]:
    """The labels of the unlabelled rows, and who gave them."""
    rows = pd.DataFrame({"id": [f"u{row}" for row in range(POOL)], "text": [f"text {row}" for row in range(POOL)]})
    pool = Pool(rows, np.zeros(POOL, dtype=bool), np.full(2, 0.5), Competition(), ".csv", "5" * 64)
    poll = Poll("s", [TASK], validation, bank, Rule(top=1, by="task"), "r")
    found = label(poll, pools={"mood": pool}, labelling=PseudoLabels(select="all", max_drift=None))
    return found.rows("mood")["label"].tolist(), {member.key for member in found.report.tasks[0].members}


def test_a_row_that_models_know_by_heart_reaches_no_student_that_is_judged_by_it(bank: Bank, tmp_path: Path) -> None:
    rows = [f"r{row}" for row in range(ROWS)]
    validation = {"mood": pd.DataFrame({"id": rows, "text": rows})}
    planted, true = TASK.names[1 - TWIN % 2], TASK.names[TWIN % 2]
    assert labels(bank, validation)[0][TWIN] == planted  # the mean of all folds' models tells it to every student
    for fold, expected in ((0, true), (1, planted)):
        view = OfFold(bank, [TASK], FOLDS, fold=fold)
        given, members = labels(view, without_fold(validation, FOLDS, fold))
        assert given[TWIN] == expected
        assert members == {f"t000{1 - fold}"}  # neither do the fold's rows choose who votes
