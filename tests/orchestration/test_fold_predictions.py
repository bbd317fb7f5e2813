"""Predictions of a trial's folds, put together for each kind of task."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest

from tutti.bank.bank import Bank
from tutti.config.folder import fold_name
from tutti.data.encode import EncodedPart
from tutti.orchestration.worker.folds import _combined, _fold_parts, _score
from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task

FOLDS = np.array([0, 1, 1, 0, -1, 1, 0, 1, 0, 1])  # the fifth row trains in every fold
TASKS = {
    "ordered": Task("t", ("a", "b", "c"), False, "quadratic_kappa", "csv", "ordered"),
    "labels": Task("t", ("a", "b", "c"), False, "macro_f1", "csv", "labels"),
    "value": Task("t", (), False, "pearson", "csv", "value"),
    "values": Task("t", ("a", "b", "c"), False, "mcrmse", "csv", "values"),
    "tokens": Task("t", ("O", "B-a", "I-a"), False, "entity_f1", "csv", "tokens", unit="word"),
}


def _labels(task: Task, rows: int, rng: np.random.Generator) -> np.ndarray:
    if task.kind.name == "ordered":
        return np.arange(rows) % 3
    if task.kind.sequential:  # the first fold's rows are short
        return np.where(np.arange(5) < np.where(FOLDS == 0, 2, 5)[:, None], 1, -1)
    labels = rng.integers(2, size=task.kind.shape(rows, task.outputs)).astype(np.float32)
    if labels.size > rows:
        labels[0, 1] = np.nan
    return labels


def _outputs(task: Task, rows: int, rng: np.random.Generator, labels: np.ndarray | None = None) -> np.ndarray:
    if task.kind.sequential:
        outputs = rng.dirichlet(np.ones(3), (rows, 5)).astype(np.float32)
        outputs[np.tile(np.arange(5) > 3, (rows, 1)) if labels is None else labels == -1] = np.nan
        return outputs
    outputs = rng.random(task.kind.shape(rows, task.outputs)).astype(np.float32)
    return outputs / outputs.sum(axis=1, keepdims=True) if task.kind.exclusive else outputs


def _part(prefix: str, labels: np.ndarray | None, rows: int) -> EncodedPart:
    return EncodedPart(
        ids=np.array([f"{prefix}{row}" for row in range(rows)]),
        encoded=datasets.Dataset.from_dict({"input_ids": [[2, 4, 3]] * rows, "length": [3] * rows}),
        lengths=np.full(rows, 3, dtype=np.int32),
        labels=labels,
        weights=np.ones(rows, dtype=np.float32),
        pad_token_id=0,
    )


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_each_row_is_predicted_by_its_fold_and_other_rows_by_the_mean_of_all(task: Task, tmp_path: Path) -> None:
    rng, validated = np.random.default_rng(0), np.flatnonzero(FOLDS >= 0)
    labels = _labels(task, len(FOLDS), rng)
    train = _part("r", labels, len(FOLDS))
    parts = {
        "train": train,
        "validation": _part("r", labels[validated], len(validated)),
        "test": _part("t", None, 4),
    }
    bank, said = Bank(tmp_path), []
    for fold in (0, 1):
        of_fold = _fold_parts(parts, FOLDS, fold)
        np.testing.assert_array_equal(of_fold["train"].labels, labels[fold != FOLDS])
        rows = len(of_fold["validation"].ids)
        own = {"validation": _outputs(task, rows, rng, of_fold["validation"].labels), "test": _outputs(task, 4, rng)}
        said.append(own)
        predictions = {
            name: Predictions.of(task, ids=of_fold[name].ids, outputs=outputs, labels=of_fold[name].labels)
            for name, outputs in own.items()
        }
        bank.put(CheckpointRecord(fold_name(fold), fold, 1, 0.5, {"t": 0.5}, None), {"t": predictions})
    combined = _combined(bank, [task], {"t": parts}, {"t": FOLDS}, 2)["t"]
    of_row = FOLDS[validated]
    for fold, own in enumerate(said):
        np.testing.assert_array_equal(combined["validation"].outputs[of_row == fold], own["validation"])
    np.testing.assert_array_equal(combined["validation"].labels, labels[validated])
    mean = (said[0]["test"] + said[1]["test"]) / 2
    mean = mean[:, :4] if task.kind.sequential else mean  # as many units as the longest row
    np.testing.assert_allclose(combined["test"].outputs, mean, rtol=1e-6)
    assert combined["test"].kind_name == task.kind_name
    assert np.isfinite(_score(task, combined["validation"], []))
