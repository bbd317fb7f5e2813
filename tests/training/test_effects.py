"""What a run's training tricks do to its weights and losses: as much as their keys say, and where they say it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_runs import TRAINING, WORDS, Tune, final_weights, newest_state

from tutti.data.batches import TokenRows
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.kinds.classes import ClassesHead
from tutti.modeling.mixout import MixoutLinear
from tutti.tasks.task import Task
from tutti.training.loop.trainer import MultiTaskTrainer
from tutti.training.tricks.balance import DynamicBalance

CLS = 2  # the token that every row begins with
ONE_STEP = TRAINING | {"max_steps": 1, "head_dropout": 0.0, "use_cpu": True}


@pytest.fixture(scope="module")
def steady_tune(make_tune: Callable[..., Tune], steady_backbone: Path) -> Tune:
    return make_tune(steady_backbone, **ONE_STEP)


def test_weight_decay_takes_a_share_of_matrices_and_nothing_of_biases_and_norms(steady_tune, steady_backbone, tmp_path):
    keys = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.1}
    keys |= {"layer_lr_decay": 0.5, "head_learning_rate": 0.3}
    steady_tune(tmp_path / "plain", weight_decay=0.0, **keys)
    steady_tune(tmp_path / "decayed", weight_decay=0.5, **keys)
    plain, decayed = (final_weights(tmp_path / name) for name in ("plain", "decayed"))
    before = load_file(steady_backbone / "model.safetensors")
    rates = {"encoder.encoder.layer.1.": 0.1, "encoder.encoder.layer.0.": 0.05, "encoder.embeddings.": 0.025}
    checked = set()
    for name, weight in plain.items():
        taken = weight - decayed[name]
        if name.endswith("bias") or "LayerNorm" in name:
            assert taken.abs().max() == 0, name
        elif name.startswith("encoder."):
            start = next(start for start in rates if name.startswith(start))
            expected = rates[start] * 0.5 * before[name.removeprefix("encoder.")]
            if name == WORDS:  # of unseen words no row decays
                taken, expected = taken[CLS], expected[CLS]
            torch.testing.assert_close(taken, expected, rtol=1e-3, atol=1e-6)
            checked.add(start)
    assert checked == set(rates)
    groups = torch.load(newest_state(tmp_path / "plain") / "optimizer.pt", weights_only=True)["param_groups"]
    assert {group["initial_lr"] for group in groups} == {0.1, 0.05, 0.025, 0.3}


def test_the_weights_of_a_dynamic_balance_follow_the_losses_that_a_run_reports(steady_tune, tasks, tmp_path):
    _, reports = steady_tune(tmp_path, loss_balancing="dynamic", max_steps=None, num_train_epochs=3)
    expected = DynamicBalance(tasks, {})
    for report in reports:
        expected.end_epoch({task.name: report.metrics[f"{task.name}/train_loss"] for task in tasks})
    learnt = json.loads((newest_state(tmp_path) / "progress.json").read_text())["balance"]
    assert learnt == pytest.approx(expected.state())
    assert learnt["weight/mood"] != pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_a_run_s_focal_loss_has_the_exponent_that_is_asked_for(steady_tune: Tune, tmp_path: Path, gamma: float) -> None:
    _, (report,) = steady_tune(tmp_path, focal_gamma=gamma, max_steps=None, num_train_epochs=1, learning_rate=1e-12)
    for name, classes in (("news.v1", 3), ("mood", 2)):  # an untrained head gives each class about the same
        expected = (1 - 1 / classes) ** gamma * math.log(classes)
        assert report.metrics[f"{name}/train_loss"] == pytest.approx(expected, rel=0.05)


def test_r_drop_leaves_a_model_whose_dropout_masks_agree_more(tune, parts, tmp_path):
    part, apart = parts["mood"]["train"], {}
    batch = TokenRows(part).pad(torch.arange(len(part.ids)).numpy())
    for alpha in (0.0, 20.0):
        tune(tmp_path / str(alpha), rdrop_alpha=alpha, head_dropout=0.5, num_train_epochs=6, use_cpu=True)
        model, _ = load_checkpoint(tmp_path / str(alpha) / "best")
        model.load_trained_state(final_weights(tmp_path / str(alpha)))
        torch.manual_seed(0)
        with torch.no_grad():
            masks = [model.train()("mood", **batch) for _ in range(2)]
        apart[alpha] = ClassesHead().divergences(*masks, scale=torch.ones(())).mean().item()
    assert apart[20.0] < apart[0.0] / 2


@pytest.mark.parametrize("class_weights", [None, "balanced"])
def test_the_label_of_a_row_that_weighs_nothing_is_not_learnt(steady_tune, parts, tasks, tmp_path, class_weights):
    ends = []
    for name, other in (("own", 0), ("other", 1)):
        changed = {}
        for task in tasks:
            train = parts[task.name]["train"]
            assert train.labels is not None
            weightless = np.arange(len(train.labels)) % 2 == 0
            labels = np.where(weightless, (train.labels + other) % len(task.names), train.labels)
            weights = np.where(weightless, 0, train.weights)
            changed[task.name] = {**parts[task.name], "train": replace(train, labels=labels, weights=weights)}
        steady_tune(tmp_path / name, parts=changed, max_steps=4, class_weights=class_weights)
        ends.append(final_weights(tmp_path / name))
    torch.testing.assert_close(*ends, rtol=0, atol=0)


def test_an_untrained_regression_errs_by_the_variance_of_its_labels(steady_tune, parts, tmp_path):
    task = Task(name="value", names=(), pair=False, metric="pearson", submission="csv")
    for scale in (1.0, 50.0):
        own = {}
        for name in ("train", "validation"):
            part = parts["news.v1"][name]
            assert part.labels is not None
            rare = np.where(part.labels == 0, 0.1, 1).astype(np.float32)
            own[name] = replace(part, labels=(scale * part.labels + 7).astype(np.float32), weights=rare)
        keys = {"max_steps": None, "num_train_epochs": 1, "learning_rate": 1e-12}
        _, (report,) = steady_tune(tmp_path / str(scale), tasks=[task], parts={"value": own}, **keys)
        labels, weights = own["train"].labels, own["train"].weights
        variance = np.average((labels - np.average(labels, weights=weights)) ** 2, weights=weights)
        assert report.metrics["train_loss"] == pytest.approx(1.0, rel=0.1)  # what is minimised has no unit
        assert report.metrics["value/train_loss"] == pytest.approx(variance, rel=0.1)


def test_as_many_top_layers_of_a_run_start_anew_as_asked_for(steady_tune, steady_backbone, tmp_path):
    before = load_file(steady_backbone / "model.safetensors")
    for count in (1, 2):
        steady_tune(tmp_path / str(count), reinit_layers=count, learning_rate=1e-12)
        after = final_weights(tmp_path / str(count))
        same = [
            torch.allclose(after[f"encoder.{name}"], before[name], atol=1e-6)
            for name in (f"encoder.layer.{layer}.output.dense.weight" for layer in (0, 1))
        ]
        assert same == [count < 2, False]


def test_a_run_s_linear_layers_go_back_to_the_backbone_by_the_share_asked_for(steady_tune, tmp_path, monkeypatch):
    shares, plain = set(), MultiTaskTrainer.training_step

    def step(self: MultiTaskTrainer, *args: Any, **kwargs: Any) -> Any:
        shares.update(module.share for module in self.model.modules() if isinstance(module, MixoutLinear))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(MultiTaskTrainer, "training_step", step)
    steady_tune(tmp_path, mixout=0.7)
    assert shares == {0.7}


def test_an_attack_of_next_to_no_size_gives_the_clean_gradients_twice(steady_tune: Tune, tmp_path: Path) -> None:
    norms = {}
    for name, keys in (
        ("plain", {}),
        ("tiny", {"adversarial": "fgm", "adversarial_epsilon": 1e-9}),
        ("default", {"adversarial": "fgm"}),
    ):
        _, (report,) = steady_tune(tmp_path / name, **keys)
        norms[name] = report.steps[0][1]["grad_norm"]
    assert norms["tiny"] == pytest.approx(2 * norms["plain"], rel=1e-4)
    assert norms["default"] != pytest.approx(2 * norms["plain"], rel=1e-3)


def test_a_moving_average_takes_in_the_weights_of_each_step_once(steady_tune: Tune, tmp_path: Path) -> None:
    keys = {"ema_decay": 0.99, "lr_scheduler_type": "constant"}
    averages = []
    for steps in (1, 2):
        steady_tune(tmp_path / str(steps), max_steps=steps, **keys)
        averages.append(load_file(newest_state(tmp_path / str(steps)) / "average.safetensors"))
    assert [average.pop("updates") for average in averages] == [1, 2]
    now, decay = final_weights(tmp_path / "2"), 3 / 12  # of the warm-up's second step
    for name, first in averages[0].items():
        if name != WORDS:  # whose average holds the rows of seen words alone
            torch.testing.assert_close(averages[1][name], decay * first + (1 - decay) * now[name])


def test_a_task_s_share_of_the_minimised_loss_grows_as_its_weight(steady_tune: Tune, tmp_path: Path) -> None:
    losses = []
    for weight in (1.0, 2.0, 3.0):
        keys = {"max_steps": None, "num_train_epochs": 1, "learning_rate": 1e-12, "task_weights": {"mood": weight}}
        _, (report,) = steady_tune(tmp_path / str(weight), **keys)
        losses.append(report.metrics["train_loss"])
    assert losses[2] - losses[1] == pytest.approx(losses[1] - losses[0], rel=1e-3)
    assert losses[1] - losses[0] > 0.1 * losses[0]
