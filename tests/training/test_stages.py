"""Stages of a run, one after the other from the weights of the one before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import TRAINING, WORDS, Tune, assert_same_end, final_weights
from transformers.models.bert.modeling_bert import BertIntermediate

from tutti.modeling.checkpoint import load_checkpoint
from tutti.training import FineTuned


@pytest.fixture(scope="module")
def steady_tune(make_tune: Callable[..., Tune], steady_backbone: Path) -> Tune:
    return make_tune(steady_backbone, **TRAINING)


def test_the_weights_are_counted_that_the_last_stage_trains(tune, tmp_path, whole):
    done, _, folder = whole
    model, _ = load_checkpoint(folder / "best")
    assert done.checkpoint.parameters == sum(each.numel() for each in model.parameters())
    stages = [{"num_train_epochs": 1}, {"num_train_epochs": 1, "freeze_encoder": True}]
    heads = tune(tmp_path, stages=stages)[0].checkpoint.parameters
    assert heads == sum(each.numel() for name, each in model.named_parameters() if not name.startswith("encoder."))


STAGED = {"stages": [{"num_train_epochs": 1}, {"num_train_epochs": 2, "mixout": 0.3, "learning_rate": 1e-2}]}


@pytest.fixture(scope="module")
def staged(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> tuple[FineTuned, Path]:
    folder = tmp_path_factory.mktemp("staged")
    return tune(folder, **STAGED)[0], folder


@pytest.mark.parametrize("lost", [[], ["stage-1-step-12"], ["stage-1-step-12", "best"]], ids=str)
def test_a_later_stage_begins_from_the_same_weights_whenever_it_is_begun_again(tune, tmp_path, lost, staged):
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=2, **STAGED)
    for name in lost:
        if name == "best":  # killed between the two renames of a replacement
            retired = tmp_path / ".best.x_0y1z2w.old"
            retired.mkdir()
            (tmp_path / "best").rename(retired / "best")
        else:  # damaged, or incomplete when killed
            (tmp_path / "resume" / name / "model.safetensors").write_bytes(b"")
    resumed, _ = tune(tmp_path, **STAGED)
    assert_same_end(staged[0], resumed, staged[1], tmp_path)
    assert not list(tmp_path.glob(".best*"))


def test_a_frozen_stage_keeps_the_encoder_of_the_best_epoch_before_it_and_trains_the_heads(tune, tmp_path):
    ruined = {"num_train_epochs": 3, "learning_rate": 0.3, "warmup_steps": 36}  # the rate rises until the last step
    _, reports = tune(tmp_path / "one", stages=[ruined])
    assert max(reports, key=lambda report: report.score).epoch == 1
    tune(tmp_path / "both", stages=[ruined, {"num_train_epochs": 1, "freeze_encoder": True, "learning_rate": 1e-3}])
    best = load_checkpoint(tmp_path / "one/best")[0].state_dict()
    last, frozen = final_weights(tmp_path / "one"), final_weights(tmp_path / "both")
    for name, tensor in frozen.items():
        assert torch.equal(tensor, best[name]) == name.startswith("encoder."), name
    assert not torch.equal(last[WORDS], best[WORDS])


def test_a_frozen_encoder_computes_a_batch_once_where_activations_are_checkpointed(tune, tmp_path, monkeypatch):
    computed, forward = [], BertIntermediate.forward

    def count(self: BertIntermediate, *args: Any, **kwargs: Any) -> Any:
        computed[-1] += self.training
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(BertIntermediate, "forward", count)
    for key in ("group_by_length", "activation_checkpointing", "gradient_checkpointing"):
        computed.append(0)
        tune(tmp_path / key, freeze_encoder=True, num_train_epochs=1, **{key: True})
    assert computed[0] == computed[1] == computed[2] > 0


def test_the_last_report_of_each_stage_but_the_last_says_that_another_follows(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path, **STAGED)
    assert [report.ends_stage for report in reports] == [True, False, False]
    assert [report.done for report in reports] == [False, False, True]


def test_stages_see_their_batches_in_different_orders(steady_tune: Tune, tmp_path: Path) -> None:
    stages = [{"num_train_epochs": 1}, {"num_train_epochs": 1}]
    _, reports = steady_tune(tmp_path, logging_steps=1, learning_rate=1e-30, head_dropout=0.0, stages=stages)
    one, two = ([values["loss"] for _, values in report.steps] for report in reports)
    assert one != pytest.approx(two, rel=1e-3)  # the weights are equal and dropout is off: only the batches differ


def test_the_highest_seed_has_stages_too(tune: Tune, tmp_path: Path) -> None:
    _, reports = tune(tmp_path, seed=2**32 - 1, stages=[{"max_steps": 1}, {"max_steps": 1}])
    assert [report.epoch for report in reports] == [1, 2]
