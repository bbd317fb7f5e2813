"""Training on probabilities instead of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tutti.data.encode import EncodedPart
from tutti.tasks.task import Task
from tutti.training import FineTuned

Parts = Mapping[str, Mapping[str, EncodedPart]]
TRAINING = {"num_train_epochs": 2, "learning_rate": 1e-3, "head_dropout": 0.0, "bf16": False}


@pytest.fixture
def tune(make_tune: Callable[..., Any], backbone: Path, tmp_path: Path) -> Callable[..., FineTuned]:
    tune = make_tune(backbone, **TRAINING)
    return lambda parts, name, **training: tune(tmp_path / name, parts=parts, **training)[0]


def with_targets(parts: Parts, task: Task, targets: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    train = parts[task.name]["train"]
    soft = replace(train, targets=targets(np.eye(task.outputs, dtype=np.float32)[train.labels]))
    return {**parts, task.name: {**parts[task.name], "train": soft}}


@pytest.mark.parametrize(
    "training",
    [
        {"rdrop_alpha": 1.0, "label_smoothing_factor": 0.1},
        {"focal_gamma": 1.0, "class_weights": "balanced", "adversarial": "fgm", "loss_balancing": "uncertainty"},
    ],
)
def test_a_student_of_unsure_teachers_is_less_sure_with_every_loss(tune, parts, tasks, training):
    task = tasks[0]
    hard = tune(parts, "hard", **training)
    soft = tune(with_targets(parts, task, lambda certain: certain * 0.4 + 0.6 / task.outputs), "soft", **training)
    sure = [run.predictions[task.name]["test"].outputs.max(axis=1).mean() for run in (hard, soft)]
    assert sure[1] < sure[0]
