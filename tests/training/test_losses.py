from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tutti.modeling.kinds.classes import ClassesHead, balanced_classes
from tutti.modeling.kinds.protocol import LossOptions
from tutti.modeling.kinds.values import ValuesHead
from tutti.training.loop.losses import duplicate_rows, training_losses

CLASSES, VALUES, ONE = ClassesHead(), ValuesHead(), torch.ones(())

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.1, 0.0, 0.0]])
LABELS = torch.tensor([0, 1])


def row_losses(logits: torch.Tensor, labels: torch.Tensor, *, smoothing: float, focal_gamma: float) -> torch.Tensor:
    return CLASSES.losses(logits, labels, scale=ONE, options=LossOptions(smoothing, focal_gamma))


def row_errors(values: torch.Tensor, labels: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
    return VALUES.losses(values, labels, scale=scale, options=LossOptions())


def divergences(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return CLASSES.divergences(first, second, scale=ONE)


def test_without_switches_it_is_cross_entropy() -> None:
    expected = cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(row_losses(LOGITS, LABELS, smoothing=0.0, focal_gamma=0.0), expected)


def test_focal_loss_takes_weight_from_rows_that_are_easy() -> None:
    plain = row_losses(LOGITS, LABELS, smoothing=0.0, focal_gamma=0.0)
    focal = row_losses(LOGITS, LABELS, smoothing=0.0, focal_gamma=2.0)
    own = LOGITS.softmax(dim=1)[[0, 1], LABELS]
    torch.testing.assert_close(focal, plain * (1 - own) ** 2)
    assert focal[0] / focal[1] < plain[0] / plain[1]


def test_errors_of_a_regression_do_not_depend_on_the_scale_of_its_labels() -> None:
    values, labels = torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0])
    small = row_errors(values, labels, scale=torch.tensor(2.0))
    large = row_errors(values * 10, labels * 10, scale=torch.tensor(20.0))
    assert small.tolist() == large.tolist() == [0.25, 1.0]


def test_r_drop_is_half_of_the_paper_s_loss_where_two_masks_disagree() -> None:
    other = torch.tensor([[1.0, 0.5, -1.0], [0.0, 0.3, 0.2]])
    first, second = LOGITS.softmax(1), other.softmax(1)
    likelihood = cross_entropy(LOGITS, LABELS, reduction="none") + cross_entropy(other, LABELS, reduction="none")
    apart = (first * (first / second).log()).sum(1) / 2 + (second * (second / first).log()).sum(1) / 2
    both = torch.cat([LOGITS, other])
    losses = training_losses(CLASSES, both, LABELS, scale=ONE, options=LossOptions(), rdrop_alpha=3.0)
    torch.testing.assert_close(losses, (likelihood + 3.0 * apart) / 2)


def test_r_drop_of_a_regression_punishes_two_masks_that_disagree() -> None:
    scale = torch.tensor(2.0)
    labels, same, apart = torch.tensor([2.0]), torch.tensor([[2.0], [2.0]]), torch.tensor([[1.0], [3.0]])

    def loss(outputs: torch.Tensor, alpha: float) -> float:
        return training_losses(VALUES, outputs, labels, scale=scale, options=LossOptions(), rdrop_alpha=alpha).item()

    assert loss(same, 3.0) == 0
    plain, punished = loss(apart, 1e-9), loss(apart, 3.0)
    assert punished == pytest.approx(plain + 3.0 / 2 * row_errors(apart[:1], apart[1], scale=scale).item())
    assert punished > plain


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_the_loss_of_several_dropout_masks_is_the_mean_of_each_one_s_and_not_that_of_their_mean(alpha: float) -> None:
    torch.manual_seed(0)
    masks = torch.randn(3, 4 if alpha else 2, 3)

    def losses(outputs: torch.Tensor) -> torch.Tensor:
        return training_losses(CLASSES, outputs, LABELS, scale=ONE, options=LossOptions(0.1, 1.0), rdrop_alpha=alpha)

    torch.testing.assert_close(losses(masks), (losses(masks[0]) + losses(masks[1]) + losses(masks[2])) / 3)
    assert (losses(masks) > losses(masks.mean(dim=0))).all()


def test_rows_come_twice_in_order() -> None:
    assert duplicate_rows({"a": torch.tensor([[1], [2]])})["a"].tolist() == [[1], [2], [1], [2]]


def test_balanced_classes_weigh_alike_and_the_mean_weight_stays() -> None:
    labels = np.array([0, 0, 0, 1, 3])
    weights = np.array([1, 1, 0.5, 1, 2], dtype=np.float32)
    balanced, same = balanced_classes(labels, weights)
    assert same is labels
    assert np.bincount(labels, weights=balanced)[[0, 1, 3]] == pytest.approx([5.5 / 3] * 3)
    assert balanced.sum() == pytest.approx(weights.sum())
    assert balanced[2] == pytest.approx(balanced[0] / 2)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_soft_label_costs_the_mean_of_what_its_classes_cost_as_hard_ones(gamma: float, smoothing: float) -> None:
    soft = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    hard = [row_losses(LOGITS, torch.tensor([index] * 2), smoothing=smoothing, focal_gamma=gamma) for index in range(3)]
    expected = (torch.stack(hard, dim=1) * soft).sum(dim=1)
    torch.testing.assert_close(row_losses(LOGITS, soft, smoothing=smoothing, focal_gamma=gamma), expected)


def test_balanced_classes_weigh_alike_where_rows_belong_to_several() -> None:
    soft = np.array([[0.9, 0.1, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 1]], dtype=np.float32)
    weights = np.array([1, 0.5, 2], dtype=np.float32)
    balanced, shifted = balanced_classes(soft, weights)
    assert balanced.sum() == pytest.approx(weights.sum())
    np.testing.assert_allclose(shifted.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(balanced @ shifted, np.array([1, 1, 0, 1]) * weights.sum() / 3, rtol=1e-6)
    hard = np.eye(4, dtype=np.float32)[[0, 0, 0, 1, 3]]
    old = np.array([1, 1, 0.5, 1, 2], dtype=np.float32)
    balanced, unchanged = balanced_classes(hard, old)
    np.testing.assert_allclose(balanced, balanced_classes(np.array([0, 0, 0, 1, 3]), old)[0], rtol=1e-6)
    np.testing.assert_allclose(unchanged, hard, rtol=1e-6)


def test_balanced_soft_labels_have_the_loss_of_torchs_class_weights() -> None:
    rng = np.random.default_rng(0)
    soft = rng.dirichlet([5, 1, 0.5], size=12).astype(np.float32)
    ones = np.ones(12, dtype=np.float32)
    logits = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    balanced, shifted = balanced_classes(soft, ones)
    losses = row_losses(logits, torch.from_numpy(shifted), smoothing=0.0, focal_gamma=0.0)
    factors = torch.from_numpy(12 / (3 * soft.sum(axis=0)))
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(soft), weight=factors, reduction="none")
    torch.testing.assert_close(losses * torch.from_numpy(balanced), expected)


def test_a_focal_loss_that_hardly_focuses_smooths_labels_as_cross_entropy_does() -> None:
    plain, focal = (row_losses(LOGITS, LABELS, smoothing=0.1, focal_gamma=gamma) for gamma in (0.0, 1e-6))
    torch.testing.assert_close(focal, plain)
