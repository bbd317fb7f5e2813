"""A tiny study on disk, of two tasks and a random backbone, and one that ``tutti tune`` ran to its end."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from word_backbone import save_bert, save_tokenizer

from tutti.config.folder import StudyFolder

CLASSES = {"mood": ("calm", "glad", "sad"), "same": ("0", "1")}


@dataclass(frozen=True)
class Study:
    """A study file with its data, and the folder that its study will have."""

    file: Path
    folder: StudyFolder

    def resume_epochs(self, key: str) -> list[int]:
        """Epochs of the states that a trial could go on from now."""
        epochs = []
        for manifest in self.folder.trial(key).resume.glob("stage-*/manifest.json"):
            with suppress(FileNotFoundError):  # an older state goes as a newer one comes
                epochs.append(json.loads(manifest.read_text(encoding="utf8"))["position"]["epoch"])
        return sorted(epochs)

    def reported_epochs(self, key: str) -> list[int]:
        """Every epoch a trial trained and reported, in the order it did; one that it trained again comes again.

        A report that was sent again, since a crash may have lost it, tells of the same time and counts once.
        """
        events = map(json.loads, (self.folder.path / "tracking.jsonl").read_text(encoding="utf8").splitlines())
        reports = [event for event in events if "validation_score" in event.get("metrics", ()) and event["key"] == key]
        return [epoch for epoch, _ in dict.fromkeys((event["step"], event["at"]) for event in reports)]

    def tracked_epochs(self, key: str) -> list[int]:
        """The epochs whose score MLflow has of a trial, one that it has twice as often, in order of their time."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self.folder.mlflow_uri)
        history = client.get_metric_history(self.runs()[key].info.run_id, "validation_score")
        return [metric.step for metric in sorted(history, key=lambda metric: (metric.timestamp, metric.step))]

    def records(self) -> list[Any]:
        """The trials as the study's store knows them, or none while it has no store."""
        from tutti.errors import TuttiError
        from tutti.search.study_store import StudyStore

        try:
            store = StudyStore.load(self.folder.optuna_url, name=self.folder.name)
        except TuttiError:
            return []
        try:
            return store.records()
        finally:
            store.close()

    def runs(self, uri: str | None = None) -> dict[str, Any]:
        """Trial key to its MLflow run; the study's own has the key ``""``. No key may have two."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=uri or self.folder.mlflow_uri)
        experiment = client.get_experiment_by_name(self.folder.name)
        runs = client.search_runs([experiment.experiment_id])
        found = {run.data.tags.get("tutti.trial", ""): run for run in runs}
        assert len(found) == len(runs)
        return found


@dataclass(frozen=True)
class Finished:
    """A study that ``tutti tune`` ran to its end, its output, and what was left behind of its processes."""

    study: Study
    output: str
    left_behind: list[str]

    def copy(self, folder: Path) -> Study:
        """A copy to change. Its folder is another, all else is the same."""
        shutil.copytree(self.study.folder.path.parent, folder / "studies")
        shutil.copy2(self.study.file, folder / "study.yaml")
        return Study(folder / "study.yaml", StudyFolder(folder / "studies" / self.study.folder.name))


def write_data(folder: Path) -> None:
    """Two tasks in the competition layout, a single one and a pair, a random backbone without dropout, and a recipe."""
    import numpy as np

    words = [f"w{number}" for number in range(60)]
    for number, (task, classes) in enumerate(CLASSES.items()):
        for part, rows in {"train": 120, "test": 23, "unlabeled": 37}.items():
            rng = np.random.default_rng([number, rows])
            lines = []
            for row in rng.permutation(rows):  # ids are not in order, as in no real file they have to be
                label = int(rng.integers(len(classes)))
                texts = [" ".join([words[label], *rng.choice(words[10:], size=rng.integers(2, 8))])]
                if task == "same":
                    texts.append(" ".join([words[5], *rng.choice(words[10:], size=3)]))
                lines.append("\t".join([f"{part[0]}{row}", *texts, *([classes[label]] if part == "train" else [])]))
            (folder / f"{task}_{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")
    save_tokenizer(folder / "backbone", words)
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    save_bert(folder / "backbone", num_hidden_layers=1, **no_dropout)
    recipe = {"members": {"top": 2}, "pseudo_labels": {"threshold": 0.3, "max_drift": None}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


def write_study(folder: Path, data: Path, **changes: Any) -> Study:
    """Writes the tiny study below a folder, with changes by dotted key, and leaves its data where they are."""
    document: dict[str, Any] = {
        "study": "tiny",
        "backbone": str(data / "backbone"),
        "tasks": {
            task: {
                "layout": "competition",
                "pair": task == "same",
                **{part: str(data / f"{task}_{part}.tsv") for part in ("train", "test", "unlabeled")},
            }
            for task in CLASSES
        },
        "split": {"validation": 0.25},
        "training": {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 16,
            "max_length": 16,
            "head_dropout": 0.0,
            "logging_steps": 2,
        },
        "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-3, "high": 1e-2}},
        "search": {"trials": 2, "scheduler": "none"},
        "resources": {"workers": 1, "cpus_per_worker": 1, "concurrent_trials": 2},
        "storage": {"path": str(folder / "studies")},
        "ensemble": {"recipe": str(data / "recipe.yaml")},
    }
    for key, value in changes.items():
        node, (*outer, last) = document, key.split("__")
        for name in outer:
            node = node.setdefault(name, {})
        node[last] = value
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "study.yaml"
    file.write_text(json.dumps(document, indent=1), encoding="utf8")  # JSON is YAML too
    return Study(file, StudyFolder(folder / "studies" / document["study"]))
