"""A run of fine_tune from its first step to its checkpoint and predictions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import TRAINING, Tune, final_weights
from word_backbone import save_deberta

from tutti.data.encode import EncodedPart
from tutti.modeling.checkpoint import load_checkpoint
from tutti.tasks.task import Task
from tutti.training import EpochReport, fine_tune
from tutti.training.loop.trainer import MultiTaskTrainer
from tutti.training.machine import precision


def test_a_run_learns_reports_each_epoch_and_predicts_the_other_parts(tune, tmp_path, parts, tasks):
    done, reports = tune(tmp_path, num_train_epochs=6)
    assert [report.epoch for report in reports] == list(range(1, 7))
    assert [report.done for report in reports] == [False] * 5 + [True]
    assert done.checkpoint.score == max(report.score for report in reports) > 0.8
    assert reports[-1].metrics["train_loss"] < reports[0].metrics["train_loss"]
    for task in tasks:
        assert set(done.predictions[task.name]) == {"validation", "test"}  # training rows are not predicted
        for name, predictions in done.predictions[task.name].items():
            part = parts[task.name][name]
            np.testing.assert_array_equal(predictions.ids, part.ids)
            assert (predictions.labels is None) == (name == "test")
            assert predictions.names == task.names


@pytest.mark.parametrize("pooling", ["pair", "bi_encoder"])
def test_a_run_of_pairs_learns_from_both_texts_and_its_checkpoint_says_the_same(tune, tasks, parts, tmp_path, pooling):
    def with_types(part: EncodedPart) -> EncodedPart:
        types = [[int(position > 1) for position in range(len(row))] for row in part.encoded["input_ids"]]
        return replace(part, encoded=part.encoded.add_column("token_type_ids", types))

    mood = next(task for task in tasks if task.name == "mood")
    pairs = {"mood": {name: with_types(part) for name, part in parts["mood"].items()}}
    trick = {"pooling": pooling, "rdrop_alpha": 1.0, "num_train_epochs": 4, "use_cpu": True}
    done, reports = tune(tmp_path, tasks=(replace(mood, pair=True),), parts=pairs, **trick)
    assert done.checkpoint.score == max(report.score for report in reports) > 0.8
    model, _ = load_checkpoint(tmp_path / "best")
    assert model.head("mood").linear.in_features == 4 * model.config.hidden_size
    part = pairs["mood"]["validation"]
    probabilities = done.predictions["mood"]["validation"].outputs
    assert probabilities is not None
    for row in range(4):
        ids, types = (torch.tensor([part.encoded[row][name]]) for name in ("input_ids", "token_type_ids"))
        with torch.no_grad():
            outputs = model("mood", ids, torch.ones_like(ids), types).softmax(dim=1)[0]
        np.testing.assert_allclose(outputs.numpy(), probabilities[row], atol=1e-5)


def test_the_best_checkpoint_gives_the_recorded_score(tune: Tune, tmp_path: Path, tasks: tuple[Task, ...]) -> None:
    done, reports = tune(tmp_path)
    _, metadata = load_checkpoint(tmp_path / "best")
    best = max(reports, key=lambda report: report.score)
    assert (metadata.epoch, metadata.score, metadata.key) == (best.epoch, best.score, "t0003")
    assert done.checkpoint.path == str(tmp_path / "best")
    validation = done.predictions["mood"]["validation"]
    assert validation.outputs is not None
    accuracy = (validation.outputs.argmax(axis=1) == validation.labels).mean()
    assert accuracy == done.checkpoint.task_scores["mood"]


def test_a_run_can_be_ended_after_any_step_that_no_evaluation_follows(backbone, tasks, parts, tmp_path):
    steps: list[int] = []

    def on_step() -> None:
        steps.append(len(steps) + 1)
        if len(steps) == 3:
            raise InterruptedError

    def run(training: dict[str, Any], call: Any) -> None:
        arguments: dict[str, Any] = {"backbone": str(backbone), "tasks": tasks, "parts": parts, "folder": tmp_path}
        fine_tune(**arguments, training={**TRAINING, **training}, on_epoch=lambda report: None, on_step=call)

    with pytest.raises(InterruptedError):
        run({}, on_step)
    assert steps == [1, 2, 3]
    run({"max_steps": 1}, lambda: pytest.fail("its only step is evaluated"))


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tune: Tune, tmp_path: Path) -> None:
    for name, seed in {"a": 7, "b": 7, "c": 8}.items():
        tune(tmp_path / name, seed=seed, num_train_epochs=1)
    first, second, other = (final_weights(tmp_path / name) for name in "abc")
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first["heads.task:mood.linear.weight"], other["heads.task:mood.linear.weight"])


@pytest.mark.parametrize("balancing", ["fixed", "uncertainty"])
def test_accumulated_batches_give_what_one_large_batch_does(steady_backbone, tasks, parts, tmp_path, balancing):
    reports: dict[int, list[EpochReport]] = {1: [], 4: []}
    for steps, batch in ((1, 40), (4, 10)):  # 37 rows: the last of the four batches is smaller
        fine_tune(
            backbone=str(steady_backbone),
            tasks=tasks[1:],
            parts=parts,
            training={"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}
            | {"loss_balancing": balancing}
            | {"optim": "sgd", "learning_rate": 0.1, "head_dropout": 0.0, "logging_steps": 1, "bf16": False},
            folder=tmp_path / str(steps),
            on_epoch=reports[steps].append,
        )
    torch.testing.assert_close(final_weights(tmp_path / "1"), final_weights(tmp_path / "4"), rtol=1e-4, atol=1e-6)
    for one, four in zip(reports[1], reports[4], strict=True):
        assert one.metrics["train_loss"] == pytest.approx(four.metrics["train_loss"], rel=1e-5)
        assert one.steps[0][1] == pytest.approx(four.steps[0][1], rel=1e-4)


def test_a_regression_is_learnt_on_the_scale_of_its_labels(tune, parts, tmp_path):
    task = Task(name="score", names=(), pair=False, metric="pearson", submission="csv")
    mood = {part: rows for part, rows in parts["mood"].items() if part != "test"}
    scores = {
        part: replace(rows, labels=(300 + 40 * rows.labels).astype(np.float32), weights=np.ones_like(rows.weights))
        for part, rows in mood.items()
        if rows.labels is not None
    }
    tuned, reports = tune(tmp_path, tasks=[task], parts={"score": scores}, num_train_epochs=8)
    head = load_checkpoint(tmp_path / "best")[0].head("score")
    assert head.shift.item() == pytest.approx(scores["train"].labels.mean(), rel=1e-5)
    assert head.scale.item() == pytest.approx(scores["train"].labels.std(), rel=1e-5)
    assert reports[-1].score > 0.8
    minimised, in_units_of_labels = (reports[-1].metrics[name] for name in ("train_loss", "score/train_loss"))
    assert in_units_of_labels == pytest.approx(minimised * head.scale.item() ** 2, rel=0.1)
    assert tuned.predictions["score"]["validation"].outputs.mean() == pytest.approx(320, abs=15)


def test_a_run_is_silent_and_computes_with_the_threads_that_it_found(tune, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # without which accelerate would take every core
    before, during = torch.get_num_threads(), []
    plain = MultiTaskTrainer.training_step

    def step(self: MultiTaskTrainer, *args: Any) -> torch.Tensor:
        during.append(torch.get_num_threads())
        return plain(self, *args)

    monkeypatch.setattr(MultiTaskTrainer, "training_step", step)
    torch.set_num_threads(3)
    try:
        tune(tmp_path, num_train_epochs=1)
        assert set(during) == {torch.get_num_threads()} == {3}
    finally:
        torch.set_num_threads(before)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_a_backbone_that_fails_in_half_precision_is_trained_in_float32(make_tune, backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: True)
    shutil.copytree(backbone, tmp_path / "deberta")
    save_deberta(tmp_path / "deberta")
    tune = make_tune(tmp_path / "deberta", **TRAINING)
    _, reports = tune(tmp_path / "trial", bf16=None, use_cpu=True, num_train_epochs=1)
    assert [report.precision for report in reports] == ["float32"]
