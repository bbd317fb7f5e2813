"""What follows a run's evaluations: schedules that lower the rate, and the end of a stage that gets no better."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from training_runs import Tune, assert_same_end, newest_state
from transformers.optimization import GreedyLR

from tutti.data.encode import EncodedPart

OFTEN = {"evals_per_epoch": 2, "logging_steps": 1, "layer_lr_decay": 0.5}
Parts = dict[str, dict[str, EncodedPart]]


@pytest.fixture(scope="module")
def noisy(parts: Parts) -> Parts:
    """Validation labels that are right by chance alone: the score goes up and down, and the loss rises."""
    rng, noisy = np.random.default_rng(0), {}
    for name, own in parts.items():
        assert own["validation"].labels is not None
        labels = rng.permutation(own["validation"].labels)
        noisy[name] = {**own, "validation": replace(own["validation"], labels=labels)}
    return noisy


def followed(schedule: Any, rate: float, values: list[float], settings: Mapping[str, Any]) -> list[float]:
    """The rate after each of the values."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=rate)
    made, rates = schedule(optimizer, threshold_mode="abs", **settings), []
    for value in values:
        made.step(value)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize(
    ("name", "schedule", "best_by", "mode"),
    [("reduce_lr_on_plateau", ReduceLROnPlateau, "score", "max"), ("greedy", GreedyLR, "loss", "min")],
)
def test_a_schedule_follows_the_evaluations_and_a_resumed_run_ends_bit_equal(
    tune: Tune, noisy: Parts, tmp_path: Path, name: str, schedule: Any, best_by: str, mode: str
) -> None:
    settings = {"patience": 0, "factor": 0.5, "min_lr": 1e-6}
    keys: dict[str, Any] = {**OFTEN, "lr_scheduler_type": name, "lr_scheduler_kwargs": settings, "best_by": best_by}
    done, reports = tune(tmp_path / "whole", parts=noisy, **keys)
    values = [report.metrics["validation_loss"] if best_by == "loss" else report.score for report in reports]
    rates = followed(schedule, 3e-3, values, {**settings, "mode": mode})
    assert len(set(rates)) > 1
    used = [{values["learning_rate"] for _, values in report.steps} for report in reports[1:]]
    first_group = [next(iter(each)) for each in used]
    assert all(len(each) == 1 for each in used)
    assert first_group == pytest.approx(first_group[0] / rates[0] * np.array(rates[:-1]))
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", parts=noisy, stop_after=3, **keys)
    resumed, later = tune(tmp_path / "cut", parts=noisy, **keys)
    assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")
    assert later == [replace(reports[2], repeated=True), *reports[3:]]


def test_a_schedule_that_waits_longer_than_a_run_is_told(tune: Tune, tmp_path: Path) -> None:
    notices: list[str] = []
    schedule = {"lr_scheduler_type": "reduce_lr_on_plateau", "early_stopping_patience": 3, "num_train_epochs": 1}
    tune(tmp_path, on_notice=notices.append, **schedule)
    assert [notice.split(",")[0] for notice in notices] == [
        "early_stopping_patience is 3",
        "reduce_lr_on_plateau changes the rate after more than 10 evaluations alike",
    ]


def waited(folder: Path) -> int:
    return json.loads((newest_state(folder) / "manifest.json").read_text())["position"]["waited"]


def test_a_run_ends_after_its_patience_with_its_best_weights_and_counts_on_when_it_is_resumed(
    tune: Tune, noisy: Parts, tmp_path: Path
) -> None:
    _, all_reports = tune(tmp_path / "all", parts=noisy, best_by="loss", **OFTEN)
    losses = [report.metrics["validation_loss"] for report in all_reports]
    best = int(np.argmin(losses))
    keys: dict[str, Any] = {**OFTEN, "best_by": "loss", "early_stopping_patience": 2}
    assert best + 2 < len(losses)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", parts=noisy, stop_after=best + 2, **keys)
    assert waited(tmp_path / "cut") == 1
    done, later = tune(tmp_path / "cut", parts=noisy, **keys)
    assert [report.epoch for report in later] == [best + 2, best + 3]
    assert [report.done for report in later] == [False, True]
    assert done.checkpoint.epoch == best + 1
    again, repeated = tune(tmp_path / "cut", parts=noisy, **keys)
    assert repeated == [replace(later[-1], repeated=True)]
    assert again.checkpoint == done.checkpoint


def test_a_threshold_ends_a_stage_that_gains_too_little_and_the_next_stage_begins(
    tune: Tune, noisy: Parts, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"early_stopping_patience": 2, "early_stopping_threshold": 1.0, "evals_per_epoch": 2}
    stages = [{}, {"freeze_encoder": True, "num_train_epochs": 2}]
    _, reports = tune(tmp_path, parts=noisy, stages=stages, **keys)
    # The first evaluation is the best so far; within the second epoch the patience is over. Epochs are counted whole.
    assert [report.epoch for report in reports] == [1, 2, 3, 5, 6]
    assert [report.ends_stage for report in reports] == [False, False, True, False, False]
    assert [report.done for report in reports] == [False] * 4 + [True]
    steps = [step for report in reports for step, _ in report.steps]
    assert steps == sorted(set(steps))
