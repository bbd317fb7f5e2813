from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import TRAINING

from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.tasks.task import Task
from tutti.training.loop.trainer import MultiTaskTrainer
from tutti.training.tricks.adversarial import make_attack

TASK = Task(name="t", names=("a", "b"), pair=False, metric="accuracy", submission="csv")
IDS = torch.tensor([[2, 5, 6, 3], [2, 7, 8, 3]])
LABELS = torch.tensor([0, 1])


@pytest.fixture
def model(steady_backbone: Path) -> MultiTaskModel:
    torch.manual_seed(3)
    return MultiTaskModel(encoder=load_encoder(str(steady_backbone)), tasks=[TASK], heads=HeadOptions(dropout=0.0))


def _loss(model: MultiTaskModel) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model("t", IDS, torch.ones_like(IDS)), LABELS)


@pytest.mark.parametrize("kind", ["fgm", "awp"])
def test_the_loss_is_higher_while_the_attack_is_on_and_every_weight_comes_back(model, kind):
    attack = make_attack(kind, model, epsilon=None)
    assert attack is not None
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    clean = _loss(model)
    clean.backward()
    with attack.perturbed():
        attacked = _loss(model)
    assert attacked > clean
    torch.testing.assert_close(dict(model.named_parameters()), before, rtol=0, atol=0)


def test_fgm_moves_the_word_embeddings_by_epsilon_and_nothing_else(model: MultiTaskModel) -> None:
    attack = make_attack("fgm", model, epsilon=0.5)
    assert attack is not None
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    _loss(model).backward()
    with attack.perturbed():
        moved = {name: (weight - before[name]).norm().item() for name, weight in model.named_parameters()}
    words = moved.pop("encoder.embeddings.word_embeddings.weight")
    assert words == pytest.approx(0.5, rel=1e-4)
    assert set(moved.values()) == {0.0}


def test_awp_moves_each_matrix_by_a_share_of_its_norm(model: MultiTaskModel) -> None:
    attack = make_attack("awp", model, epsilon=0.02)
    assert attack is not None
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    _loss(model).backward()
    with attack.perturbed():
        for name, weight in model.named_parameters():
            moved = (weight - before[name]).norm() / before[name].norm().clamp(min=1e-9)
            expected = 0.02 if weight.ndim > 1 and name.startswith("encoder.") else 0.0
            assert moved.item() == pytest.approx(expected, rel=1e-3), name


def test_without_an_epsilon_fgm_moves_words_by_one_and_awp_each_matrix_by_a_hundredth_of_its_norm(model):
    words = model.get_input_embeddings().weight
    before = words.detach().clone()
    _loss(model).backward()
    for kind, expected in (("fgm", 1.0), ("awp", 0.01 * before.norm().item())):
        attack = make_attack(kind, model, epsilon=None)
        assert attack is not None
        with attack.perturbed():
            assert (words - before).norm().item() == pytest.approx(expected, rel=1e-3)


def test_a_gradient_that_is_not_finite_moves_nothing(model: MultiTaskModel) -> None:
    attack = make_attack("fgm", model, epsilon=1.0)
    assert attack is not None
    words = model.get_input_embeddings().weight
    words.grad = torch.full_like(words, torch.inf)
    before = words.detach().clone()
    with attack.perturbed():
        assert torch.equal(words, before)


@pytest.mark.parametrize("kind", ["fgm", "awp"])
def test_a_step_takes_the_sum_of_both_passes_gradients(make_tune, steady_backbone, tmp_path, monkeypatch, kind):
    steps = []
    plain = MultiTaskTrainer.training_step

    def gradients(trainer: MultiTaskTrainer) -> dict[str, torch.Tensor]:
        named = trainer.model.named_parameters()
        return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}

    def step(self: MultiTaskTrainer, model: torch.nn.Module, inputs: dict[str, Any], items: Any = None) -> torch.Tensor:
        assert self._attack is not None
        batch = self._prepare_inputs(dict(inputs))
        self.compute_loss(model.train(), batch, num_items_in_batch=items).backward()
        clean = gradients(self)
        with self._attack.perturbed():
            self.compute_loss(model, batch, num_items_in_batch=items).backward()
        both = gradients(self)
        model.zero_grad()
        loss = plain(self, model, inputs, items)
        steps.append((clean, both, gradients(self)))
        return loss

    monkeypatch.setattr(MultiTaskTrainer, "training_step", step)
    tune = make_tune(steady_backbone, per_device_train_batch_size=8, num_train_epochs=1, bf16=False)
    tune(tmp_path, adversarial=kind, head_dropout=0.0)
    assert len(steps) > 1
    for clean, both, taken in steps:
        torch.testing.assert_close(taken, both, rtol=1e-5, atol=1e-7)
        assert any(not torch.allclose(taken[name], 2 * clean[name], rtol=1e-3) for name in taken)


def test_the_training_losses_that_are_reported_are_those_without_the_attack(make_tune, steady_backbone, tmp_path):
    tune = make_tune(steady_backbone, **TRAINING | {"max_steps": 1, "head_dropout": 0.0})
    (_, (plain,)), (_, (attacked,)) = tune(tmp_path / "plain"), tune(tmp_path / "attacked", adversarial="fgm")
    names = [name for name in plain.metrics if name.endswith("train_loss")]
    assert [attacked.metrics[name] for name in names] == [plain.metrics[name] for name in names]
    assert attacked.steps[0][1]["grad_norm"] > plain.steps[0][1]["grad_norm"]  # of both passes
