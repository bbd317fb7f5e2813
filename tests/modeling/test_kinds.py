"""The head of each kind: what it predicts, what it minimises, and how far two passes are apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from tutti.modeling.heads import Head, HeadOptions
from tutti.modeling.kinds.choice import ABSENT, ChoiceHead, by_row
from tutti.modeling.kinds.labels import LabelsHead
from tutti.modeling.kinds.ordered import CornHead, OrderedValueHead
from tutti.modeling.kinds.protocol import HeadKind, LossOptions
from tutti.modeling.kinds.registry import head_kind
from tutti.modeling.kinds.tokens import ChainHead, LanesHead, TokensHead
from tutti.modeling.kinds.values import ValuesHead
from tutti.modeling.token_head import TokenHead

ONE, NAN, CLASSES = torch.ones(()), float("nan"), 4
LABELS, CORN, VALUE, VALUES = LabelsHead(), CornHead(), OrderedValueHead(), ValuesHead()
CHOICE = ChoiceHead()
KINDS = {
    "classes": head_kind("classes"),
    "labels": head_kind("labels"),
    "value": head_kind("value"),
    "values": head_kind("values"),
    **{f"ordered {name}": head_kind("ordered", ordered=name) for name in ("softmax", "regression", "corn")},
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
WITH_PROBABILITIES = {
    name: kind for name, kind in KINDS.items() if name not in ("value", "values", "ordered regression")
}
with_probabilities = pytest.mark.parametrize("kind", WITH_PROBABILITIES.values(), ids=WITH_PROBABILITIES)
TRUTH = torch.tensor([[1.0, 0.0, NAN], [0.0, 1.0, 1.0], [NAN, NAN, NAN]])


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def losses(kind: HeadKind, head: torch.Tensor, labels: torch.Tensor, **options: float) -> torch.Tensor:
    return kind.losses(head, labels, scale=ONE, options=LossOptions(**options))


def labels_for(kind: HeadKind, rows: int) -> torch.Tensor:
    if isinstance(kind, LabelsHead | ValuesHead):
        return torch.tensor([[1.0, 0.0, NAN, 1.0]] * rows)
    return torch.arange(rows) % CLASSES


def of_known_labels(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], head: torch.Tensor) -> torch.Tensor:
    """By row the mean of a loss over its known labels, one at a time; 0 where it has none."""
    rows = []
    for outputs, labels in zip(head, TRUTH, strict=True):
        pairs = zip(outputs, labels, strict=True)
        known = [loss(output, label) for output, label in pairs if not label.isnan()]
        rows.append(torch.stack(known).mean() if known else torch.zeros(()))
    return torch.stack(rows)


def test_several_labels_cost_the_mean_cross_entropy_of_those_that_are_known() -> None:
    head = randn(3, 3)
    torch.testing.assert_close(losses(LABELS, head, TRUTH), of_known_labels(bce, head))


def test_smoothed_labels_cost_as_if_each_were_nearer_to_a_half() -> None:
    head = randn(3, 3)
    expected = of_known_labels(lambda output, label: bce(output, label * 0.8 + 0.1), head)
    torch.testing.assert_close(losses(LABELS, head, TRUTH, smoothing=0.2), expected)


def test_the_focal_loss_of_labels_is_that_of_the_paper() -> None:
    def focal(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        own = output.sigmoid() if label == 1 else 1 - output.sigmoid()
        return -((1 - own) ** 2) * own.log()

    head = randn(3, 3)
    torch.testing.assert_close(losses(LABELS, head, TRUTH, focal_gamma=2.0), of_known_labels(focal, head))


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"focal_gamma": 2.0}], ids=str)
def test_a_soft_label_costs_the_mean_of_what_no_and_yes_cost(options: dict[str, float]) -> None:
    head, soft = randn(5, 1), torch.tensor([[0.3], [0.0], [1.0], [0.5], [0.9]])
    no, yes = (losses(LABELS, head, torch.full_like(soft, label), **options) for label in (0.0, 1.0))
    expected = (1 - soft[:, 0]) * no + soft[:, 0] * yes
    torch.testing.assert_close(losses(LABELS, head, soft, **options), expected)


def test_balanced_labels_give_no_and_yes_of_each_label_the_same_weight() -> None:
    labels = np.array([[1, 0, np.nan], [0, 0, 1], [0, 0, 0], [0, 1, 0], [0, np.nan, 0]], dtype=np.float32)
    weights = np.array([1, 2, 0.5, 1, 1], dtype=np.float32)
    same, terms = LABELS.balanced(labels, weights)
    assert same is weights
    totals = np.einsum("r,rkt->kt", weights, terms)
    np.testing.assert_allclose(totals[:, 0], totals[:, 1], rtol=1e-6)
    np.testing.assert_allclose(totals.sum(axis=1), (weights[:, None] * ~np.isnan(labels)).sum(axis=0), rtol=1e-6)
    assert (terms[np.isnan(labels)] == 0).all()


def test_balanced_labels_of_one_sort_are_as_they_were_and_those_of_none_stay_unknown() -> None:
    labels = np.array([[1, np.nan, 0], [1, np.nan, 1]], dtype=np.float32)
    weights, terms = LABELS.balanced(labels, np.ones(2, dtype=np.float32))
    head = randn(2, 3)
    plain = losses(LABELS, head, torch.from_numpy(labels))
    torch.testing.assert_close(losses(LABELS, head, torch.from_numpy(terms)), plain)
    assert weights.tolist() == [1, 1]


def test_balanced_labels_cost_what_torch_s_weights_of_yes_and_no_do() -> None:
    labels = (randn(20, 3) > 0.8).float()
    _, terms = LABELS.balanced(labels.numpy(), np.ones(20, dtype=np.float32))
    head, share = randn(20, 3) * 2, labels.mean(dim=0)
    expected = (bce(head, labels, reduction="none") * torch.where(labels == 1, 0.5 / share, 0.5 / (1 - share))).mean(1)
    torch.testing.assert_close(losses(LABELS, head, torch.from_numpy(terms)), expected)


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"focal_gamma": 2.0, "smoothing": 0.2}], ids=str)
def test_a_choice_costs_what_a_class_does_among_the_candidates_that_the_row_has(options: dict[str, float]) -> None:
    counts, labels = torch.tensor([2, 4, 3]), torch.tensor([1, 3, 0])
    scores = randn(9).requires_grad_()
    head = by_row(scores, counts, CLASSES)
    got = losses(CHOICE, head, labels, **options)
    alone = zip(scores.split(counts.tolist()), labels, strict=True)
    expected = [losses(KINDS["classes"], each[None], label[None], **options) for each, label in alone]
    torch.testing.assert_close(got, torch.cat(expected))
    soft = torch.nn.functional.one_hot(labels, CLASSES).float()
    torch.testing.assert_close(losses(CHOICE, head, soft, **options), got)
    got.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert CHOICE.divergences(head, head * 2, scale=ONE).isfinite().all()


def test_candidates_are_scored_by_row_and_those_that_a_row_lacks_have_probability_0() -> None:
    head = by_row(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]] * 2), torch.tensor([2, 3]), CLASSES)
    assert head.shape == (2, 2, CLASSES)
    torch.testing.assert_close(head[1], torch.tensor([[1, 2, ABSENT, ABSENT], [3, 4, 5, ABSENT]]))
    predicted = CHOICE.predict(head[0], CLASSES)
    assert (predicted == 0).tolist() == [[False, False, True, True], [False, False, False, True]]
    torch.testing.assert_close(predicted.sum(dim=1), torch.ones(2))


def test_corn_s_loss_is_that_of_the_paper() -> None:
    labels, head = torch.tensor([0, 1, 2, 3, 3, 1, 0]), randn(7, CLASSES - 1)
    total, examples = torch.zeros(()), 0
    for k in range(CLASSES - 1):  # task k: of the rows at least of class k, which are of a higher one
        for row in range(7):
            if labels[row] >= k:
                total += bce(head[row, k], (labels[row] > k).float())
                examples += 1
    row_losses = losses(CORN, head, labels)
    torch.testing.assert_close(row_losses.sum() / examples, total / examples)
    alone = torch.stack([losses(CORN, head[[row]], labels[[row]])[0] for row in range(7)])
    torch.testing.assert_close(row_losses, alone)


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"focal_gamma": 2.0}])
def test_probabilities_of_0_and_1_cost_in_corn_as_labels_do(options: dict[str, float]) -> None:
    labels, head = torch.tensor([0, 1, 2, 3]), randn(4, CLASSES - 1)
    torch.testing.assert_close(losses(CORN, head, torch.eye(4), **options), losses(CORN, head, labels, **options))


def test_corn_learns_the_shares_of_classes() -> None:
    head, shares = torch.zeros(1, CLASSES - 1, requires_grad=True), torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    optimizer = torch.optim.LBFGS([head], max_iter=100)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = losses(CORN, head, shares).sum()
        loss.backward()
        return loss

    optimizer.step(step)
    torch.testing.assert_close(CORN.predict(head.detach(), CLASSES), shares, atol=1e-3, rtol=0)


def test_an_ordered_value_costs_its_squared_distance_to_the_class() -> None:
    head, scale = torch.tensor([[0.5], [3.0]]), torch.tensor(2.0)
    got = VALUE.losses(head, torch.tensor([1, 1]), scale=scale, options=LossOptions())
    assert got.tolist() == [0.0625, 1.0]
    soft = torch.tensor([[0.5, 0.5, 0, 0], [0, 0.5, 0, 0.5]])
    assert VALUE.losses(head, soft, scale=scale, options=LossOptions()).tolist() == [0.0, 0.25]


def test_an_ordered_value_is_decided_as_the_class_nearest_to_it() -> None:
    values = torch.tensor([[-5.0], [0.4], [0.6], [2.2], [9.0]])
    assert VALUE.predict(values, CLASSES).argmax(dim=1).tolist() == [0, 0, 1, 2, 3]


def test_tags_begin_as_likely_as_they_are_except_in_a_chain() -> None:
    labels = torch.tensor([[0] * 90 + [1] * 9 + [-1]] * 10, dtype=torch.int32)
    kinds = (TokensHead(), ChainHead())
    plain, chain = (TokenHead(hidden=4, outputs=3, options=HeadOptions(), std=0.02, kind=kind) for kind in kinds)
    for head in (plain, chain):
        head.fit_labels(labels, torch.ones(10))
    torch.testing.assert_close(plain.linear.bias.softmax(0), torch.tensor([0.908, 0.091, 0.001]), atol=0.002, rtol=0)
    assert not chain.linear.bias.any()


def test_overlapping_tags_of_each_type_begin_as_likely_as_they_are() -> None:
    labels = torch.zeros(40, 20, dtype=torch.int32)  # two types of ten words
    labels[:, 0], labels[:, 1], labels[:8, 10] = 1, 2, 3
    labels[0, 19] = -1
    head = TokenHead(hidden=4, outputs=5, options=HeadOptions(), std=0.02, kind=LanesHead())
    head.fit_labels(labels, torch.ones(40))
    outside, *marked = head.linear.bias.tolist()
    shares = [torch.tensor([outside, *own]).softmax(0) for own in (marked[:2], marked[2:])]
    torch.testing.assert_close(shares[0], torch.tensor([0.8, 0.1, 0.1]), atol=0.01, rtol=0)
    torch.testing.assert_close(shares[1], torch.tensor([0.98, 0.02, 0.0025]), atol=0.005, rtol=0)


def test_several_numbers_cost_the_mean_squared_error_of_those_that_are_known() -> None:
    head, scale = randn(3, 3), torch.tensor([1.0, 2.0, 0.5])
    got = VALUES.losses(head, TRUTH, scale=scale, options=LossOptions())
    scaled = torch.stack([head[0] - TRUTH[0], head[1] - TRUTH[1]]) / scale
    expected = [scaled[0, :2].square().mean(), scaled[1].square().mean(), torch.zeros(())]
    torch.testing.assert_close(got, torch.stack(expected))


def test_a_head_of_several_numbers_starts_at_their_means_also_where_some_are_missing() -> None:
    labels = torch.tensor([[1.0, 10.0, NAN], [3.0, NAN, NAN], [5.0, 30.0, NAN]])
    head = Head(hidden=8, outputs=3, options=HeadOptions("cls"), std=0.02, pair=False, kind=VALUES)
    head.fit_labels(labels, torch.tensor([1.0, 1.0, 2.0]))
    assert head.shift.tolist() == pytest.approx([3.5, 70 / 3, 0.0])  # nothing is known of the last
    assert (head.scale > 0).all()
    assert head(torch.ones(1, 2, 5, 8), torch.ones(2, 5)).isfinite().all()


@each_kind
def test_a_head_predicts_one_number_for_each_output(kind: HeadKind) -> None:
    predicted = kind.predict(randn(5, kind.width(CLASSES)) * 50, CLASSES)
    assert predicted.shape == (5, CLASSES)
    assert predicted.dtype == torch.float32
    if not isinstance(kind, LabelsHead | ValuesHead):
        torch.testing.assert_close(predicted.sum(dim=1), torch.ones(5))
    if not isinstance(kind, ValuesHead):
        assert ((predicted >= 0) & (predicted <= 1)).all()


@each_kind
def test_two_passes_are_apart_both_ways_alike_and_not_at_all_where_they_agree(kind: HeadKind) -> None:
    first, second = randn(2, 5, kind.width(CLASSES)).unbind()
    there, back = (kind.divergences(*each, scale=ONE) for each in ((first, second), (second, first)))
    torch.testing.assert_close(there, back)
    assert there.shape == (5,)
    assert (there > 0).all()
    assert kind.divergences(first, first, scale=ONE).abs().max() < 1e-6


def test_labels_are_apart_by_the_divergence_of_their_probabilities() -> None:
    first, second = randn(2, 5, 3).unbind()
    p, q = (torch.stack([1 - each.sigmoid(), each.sigmoid()]) for each in (first, second))
    expected = ((p * (p / q).log()).sum(0) + (q * (q / p).log()).sum(0)).mean(1) / 2
    torch.testing.assert_close(LABELS.divergences(first, second, scale=ONE), expected)


@each_kind
@pytest.mark.parametrize("options", [{}, {"focal_gamma": 0.5}, {"focal_gamma": 2.0, "smoothing": 0.1}], ids=str)
def test_the_gradient_of_a_row_that_is_certain_is_finite(kind: HeadKind, options: dict[str, float]) -> None:
    for sign in (90.0, -90.0):
        head = torch.full((CLASSES, kind.width(CLASSES)), sign, requires_grad=True)
        losses(kind, head, labels_for(kind, CLASSES), **options).sum().backward()
        assert head.grad is not None
        assert head.grad.isfinite().all()


@with_probabilities
def test_focal_losses_are_lower_and_smoothing_punishes_certainty(kind: HeadKind) -> None:
    labels = labels_for(kind, CLASSES)
    head = randn(CLASSES, kind.width(CLASSES)) * 3
    assert (losses(kind, head, labels, focal_gamma=1.0) < losses(kind, head, labels)).all()
    torch.testing.assert_close(losses(kind, head, labels, focal_gamma=1e-6), losses(kind, head, labels))
    assert losses(kind, head * 30, labels, smoothing=0.1).mean() > losses(kind, head, labels, smoothing=0.1).mean()


@each_kind
def test_a_head_gives_float32_under_autocast(kind: HeadKind) -> None:
    head = Head(hidden=8, outputs=CLASSES, options=HeadOptions("cls"), std=0.02, pair=False, kind=kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = head(torch.ones(1, 2, 5, 8), torch.ones(2, 5))
        assert losses(kind, outputs, labels_for(kind, 2)).dtype == torch.float32
    assert outputs.dtype == torch.float32
    assert outputs.shape == (2, kind.width(CLASSES))
