from __future__ import annotations

import math

import pytest
import torch

from tutti.tasks.task import Task
from tutti.training.tricks.balance import DynamicBalance, FixedBalance, UncertaintyBalance, make_balance

CPU = torch.device("cpu")
TASKS = [
    Task(name="news", names=("a", "b"), pair=False, metric="accuracy", submission="csv"),
    Task(name="score", names=(), pair=False, metric="pearson", submission="csv"),
]


def _balances() -> list[FixedBalance]:
    return [make_balance(kind, TASKS, {"news": 3.0}, device=CPU) for kind in ("fixed", "uncertainty", "dynamic")]


@pytest.mark.parametrize("balance", _balances(), ids=lambda balance: type(balance).__name__)
def test_before_anything_is_learnt_a_task_weighs_what_the_user_says(balance: FixedBalance) -> None:
    loss = torch.tensor(2.0)
    assert balance("news", loss, 1.0).item() == pytest.approx(6.0)
    halved = 0.5 if isinstance(balance, UncertaintyBalance) else 1.0
    assert balance("score", loss, 1.0).item() == pytest.approx(2.0 * halved)


@pytest.mark.parametrize("kind", ["fixed", "uncertainty", "dynamic"])
def test_a_balance_goes_on_from_its_state(kind: str) -> None:
    first = make_balance(kind, TASKS, {}, device=CPU)
    for losses in ({"news": 2.0, "score": 1.0}, {"news": 1.0, "score": 0.9}):
        first.end_epoch(losses)
    for parameter in first.parameters():
        with torch.no_grad():
            parameter.fill_(0.7)
    second = make_balance(kind, TASKS, {}, device=CPU)
    second.load(first.state())
    for balance in (first, second):
        balance.end_epoch({"news": 0.9, "score": 0.1})
    loss = torch.tensor(1.5)
    for task in ("news", "score"):
        assert first(task, loss, 0.5).item() == second(task, loss, 0.5).item()


def test_uncertainty_ends_where_a_tasks_variance_is_its_loss() -> None:
    balance = UncertaintyBalance(TASKS, {}, device=CPU)
    optimizer = torch.optim.SGD(balance.parameters(), lr=0.2)
    for _ in range(300):
        optimizer.zero_grad()
        (balance("news", torch.tensor(0.2), 1.0) + balance("score", torch.tensor(5.0), 1.0)).backward()
        optimizer.step()
    assert math.exp(balance.state()["news"]) == pytest.approx(2 * 0.2, rel=1e-3)  # d/ds of exp(-s) L + s / 2 is 0
    assert math.exp(balance.state()["score"]) == pytest.approx(5.0, rel=1e-3)


def test_uncertainty_does_not_learn_a_tasks_weight_away() -> None:
    balance = UncertaintyBalance(TASKS, {"news": 10.0}, device=CPU)
    optimizer = torch.optim.SGD(balance.parameters(), lr=0.02)
    losses = [torch.tensor(0.4, requires_grad=True), torch.tensor(0.8, requires_grad=True)]
    for _ in range(600):
        optimizer.zero_grad()
        for loss in losses:
            loss.grad = None
        (balance("news", losses[0], 1.0) + balance("score", losses[1], 1.0)).backward()
        optimizer.step()
    news, score = (float(loss.grad) for loss in losses if loss.grad is not None)
    assert news == pytest.approx(10 / (2 * 0.4), rel=1e-2)
    assert score == pytest.approx(1 / (2 * 0.8), rel=1e-2)


def test_the_task_whose_loss_falls_less_weighs_more_and_the_sum_stays() -> None:
    balance = DynamicBalance(TASKS, {})
    one = torch.tensor(1.0)
    balance.end_epoch({"news": 1.0, "score": 1.0})
    assert balance("news", one, 1.0) == balance("score", one, 1.0) == 1.0
    balance.end_epoch({"news": 0.9, "score": 0.3})
    news, score = balance("news", one, 1.0).item(), balance("score", one, 1.0).item()
    assert news > 1 > score
    assert news + score == pytest.approx(2.0)
    assert news / score == pytest.approx(math.exp((0.9 - 0.3) / 2))
    balance.end_epoch({"news": 0.9, "score": 0.3})
    assert balance("news", one, 1.0) == balance("score", one, 1.0) == 1.0  # neither fell in the last epoch


def test_a_fixed_balance_trains_nothing() -> None:
    assert FixedBalance({}).parameters() == []


def test_the_batches_of_a_step_add_up_to_what_one_batch_would_contribute() -> None:
    for balance in _balances():
        for parameter in balance.parameters():
            torch.nn.init.constant_(parameter, 0.7)
        for task in ("news", "score"):
            parts = [balance(task, torch.tensor(loss), share).item() for loss, share in ((0.5, 0.25), (1.0, 0.75))]
            assert sum(parts) == pytest.approx(balance(task, torch.tensor(1.5), 1.0).item())


def test_a_loss_that_rises_from_zero_leaves_all_weights_finite() -> None:
    balance = DynamicBalance(TASKS, {})
    balance.end_epoch({"news": 0.0, "score": 1.0})
    balance.end_epoch({"news": 1.0, "score": 1.0})
    assert balance("news", torch.tensor(1.0), 1.0).item() == pytest.approx(2.0)
