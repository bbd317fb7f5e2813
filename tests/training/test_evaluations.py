"""How often a run is evaluated and what it reports each time."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import EMA_AND_DROPOUT, TRAINING, Tune, final_weights, newest_state

from tutti.data.encode import EncodedPart
from tutti.modeling.checkpoint import load_checkpoint
from tutti.tasks.task import Task


def test_a_report_holds_scores_losses_and_the_steps_of_its_epoch(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path)
    first = reports[0]
    assert set(first.metrics) == {
        "train_loss",
        *("news.v1/train_loss", "news.v1/loss", "news.v1/macro_f1", "news.v1/accuracy"),
        *("mood/train_loss", "mood/loss", "mood/macro_f1", "mood/accuracy"),
    }
    assert first.task_scores == {
        "news.v1": first.metrics["news.v1/macro_f1"],
        "mood": first.metrics["mood/accuracy"],
    }
    assert first.score == pytest.approx(np.mean(list(first.task_scores.values())))
    assert [[step for step, _ in report.steps] for report in reports] == [[4, 8, 12], [16, 20, 24], [28, 32, 36]]
    assert set(first.steps[0][1]) == {"loss", "grad_norm", "learning_rate"}
    for report in reports:
        mean = np.mean([values["loss"] for _, values in report.steps])
        assert report.metrics["train_loss"] == pytest.approx(mean, rel=1e-5)


def test_training_steps_are_metered_and_a_resumed_run_goes_on_counting(
    tune: Tune, parts: dict[str, dict[str, EncodedPart]], tmp_path: Path
) -> None:
    within = {"num_train_epochs": 2, "state_steps": 5}
    began = time.perf_counter()
    done, reports = tune(tmp_path / "whole", **within)
    wall = time.perf_counter() - began
    trained = [own["train"] for own in parts.values()]
    rows, tokens = sum(len(part.ids) for part in trained), sum(int(part.lengths.sum()) for part in trained)
    assert [(each.usage.rows, each.usage.tokens) for each in reports] == [(rows, tokens), (2 * rows, 2 * tokens)]
    usage = done.checkpoint.usage
    assert usage is not None
    assert usage == reports[-1].usage
    assert 0 < usage.seconds < wall
    assert 50e6 < usage.memory < 10e9  # this process, whose libraries alone take more
    assert usage.gpu_memory == 0 or torch.cuda.is_available()
    assert usage.metrics["train_samples_per_second"] == pytest.approx(2 * rows / usage.seconds)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=1, **within)
    shutil.rmtree(newest_state(tmp_path / "cut"))  # that of the evaluation: it goes on from the fifth step before
    resumed, later = tune(tmp_path / "cut", **within)
    assert [each.usage.rows for each in later] == [rows, 2 * rows]
    assert resumed.checkpoint.usage is not None
    assert resumed.checkpoint.usage.tokens == 2 * tokens


def test_the_score_weighs_the_tasks(tune: Tune, tasks: tuple[Task, ...], tmp_path: Path) -> None:
    news, mood = tasks
    done, reports = tune(tmp_path, tasks=(replace(news, weight=3.0), mood))
    for report in reports:
        assert report.score == pytest.approx((3 * report.task_scores["news.v1"] + report.task_scores["mood"]) / 4)
    assert done.checkpoint.score == max(report.score for report in reports)
    assert [task.weight for task in load_checkpoint(tmp_path / "best")[1].tasks] == [3.0, 1.0]


def test_by_the_loss_the_weights_of_the_lowest_are_kept_with_their_score(tune, parts, tmp_path):
    rng, noisy = np.random.default_rng(0), {}  # right by chance: the surer the model, the higher the loss
    for name, own in parts.items():
        labels = own["validation"].labels
        assert labels is not None
        noisy[name] = {**own, "validation": replace(own["validation"], labels=rng.permutation(labels))}
    longer: dict[str, Any] = {"num_train_epochs": 8, "best_by": "loss", "parts": noisy}
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=5, **longer)
    _, early = tune(tmp_path / "early", **longer)
    done, late = tune(tmp_path, **longer)  # goes on from the fifth epoch
    losses = [(report.metrics["news.v1/loss"] + report.metrics["mood/loss"]) / 2 for report in early]
    assert [report.metrics["validation_loss"] for report in early] == pytest.approx(losses)
    best = int(np.argmin(losses))
    assert early[best].score < max(report.score for report in early)  # it is another epoch than by the score
    assert (done.checkpoint.epoch, done.checkpoint.score) == (best + 1, early[best].score)
    assert late[-1] == early[-1]


def test_a_task_s_training_loss_is_the_mean_over_its_rows_in_any_batches(make_tune, steady_backbone, tmp_path):
    tune = make_tune(steady_backbone, **TRAINING | {"num_train_epochs": 1, "learning_rate": 1e-12, "head_dropout": 0.0})
    (_, (small,)), (_, (large,)) = (tune(tmp_path / str(size), per_device_train_batch_size=size) for size in (8, 64))
    for name in ("news.v1/train_loss", "mood/train_loss"):
        assert small.metrics[name] == pytest.approx(large.metrics[name], rel=1e-4)


def test_the_last_part_of_an_epoch_is_logged_at_its_end(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path, logging_steps=5, num_train_epochs=1)
    assert [step for step, _ in reports[0].steps] == [5, 10, 12]


def test_an_epoch_is_evaluated_so_often_as_asked_for_and_that_changes_nothing_of_what_is_learnt(tune, tmp_path):
    tricks = {**EMA_AND_DROPOUT, "loss_balancing": "dynamic", "num_train_epochs": 3}
    _, plain = tune(tmp_path / "plain", **tricks)
    done, reports = tune(tmp_path / "often", evals_per_epoch=5, **tricks)
    assert [report.epoch for report in reports] == list(range(1, 16))
    assert [report.done for report in reports] == [False] * 14 + [True]
    assert [report.steps[-1][0] for report in reports[:6]] == [3, 5, 8, 10, 12, 15]
    torch.testing.assert_close(final_weights(tmp_path / "plain"), final_weights(tmp_path / "often"), rtol=0, atol=0)
    assert [report.metrics for report in reports[4::5]] == [report.metrics for report in plain]
    assert done.checkpoint.score == max(report.score for report in reports)


@pytest.mark.parametrize(
    ("training", "evaluations", "steps"),
    [
        ({"num_train_epochs": 0.5}, [1], [6]),
        ({"num_train_epochs": 1.5}, [1, 2, 3], [6, 12, 18]),
        ({"num_train_epochs": 1.4}, [1, 2, 3], [6, 12, 17]),
        ({"max_steps": 8}, [1, 2], [6, 8]),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 3}, [1, 2], [2, 4]),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 8}, [1, 2], [1, 2]),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 12}, [2], [1]),
        (
            {"stages": [{"num_train_epochs": 1.5}, {"num_train_epochs": 1, "freeze_encoder": True}]},
            [1, 2, 3, 5, 6],
            [6, 12, 18, 24, 30],
        ),
    ],
)
def test_evaluations_are_counted_whatever_ends_an_epoch(tune, tmp_path, training, evaluations, steps):
    _, reports = tune(tmp_path, evals_per_epoch=2, **training)
    assert [report.epoch for report in reports] == evaluations
    assert [report.steps[-1][0] for report in reports] == steps
    halves = (1, 5)  # evaluations after half an epoch of a stage
    assert [report.whole for report in reports] == [report.epoch not in halves or report.done for report in reports]
    assert [report.done for report in reports] == [False] * (len(reports) - 1) + [True]


def test_more_evaluations_than_an_epoch_has_steps_are_noticed_once(tune: Tune, tmp_path: Path) -> None:
    notices: list[str] = []
    often: dict[str, Any] = {"evals_per_epoch": 20, "num_train_epochs": 2, "on_notice": notices.append}
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=20, **often)
    _, reports = tune(tmp_path, **often)
    assert len(reports) == 1 + 12  # that of the state, and the second epoch's
    assert notices == ["evals_per_epoch is 20, but an epoch has 12 steps, and is evaluated as often; lower it"]


def test_a_warm_up_longer_than_a_stage_is_noticed(tune: Tune, tmp_path: Path) -> None:
    notices: list[str] = []
    tune(tmp_path, num_train_epochs=1, stages=[{"warmup_steps": 48}, {"warmup_steps": 12}], on_notice=notices.append)
    rises = "its rate only rises, to 25% of learning_rate; lower it"
    assert notices == [f"warmup_steps is 48, but the stage has 12 steps: {rises}"]


def test_further_validation_sets_are_measured_beside_the_one_that_decides(tune: Tune, parts, tmp_path: Path) -> None:
    further = {**parts, "mood": {**parts["mood"], "report-mm": parts["mood"]["validation"]}}
    done, reports = tune(tmp_path, parts=further, num_train_epochs=1)
    for metric in ("loss", "accuracy", "macro_f1"):
        assert reports[0].metrics[f"mood/mm/{metric}"] == reports[0].metrics[f"mood/{metric}"]
    assert "report-mm" not in done.predictions["mood"]


def test_a_run_ends_with_the_evaluation_that_it_is_told_and_keeps_its_weights(tune: Tune, tmp_path: Path) -> None:
    done, reports = tune(tmp_path, until=2, num_train_epochs=3, early_stopping_patience=1)
    assert [report.epoch for report in reports] == [1, 2]
    assert reports[-1].done
    assert done.checkpoint.epoch == 2
    assert done.checkpoint.score == reports[1].score
