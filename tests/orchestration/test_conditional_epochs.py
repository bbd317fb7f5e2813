"""ASHA's longest training counts what a condition leaves open."""

from __future__ import annotations

import pytest

from tutti.config.study import StudyConfig
from tutti.orchestration.driver.schedulers import longest_training

LONG = {"type": "int", "low": 2, "high": 20, "when": {"adapter": "lora"}}
STAGES = [{"num_train_epochs": 4}, {"learning_rate": 1e-5}]


@pytest.mark.parametrize(
    ("training", "space", "epochs"),
    [
        ({"num_train_epochs": 30}, {"num_train_epochs": LONG}, 30),
        ({"num_train_epochs": 5}, {"num_train_epochs": LONG}, 20),
        ({"stages": STAGES}, {"stages.0.num_train_epochs": {**LONG, "high": 3}}, 4 + 3),
        ({"stages": STAGES}, {"stages.1.num_train_epochs": LONG, "num_train_epochs": {**LONG, "high": 30}}, 4 + 30),
    ],
)
def test_a_trial_that_does_not_draw_its_epochs_has_those_of_the_study(training, space, epochs):
    task = {"layout": "competition", "train": "train.tsv"}
    study = {"study": "s", "backbone": "b", "tasks": {"a": task}, "training": training, "search_space": space}
    assert longest_training(StudyConfig.model_validate(study)) == epochs
