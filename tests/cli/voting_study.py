"""A finished study with a bank, made without training: task files, prepared data, both stores and predictions."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study
from tutti.config.study import StudyConfig
from tutti.data.prepare import prepare
from tutti.records import CheckpointRecord, TrialState
from tutti.tasks.build import task_specs
from tutti.tasks.predictions import Predictions
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.workflows import stores

MOODS = {"calm": "the sea lies still", "glad": "what a bright day", "sad": "rain and nobody here"}
ROWS = {"train": 400, "test": 40, "pool": 60}
LAYOUT = {"layout": "competition"}


def write_files(folder: Path) -> None:
    """Writes the files of the tasks ``mood`` (three classes) and ``warmth`` (a regression), and the test labels."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, rows in ROWS.items():
        moods, warmth = rng.choice([*MOODS], size=rows), rng.normal(size=rows).round(3)
        for task, labels in {"mood": moods, "warmth": warmth}.items():
            texts = [f"{part[0]}{row}\t{MOODS[moods[row]]} <{row}>" for row in range(rows)]
            labelled = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
            (folder / f"{task}_{part}.tsv").write_text("\n".join(labelled if part == "train" else texts) + "\n")
            if part == "test":
                (folder / f"{task}_truth.tsv").write_text("\n".join(labelled) + "\n")


def make_study(
    folder: Path,
    name: str,
    *,
    trials: int = 4,
    tasks: Sequence[str] = ("mood", "warmth"),
    data: Path | None = None,
    extra_moods: Path | None = None,
) -> StudyFolder:
    """Makes the study ``name`` on the files of ``data`` (``folder/data``): finished ``trials``, and one stopped early.

    ``extra_moods`` is a file of more training rows of its task mood.
    """
    metrics = {"mood": "macro_f1", "warmth": "pearson"}
    config = StudyConfig.model_validate(
        {
            "study": name,
            "backbone": "b",
            "tasks": {
                task: {
                    **LAYOUT,
                    "metric": metrics[task],
                    **({"extra_train": [{"path": str(extra_moods)}]} if extra_moods and task == "mood" else {}),
                    **{key: str((data or folder / "data") / f"{task}_{part}.tsv") for key, part in PARTS.items()},
                }
                for task in tasks
            },
            "search_space": {
                "learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3},
                "pooling": {"type": "categorical", "choices": ["cls", "mean"]},
            },
            "search": {"sampler": "random"},
        }
    )
    place = StudyFolder(folder / "studies" / name)
    prepared = prepare(task_specs(config.tasks), validation=0.5, seed=0, folder=place.data)
    place.study_file.write_text(dump_study(config))
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if not (empty := folder / "mlflow.db").is_file():  # MLflow takes seconds to make its tables
        MlflowClient(tracking_uri=f"sqlite:///{empty}").search_experiments()
    shutil.copy(empty, place.path / "mlflow.db")
    store, tracker = (
        stores.open_store(config, place),
        MlflowTracker(
            place.mlflow_uri, experiment=name, owner=place.owner, artifact_location=place.mlflow_artifacts.as_uri()
        ),
    )
    tracker.start_study(parameters={}, tags={}, files=[])
    bank = Bank(place.bank)
    for number in range(trials + 1):
        trial = store.ask()
        tracker.start_trial(trial.key, number=number, parameters=trial.parameters, tags={})
        predictions = {task.name: _predictions_of(task, prepared, seed=number) for task in prepared.tasks}
        scores = {task.name: _score(task, predictions[task.name]["validation"]) for task in prepared.tasks}
        mean = float(np.mean([*scores.values()]))
        store.report(trial.key, epoch=1, score=mean, task_scores=scores)
        state = TrialState.FINISHED if number < trials else TrialState.STOPPED
        store.finish(trial.key, state=state, seconds=10.0 + 3 * number)
        tracker.end_trial(trial.key, state=state, reason=None, metrics={"score": mean}, tags={})
        if state is TrialState.FINISHED:
            bank.put(CheckpointRecord(trial.key, number, 1, mean, scores, None), predictions)
    tracker.end_study(state=TrialState.FINISHED, metrics={})
    store.close()
    return place


PARTS = {"train": "train", "test": "test", "unlabeled": "pool"}


def _predictions_of(task: Task, prepared: Any, *, seed: int) -> Mapping[str, Predictions]:
    rng = np.random.default_rng([seed, task.outputs])
    found = {}
    for part in ("validation", "test", "unlabeled"):
        rows = prepared.rows(task.name, part)
        labels = rows["label"].to_numpy() if "label" in rows else None
        common = {
            "ids": prepared.ids(task.name, part),
            "labels": labels if labels is None else labels.astype(np.int64 if task.kind.probabilistic else np.float32),
        }
        if not task.kind.probabilistic:
            truth = np.zeros(len(rows)) if labels is None else labels
            values = (truth + rng.normal(size=len(rows))).astype(np.float32)
            found[part] = Predictions(**common, outputs=values)
            continue
        truth = [next(place for place, text in enumerate(MOODS.values()) if text in row) for row in rows["text"]]
        logits = rng.normal(size=(len(rows), 3)) + 1.5 * np.eye(3)[truth]
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        found[part] = Predictions(**common, outputs=probabilities.astype(np.float32), names=task.names)
    return found


def _score(task: Task, predictions: Predictions) -> float:
    return Scorer.of(task).score(predictions.labels, predictions.outputs)
