"""Every switch of a training changes what is trained, and only that."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_runs import WORDS, Tune, final_weights, newest_state

from tutti.data.encode import EncodedPart
from tutti.errors import TrialError
from tutti.training import EpochReport
from tutti.training.loop.trainer import MultiTaskTrainer

SWITCHES: dict[str, dict[str, Any]] = {
    "class weights": {"class_weights": "balanced"},
    "AWP": {"adversarial": "awp"},
    "last layers": {"pooling_layers": 2},
    "dropout samples": {"head_dropout_samples": 3},
    "uniform": {"task_sampling": "uniform"},
    "temperature": {"task_sampling": "temperature", "sampling_temperature": 50.0},
    "ungrouped": {"group_by_length": False},
    "token budget": {"max_tokens_per_batch": 100},
}


@pytest.fixture(scope="module")
def plain_losses(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    _, (report,) = tune(tmp_path_factory.mktemp("switch"), num_train_epochs=1, logging_steps=1)
    return [values["loss"] for _, values in report.steps]


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_changes_what_is_trained(tune: Tune, tmp_path: Path, name: str, plain_losses: list[float]) -> None:
    _, (report,) = tune(tmp_path, num_train_epochs=1, logging_steps=1, **SWITCHES[name])
    assert [values["loss"] for _, values in report.steps] != plain_losses


def test_mixout_keeps_nothing_of_layers_that_start_anew_and_is_refused_if_all_do(tune: Tune, tmp_path: Path) -> None:
    stages = [{"num_train_epochs": 1}, {"num_train_epochs": 1}]
    _, plain = tune(tmp_path / "plain", reinit_layers=2, stages=stages)
    _, mixed = tune(tmp_path / "mixed", reinit_layers=2, mixout=0.5, stages=stages)
    assert mixed[0].steps == plain[0].steps  # mixout has no layer left
    assert mixed[1].steps != plain[1].steps
    with pytest.raises(TrialError, match="mixout must be 0 where all layers start anew"):
        tune(tmp_path / "idle", num_train_epochs=1, reinit_layers=2, mixout=0.5)


@pytest.mark.parametrize("start", [1, 1.5])
def test_an_attack_begins_with_the_step_at_its_part_of_the_epochs(tune: Tune, tmp_path: Path, start: float) -> None:
    four_steps = {"num_train_epochs": 2, "per_device_train_batch_size": 64}  # one for each task and epoch
    _, plain = tune(tmp_path / "plain", **four_steps)
    _, late = tune(tmp_path / "late", adversarial="fgm", adversarial_start=start, **four_steps)
    assert late[0].metrics == plain[0].metrics
    assert late[1].metrics != plain[1].metrics


def _seen(parts: dict[str, dict[str, EncodedPart]]) -> list[int]:
    """The words whose embeddings are trained: those of training rows, and the padding token."""
    return sorted({0}.union(*(row for part in parts.values() for row in part["train"].encoded["input_ids"])))


def test_the_mean_over_the_last_epochs_is_what_is_kept(tune, parts, tmp_path):
    tune(tmp_path, swa_epochs=2, num_train_epochs=3)
    ends = [load_file(tmp_path / "resume" / f"stage-0-step-{step}" / "model.safetensors") for step in (24, 36)]
    average = load_file(newest_state(tmp_path) / "average.safetensors")
    assert average.pop("updates") == 2
    ends = [{**end, WORDS: end[WORDS][_seen(parts)]} for end in ends]
    for name, weight in average.items():
        torch.testing.assert_close(weight, (ends[0][name] + ends[1][name]) / 2, rtol=1e-5, atol=1e-6)


def test_the_balance_of_tasks_is_learnt_within_a_run_from_the_gradients_of_each_step_alone(tune, tmp_path, monkeypatch):
    plain = MultiTaskTrainer.training_step

    def step(self: MultiTaskTrainer, *args: Any, **kwargs: Any) -> Any:
        assert [weight.grad for weight in self.balance.parameters()] == [None, None]
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(MultiTaskTrainer, "training_step", step)
    tune(tmp_path, loss_balancing="uncertainty", learning_rate=1e-5)
    learnt = json.loads((newest_state(tmp_path) / "progress.json").read_text())["balance"]
    assert max(abs(value) for value in learnt.values()) > 0.05


def test_an_optimizer_of_8_bits_keeps_its_rule_for_embeddings_with_rates_of_their_own(tune, tmp_path):
    pytest.importorskip("bitsandbytes")
    done, _ = tune(tmp_path, optim="adamw_8bit", layer_lr_decay=0.9, num_train_epochs=1)
    assert done.checkpoint.epoch == 1


def test_with_an_average_the_averaged_weights_are_evaluated_and_kept(tune, parts, tmp_path):
    tune(tmp_path, ema_decay=0.99, num_train_epochs=1)
    average = load_file(newest_state(tmp_path) / "average.safetensors")
    saved = load_file(tmp_path / "best" / "model.safetensors")
    saved[WORDS.removeprefix("encoder.")] = saved[WORDS.removeprefix("encoder.")][_seen(parts)]
    own = final_weights(tmp_path)
    own[WORDS] = own[WORDS][_seen(parts)]
    for name, weight in saved.items():
        torch.testing.assert_close(weight, average[f"encoder.{name}"], rtol=0, atol=0)
        assert not torch.equal(weight, own[f"encoder.{name}"])


class _TwoSetsOfWeights(torch.optim.SGD):
    """SGD with the evaluation mode of a schedule-free optimizer, in which the weights are divided by 3."""

    evaluating = False

    def eval(self) -> None:
        self._switch(evaluating=True)

    def train(self) -> None:
        self._switch(evaluating=False)

    def _switch(self, *, evaluating: bool) -> None:
        if evaluating is not self.evaluating:  # the Trainer calls train() before each step
            for weight in self.param_groups[0]["params"] + self.param_groups[1]["params"]:
                weight.data.mul_(1 / 3 if evaluating else 3)
        self.evaluating = evaluating


def test_what_a_schedule_free_optimizer_has_found_is_evaluated_and_kept_and_not_trained_on(tune, tmp_path, monkeypatch):
    settings = {"num_train_epochs": 1, "optim": "sgd", "learning_rate": 0.1}
    tune(tmp_path / "plain", **settings)
    monkeypatch.setattr(torch.optim, "SGD", _TwoSetsOfWeights)
    tune(tmp_path / "found", **settings)
    tune(tmp_path / "often", evals_per_epoch=3, **settings)
    trained, name = final_weights(tmp_path / "plain"), "heads.task:mood.linear.weight"
    for folder in ("found", "often"):  # restoring the weights leaves no rounding error
        torch.testing.assert_close(final_weights(tmp_path / folder), trained, rtol=0, atol=0)
    saved = load_file(tmp_path / "found" / "best" / "heads.safetensors")
    torch.testing.assert_close(saved[name.removeprefix("heads.")], trained[name] / 3)


@pytest.fixture(scope="module")
def plain_epoch(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> EpochReport:
    return tune(tmp_path_factory.mktemp("plain"), num_train_epochs=1, use_cpu=True)[1][0]


@pytest.mark.parametrize(
    "training",
    [
        {"bf16": True},
        {"activation_checkpointing": True},
        {"neftune_noise_alpha": 5.0},
        {"label_smoothing_factor": 0.1},
        {"max_grad_norm": 0.0},
        {"pooling": "cls", "lr_scheduler_type": "cosine", "optim": "adafactor"},
        {"pooling": "mean", "full_determinism": True},
        {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 2},
    ],
    ids=lambda training: next(iter(training)),
)
def test_fields_of_training_arguments_work_under_their_own_names(tune, tmp_path, training, plain_epoch):
    try:
        done, reports = tune(tmp_path, num_train_epochs=1, use_cpu=True, **training)  # a GPU's sums vary
    finally:
        torch.use_deterministic_algorithms(False)
    assert done.checkpoint.epoch == 1
    same = reports[0].metrics["train_loss"] == plain_epoch.metrics["train_loss"]
    assert same == (next(iter(training)) in ("activation_checkpointing", "dataloader_num_workers"))


def test_neftune_adds_noise_of_its_size_when_it_trains_and_none_when_it_evaluates(tune, tmp_path, monkeypatch):
    sizes = []
    plain = MultiTaskTrainer.training_step

    def step(self: MultiTaskTrainer, model: torch.nn.Module, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        loss = plain(self, model, inputs, *args)
        words, ids = self.model.get_input_embeddings(), inputs["input_ids"].to(self.args.device)
        with torch.no_grad():
            clean = words.eval()(ids)
            noise = (words.train()(ids) - clean).abs().max().item()
        sizes.append((noise, 5.0 / math.sqrt(ids.shape[1] * clean.shape[-1]), torch.equal(words.eval()(ids), clean)))
        return loss

    monkeypatch.setattr(MultiTaskTrainer, "training_step", step)
    tune(tmp_path, neftune_noise_alpha=5.0, num_train_epochs=1)
    assert sizes
    for noise, most, evaluates_alike in sizes:  # uniform within alpha / sqrt(tokens x width): arXiv 2310.05914
        assert 0.9 * most < noise <= most * 1.001
        assert evaluates_alike
