from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tutti.tasks.task import Task
from tutti.training.loop.measure import measure, measure_answers, study_loss

MOOD = Task(name="mood", names=("no", "yes"), pair=False, metric="accuracy", submission="csv")
VALUE = Task(name="value", names=(), pair=False, metric="pearson", submission="csv")


def test_the_loss_of_classes_is_the_mean_of_the_negative_logarithms_of_the_labels_probabilities(make_part):
    part = replace(make_part(3, classes=2, seed=0), labels=np.array([0, 1, 1]))
    outputs = np.array([[0.5, 0.5], [0.75, 0.25], [0.2, 0.8]], dtype=np.float32)
    _, values = measure(MOOD, part, outputs)
    assert values["mood/loss"] == pytest.approx(-(math.log(0.5) + math.log(0.25) + math.log(0.8)) / 3)
    assert values["mood/accuracy"] == pytest.approx(2 / 3)


def test_a_label_that_a_model_thinks_impossible_has_a_large_loss_and_not_an_infinite_one(make_part):
    part = replace(make_part(1, classes=2, seed=0), labels=np.array([0]))
    loss = measure(MOOD, part, np.array([[0.0, 1.0]], dtype=np.float32))[1]["mood/loss"]
    assert 50 < loss < math.inf


def test_the_loss_of_a_regression_is_the_mean_squared_error_on_the_labels_scale(make_part):
    part = replace(make_part(3, classes=2, seed=0), labels=np.array([1.0, 2.0, 40.0], dtype=np.float32))
    _, values = measure(VALUE, part, np.array([1.0, 4.0, 10.0], dtype=np.float32))
    assert values["value/loss"] == pytest.approx((0 + 4 + 900) / 3)
    assert set(values) == {"value/loss", "value/pearson", "value/spearman"}


def test_the_loss_of_a_study_weighs_tasks_and_counts_numbers_in_units_of_their_spread(make_part):
    tasks = [replace(MOOD, weight=3.0), VALUE]
    values = np.array([1.0, 2.0, 40.0], dtype=np.float32)
    parts = {name: replace(make_part(3, classes=2, seed=0), labels=np.array([0, 1, 1])) for name in ("mood", "value")}
    outputs = {"mood": np.full((3, 2), 0.5, dtype=np.float32), "value": values + 2}
    losses = []
    for unit in (1, 1000):  # of what the numbers measure
        parts["value"] = replace(parts["value"], labels=values * unit)
        scales = {"mood": np.array(1.0), "value": np.array(4.0 * unit)}
        losses.append(study_loss(tasks, parts, {**outputs, "value": (values + 2) * unit}, scales=scales))
    assert losses == pytest.approx([(3 * math.log(2) + 0.25) / 4] * 2)


def test_answers_are_scored_by_the_mean_over_groups_with_names_that_mlflow_takes(make_part):
    part = replace(
        make_part(4, classes=2, seed=0), groups=np.array(["law (bar)", "", "law (bar)", "art"], dtype=object)
    )
    mean, by_group = measure_answers(part, np.array([True, False, False, True]))
    assert by_group == {"art": 1.0, "law _bar_": 0.5, "none": 0.0}
    assert mean == pytest.approx(0.5)
