from __future__ import annotations

import pytest
import torch
from torch import nn

from tutti.training.tricks.averages import EpochAverage, ExponentialAverage, evaluation_weights


def _set(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(value)


def test_the_average_follows_the_warm_up_and_then_the_decay() -> None:
    model = nn.Linear(2, 2)
    _set(model, 0.0)
    average, expected = ExponentialAverage(model, decay=0.5), 0.0
    for n in range(1, 30):
        _set(model, float(n))
        average.after_step()
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * n
        with average.applied():
            assert model.weight[0, 0].item() == pytest.approx(expected, rel=1e-5)


def test_without_a_warm_up_the_decay_is_the_same_from_the_first_step_on() -> None:
    model = nn.Linear(2, 2)
    _set(model, 0.0)
    average = ExponentialAverage(model, decay=0.9, warmup=False)
    _set(model, 1.0)
    average.after_step()
    with average.applied():
        assert model.weight[0, 0].item() == pytest.approx(0.1)


def test_the_models_own_weights_come_back_even_after_an_error() -> None:
    model = nn.Linear(2, 2)
    own = model.weight.detach().clone()
    average = ExponentialAverage(model, decay=0.9)
    _set(model, 1.0)
    average.after_step()

    def fail() -> None:
        with average.applied():
            assert not torch.equal(model.weight, torch.ones(2, 2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(model.weight, torch.ones(2, 2))
    assert not torch.equal(model.weight, own)


def test_a_saved_average_goes_on_as_if_never_stopped() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    first = ExponentialAverage(model, decay=0.9)
    _set(model, 2.0)
    first.after_step()
    second = ExponentialAverage(model, decay=0.9)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    _set(model, 3.0)
    first.after_step()
    second.after_step()
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)


def test_weights_of_lower_precision_are_averaged_in_float32() -> None:
    model = nn.Linear(2, 2).bfloat16()
    average = ExponentialAverage(model, decay=0.9)
    average.after_step()
    assert average.state_dict()["weight"].dtype == torch.float32
    with average.applied():
        assert model.weight.dtype == torch.bfloat16


def test_the_mean_over_epochs_is_of_the_last_ones_alone() -> None:
    model = nn.Linear(2, 2)
    average = EpochAverage(model, epochs=2)
    for epoch, left in ((1, 3), (2, 2), (3, 1)):
        _set(model, float(epoch))
        average.after_step()
        average.after_epoch(remaining=left)
        with average.applied():
            assert model.weight[0, 0].item() == epoch  # contains this epoch only
    _set(model, 4.0)
    average.after_epoch(remaining=0)
    with average.applied():
        assert model.weight[0, 0].item() == pytest.approx(3.5)
    assert model.weight[0, 0].item() == 4.0


def test_weights_that_are_not_trained_are_not_averaged() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert set(ExponentialAverage(model, decay=0.9).state_dict()) == {"updates", "weight"}


class _ScheduleFree(torch.optim.SGD):
    """Goes to other weights to evaluate and, up to rounding, back to train, as schedule-free optimizers do."""

    def eval(self) -> None:
        self._interpolate(1 - 1 / 0.9)

    def train(self) -> None:
        self._interpolate(1 - 0.9)

    @torch.no_grad()
    def _interpolate(self, share: float) -> None:
        for weight in self.param_groups[0]["params"]:
            weight.lerp_(torch.full_like(weight, 0.123), share)


def test_an_evaluation_leaves_every_weight_of_a_schedule_free_optimizer_as_it_was() -> None:
    torch.manual_seed(0)
    model, log_variances = nn.Linear(8, 8), nn.Parameter(torch.randn(64))  # a loss balance's are not of the model
    weights = [*model.parameters(), log_variances]
    before = [weight.detach().clone() for weight in weights]
    with evaluation_weights(_ScheduleFree(weights)):
        assert not any(map(torch.equal, weights, before))
    assert all(map(torch.equal, weights, before))
