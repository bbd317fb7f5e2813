from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tutti.bank.bank import Bank
from tutti.outputs import pictures
from tutti.outputs.election.poll import Rule
from tutti.outputs.submission.submission import Formats
from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task

ROWS = {"validation": 200, "test": 60, "test-round1": 30, "unlabeled": 150}


@dataclass(frozen=True)
class Study:
    """A finished study's bank, with members that are each correct on some rows."""

    bank: Bank
    tasks: tuple[Task, ...]
    ids: dict[str, dict[str, np.ndarray]]
    labels: dict[str, np.ndarray]
    truth: dict[tuple[str, str], np.ndarray]  # by task and part

    def tests(self) -> dict[str, dict[str, np.ndarray]]:
        return {
            task: {part: ids for part, ids in parts.items() if part.startswith("test")}
            for task, parts in self.ids.items()
        }

    def validation(self) -> dict[str, pd.DataFrame]:
        """Every row has a text of its own."""
        validation = {task: parts["validation"] for task, parts in self.ids.items()}
        return {task: pd.DataFrame({"id": ids, "text": ids}) for task, ids in validation.items()}

    def unlabelled(self, task: str) -> pd.DataFrame:
        ids = self.ids[task]["unlabeled"]
        return pd.DataFrame({"id": list(ids), "text": [f'row "{each}" of {task}' for each in ids]})

    def ensemble(self, out: Path, **changes: Any) -> dict[str, Any]:
        """Arguments of ``write_ensemble``."""
        plain = {
            "study": "demo",
            "recipe_name": "baseline",
            "tasks": self.tasks,
            "validation": self.validation(),
            "test_ids": self.tests(),
            "bank": self.bank,
            "rule": Rule(top=3),
            "submission": Formats(),
        }
        return {**plain, "out": out, **changes}


TASKS = (
    Task("emotion", ("happy", "sad", "angry"), pair=False, metric="macro_f1", submission="competition"),
    Task("CoLA", ("0", "1"), pair=False, metric="matthews", submission="glue"),
    Task("topic", ("100", "101", 'a,"b"'), pair=False, metric="accuracy", submission="csv"),
)
# topic has no unlabelled rows, CoLA no second test file
PARTS = {
    "emotion": ("validation", "test", "test-round1", "unlabeled"),
    "CoLA": ("validation", "test", "unlabeled"),
    "topic": ("validation", "test", "test-round1"),
}


def prior(task: Task, skewed: bool) -> np.ndarray:
    """The classes' shares."""
    shares = np.ones(len(task.names))
    shares[-1] = 0.25 if skewed else 1
    return shares / shares.sum()


def noisy_predictions(
    task: Task, part: str, truth: np.ndarray, *, seed: int, skill: float, lean: np.ndarray
) -> Predictions:
    """Noisy probabilities that favour the true class by ``skill`` and every class by its ``lean``."""
    rng = np.random.default_rng(seed)
    classes = len(task.names)
    logits = rng.normal(size=(len(truth), classes)) * 1.5 + skill * np.eye(classes)[truth] + lean
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return Predictions(
        ids=np.array([f"{part} {row}" for row in range(len(truth))]),
        outputs=probabilities.astype(np.float32),
        labels=truth if part == "validation" else None,
        names=task.names,
    )


@pytest.fixture
def rendered() -> None:
    """For tests that look at the pictures themselves."""


@pytest.fixture(autouse=True)
def composed(request, monkeypatch) -> None:
    """Composes pictures as ever but does not render them, which took most of the time of these tests."""
    if request.path.name != "test_pictures.py" and "rendered" not in request.fixturenames:
        monkeypatch.setattr(pictures, "_png", lambda figure: b"\x89PNG")


@pytest.fixture
def make_finished(tmp_path) -> Callable[..., Study]:
    def make(
        members: int = 5,
        *,
        skill: float = 2.0,
        growth: float = 0.1,
        lacking: tuple[str, str] | None = None,
        validation: int = ROWS["validation"],
        skewed: bool = False,
    ) -> Study:
        """Each member is more skilful than the previous one by ``growth``; if both are 0, all are random.

        ``skewed`` makes the last class rare, and each member slow to say it.
        """
        rng = np.random.default_rng(0)
        rows = ROWS | {"validation": validation}
        truth = {
            (task.name, part): rng.choice(len(task.names), size=rows[part], p=prior(task, skewed))
            for task in TASKS
            for part in PARTS[task.name]
        }
        bank = Bank(tmp_path / "bank")
        for number in range(members):
            predictions = {
                task.name: {
                    part: noisy_predictions(
                        task,
                        part,
                        truth[task.name, part],
                        seed=100 * number + index,
                        skill=skill + growth * number,
                        lean=2 * np.log(prior(task, skewed)),
                    )
                    for index, part in enumerate(PARTS[task.name])
                    if number or (task.name, part) != lacking
                }
                for task in TASKS
            }
            scores = {
                task.name: Scorer.of(task).score(
                    predictions[task.name]["validation"].labels, predictions[task.name]["validation"].outputs
                )
                for task in TASKS
            }
            mean = float(np.mean(list(scores.values())))
            bank.put(CheckpointRecord(f"t{number:04d}", number, 2, mean, scores, None), predictions)
        ids = {
            task.name: {part: np.array([f"{part} {row}" for row in range(rows[part])]) for part in PARTS[task.name]}
            for task in TASKS
        }
        return Study(bank, TASKS, ids, {task.name: truth[task.name, "validation"] for task in TASKS}, truth)

    return make
