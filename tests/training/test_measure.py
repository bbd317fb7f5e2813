from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tutti.data.encode import EncodedPart
from tutti.tasks.task import Task
from tutti.training.measure import measure

MOOD = Task(name="mood", names=("no", "yes"), pair=False, metric="accuracy", submission="csv")
VALUE = Task(name="value", names=(), pair=False, metric="pearson", submission="csv")


def test_the_loss_of_classes_is_the_mean_of_the_negative_logarithms_of_the_labels_probabilities(
    make_part: Callable[..., EncodedPart],
) -> None:
    part = replace(make_part(3, classes=2, seed=0), labels=np.array([0, 1, 1]))
    outputs = np.array([[0.5, 0.5], [0.75, 0.25], [0.2, 0.8]], dtype=np.float32)
    _, values = measure(MOOD, part, outputs)
    assert values["mood/loss"] == pytest.approx(-(math.log(0.5) + math.log(0.25) + math.log(0.8)) / 3)
    assert values["mood/accuracy"] == pytest.approx(2 / 3)


def test_a_label_that_a_model_thinks_impossible_has_a_large_loss_and_not_an_infinite_one(
    make_part: Callable[..., EncodedPart],
) -> None:
    part = replace(make_part(1, classes=2, seed=0), labels=np.array([0]))
    loss = measure(MOOD, part, np.array([[0.0, 1.0]], dtype=np.float32))[1]["mood/loss"]
    assert 50 < loss < math.inf


def test_the_loss_of_a_regression_is_the_mean_squared_error_on_the_labels_scale(
    make_part: Callable[..., EncodedPart],
) -> None:
    part = replace(make_part(3, classes=2, seed=0), labels=np.array([1.0, 2.0, 40.0], dtype=np.float32))
    _, values = measure(VALUE, part, np.array([1.0, 4.0, 10.0], dtype=np.float32))
    assert values["value/loss"] == pytest.approx((0 + 4 + 900) / 3)
    assert set(values) == {"value/loss", "value/pearson", "value/spearman"}
