from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, XLMConfig, XLMModel

from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.tasks.task import Task
from tutti.training.tricks.rates import BALANCE_RATE, decayed_names, parameter_groups

TASK = Task(name="t", names=("a", "b"), pair=False, metric="accuracy", submission="csv")


@pytest.fixture
def model(backbone: Path) -> MultiTaskModel:
    return MultiTaskModel(encoder=load_encoder(str(backbone)), tasks=[TASK], heads=HeadOptions())


def _by_name(model: MultiTaskModel, **settings: Any) -> dict[str, tuple[float, float]]:
    """The learning rate and weight decay of each parameter."""
    defaults: dict[str, Any] = {"learning_rate": 1e-3, "weight_decay": 0.1, "layer_decay": 1.0, "head_rate": None}
    matrices = {name for name, weight in model.named_parameters() if weight.ndim > 1}
    groups = parameter_groups(model, decayed=matrices, extra_parameters=[], **{**defaults, **settings})
    names = {weight: name for name, weight in model.named_parameters()}
    by_name = {names[weight]: (group["lr"], group["weight_decay"]) for group in groups for weight in group["params"]}
    assert len(by_name) == sum(len(group["params"]) for group in groups)  # no parameter is in two groups
    return by_name


def test_each_layer_learns_slower_than_the_one_above_it(model: MultiTaskModel) -> None:
    by_name = _by_name(model, layer_decay=0.5)
    names = ("encoder.layer.1.output.dense", "encoder.layer.0.output.dense", "embeddings.word_embeddings")
    rates = [by_name[f"encoder.{name}.weight"][0] for name in names]
    assert rates == pytest.approx([1e-3, 5e-4, 2.5e-4])
    assert by_name["heads.task:t.linear.weight"][0] == 1e-3


def test_heads_learn_at_a_rate_of_their_own(model: MultiTaskModel) -> None:
    by_name = _by_name(model, head_rate=0.01)
    assert {rate for name, (rate, _) in by_name.items() if name.startswith("heads.")} == {0.01}
    assert {rate for name, (rate, _) in by_name.items() if name.startswith("encoder.")} == {1e-3}


def test_only_what_is_named_decays(model: MultiTaskModel) -> None:
    for name, (_, decay) in _by_name(model, layer_decay=0.9).items():
        assert decay == (0.1 if model.get_parameter(name).ndim > 1 else 0.0)


@pytest.mark.parametrize("name", ["bias", "layer.norm", "gender_bias"])
def test_what_a_task_is_called_does_not_decide_what_decays(backbone: Path, name: str) -> None:
    encoder = load_encoder(str(backbone))
    alike, other = (
        MultiTaskModel(encoder=encoder, tasks=[replace(TASK, name=each)], heads=HeadOptions()) for each in ("t", name)
    )
    rule = partial(Trainer.get_decay_parameter_names, None)
    kinds = [[key.rpartition(":")[2].partition(".")[2] for key in decayed_names(m, rule)] for m in (alike, other)]
    assert decayed_names(alike, rule) == rule(alike)
    assert kinds[0] == kinds[1]


def test_frozen_weights_are_in_no_group(model: MultiTaskModel) -> None:
    model.encoder.requires_grad_(False)
    assert all(name.startswith("heads.") for name in _by_name(model))


def test_the_top_of_the_encoder_comes_first_since_its_rate_is_logged(model: MultiTaskModel) -> None:
    extra = torch.nn.Parameter(torch.zeros(()))
    groups = parameter_groups(
        model,
        decayed=[],
        learning_rate=1e-3,
        weight_decay=0.1,
        layer_decay=0.5,
        head_rate=0.1,
        extra_parameters=[extra],
    )
    assert groups[0]["lr"] == 1e-3
    assert groups[-1]["params"] == [extra]
    assert (groups[-1]["lr"], groups[-1]["weight_decay"]) == (BALANCE_RATE, 0.0)


def test_an_encoder_whose_layers_cannot_be_told_apart_has_no_rates_by_depth() -> None:
    encoder = XLMModel(XLMConfig(vocab_size=20, emb_dim=8, n_layers=2, n_heads=2))
    model = MultiTaskModel(encoder=encoder, tasks=[TASK], heads=HeadOptions())
    with pytest.raises(ValueError, match="no one list of layers"):
        _by_name(model, layer_decay=0.9)
    assert {rate for rate, _ in _by_name(model).values()} == {1e-3}
