"""A study's folder as `tutti tune` leaves it, made without training: real stores and a bank, few bytes of weights."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study
from tutti.config.study import StudyConfig
from tutti.modeling.checkpoint import METADATA
from tutti.modeling.heads import HeadOptions
from tutti.records import CheckpointRecord, TrialState
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.workflows import stores

CONFIG = {
    "study": "moods",
    "backbone": "b",
    "tasks": {"mood": {"layout": "competition", "train": "/nowhere"}},
    "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-4, "high": 1e-3}},
    "search": {"trials": 3, "sampler": "random"},
}
TASK = Task("mood", ("a", "b"), pair=False, metric="macro_f1", submission="competition")
NONE: dict[str, Any] = {"parameters": {}, "tags": {}}


@dataclass(frozen=True)
class StoredStudy:
    """A study's folder, with access to its stores."""

    folder: StudyFolder

    @property
    def config(self) -> StudyConfig:
        return StudyConfig.model_validate(CONFIG)

    def tracker(self) -> MlflowTracker:
        return MlflowTracker(self.folder.mlflow_uri, experiment="moods", owner=self.folder.owner)

    def runs(self) -> list[Any]:
        """Every run that MLflow shows."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.folder.mlflow_uri)
        return client.search_runs([client.get_experiment_by_name("moods").experiment_id])

    def states(self) -> dict[str, tuple[str, str]]:
        """By trial key: MLflow's status and the state tag of its run. Fails if a key has two runs."""
        runs = self.runs()
        found = {run.data.tags.get("tutti.trial", ""): run for run in runs}
        assert len(found) == len(runs)
        return {key: (run.info.status, run.data.tags["tutti.state"]) for key, run in found.items()}

    def copy(self, place: Path) -> StoredStudy:
        return StoredStudy(StudyFolder(shutil.copytree(self.folder.path, place, symlinks=True)))


def make_stored_study(path: Path) -> StoredStudy:
    """Makes trials t0000 (finished), t0001 (stopped early) and t0002 (to be resumed: its driver was killed)."""
    study = StoredStudy(StudyFolder(path))
    path.mkdir(parents=True)
    study.folder.study_file.write_text(dump_study(study.config))
    store = stores.open_store(study.config, study.folder)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    tracker = study.tracker()
    tracker.start_study(**NONE, files=[])
    ends = {0: TrialState.FINISHED, 1: TrialState.STOPPED, 2: None}
    for number, state in ends.items():
        key, score = store.ask().key, 0.9 - number / 10
        tracker.start_trial(key, number=number, parameters={}, tags={"tutti.checkpoint": str(path / "trials" / key)})
        store.report(key, epoch=1, score=score, task_scores={"mood": score})
        put_checkpoint(study.folder.trial(key).best, number=number, score=score)
        if state is None:
            tracker.end_trial(key, state=TrialState.INTERRUPTED, reason=None, metrics={}, tags={})
            put_state(study, key)
        else:
            tracker.end_trial(key, state=state, reason=None, metrics={"score": score}, tags={})
            store.finish(key, state=state)
    put_predictions(study, 0, score=0.9)
    tracker.end_study(state=TrialState.INTERRUPTED, metrics={})
    store.close()
    return study


def put_state(study: StoredStudy, key: str) -> Path:
    """Writes a resume state that consists of one file."""
    state = study.folder.trial(key).resume / "stage-0-step-3"
    state.mkdir(parents=True)
    (state / "manifest.json").write_text("{}")
    return state


def put_checkpoint(
    best: Path, *, number: int, score: float, task_scores: Mapping[str, float] | None = None, size: int = 7
) -> None:
    """Writes a checkpoint whose weights are ``size`` zero bytes."""
    best.mkdir(parents=True)
    weights = bytes(size)
    (best / "model.safetensors").write_bytes(weights)
    metadata = {
        "format": 1,
        "tasks": [asdict(TASK)],
        "heads": asdict(HeadOptions()),
        "key": f"t{number:04d}",
        "number": number,
        "epoch": 1,
        "score": score,
        "task_scores": dict(task_scores or {"mood": score}),
        "max_length": 128,
        "adapter": None,
        "base": None,
        "files": {"model.safetensors": hashlib.sha256(weights).hexdigest()},
    }
    (best / METADATA).write_text(json.dumps(metadata))


def put_predictions(
    study: StoredStudy, number: int, *, score: float, task_scores: Mapping[str, float] | None = None, seed: int = 0
) -> None:
    rng = np.random.default_rng(seed)
    predictions = Predictions(
        ids=np.array([f"r{row}" for row in range(20)]),
        outputs=rng.dirichlet([1.0, 1.0], size=20).astype(np.float32),
        labels=rng.integers(2, size=20),
        names=("a", "b"),
    )
    key, scores = f"t{number:04d}", dict(task_scores or {"mood": score})
    record = CheckpointRecord(key, number, 1, score, scores, str(study.folder.trial(key).best))
    Bank(study.folder.bank).put(record, {task: {"validation": predictions} for task in scores})
