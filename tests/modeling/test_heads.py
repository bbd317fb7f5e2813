from __future__ import annotations

import pytest
import torch

from tutti.modeling.heads import (
    AttentionPooling,
    BiEncoderPooling,
    ClsPooling,
    Head,
    HeadOptions,
    LayerMix,
    MeanPooling,
    PairPooling,
    texts_apart,
)
from tutti.modeling.kinds.classes import ClassesHead
from tutti.modeling.kinds.values import ValuesHead


@pytest.mark.parametrize("pooling", [AttentionPooling(8), ClsPooling(), MeanPooling()])
def test_padding_does_not_change_what_is_pooled(pooling: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in pooling.parameters():
        torch.nn.init.normal_(parameter)
    states, mask = torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.int64)
    padded = torch.cat([states, 100 * torch.randn(3, 4, 8)], dim=1)
    padded_mask = torch.cat([mask, torch.zeros(3, 4, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(pooling(padded, padded_mask), pooling(states, mask))


def test_attention_weighs_tokens_by_the_softmax_of_their_dot_product_with_the_query() -> None:
    torch.manual_seed(0)
    pooling = AttentionPooling(4)
    torch.nn.init.normal_(pooling.query)
    states = torch.randn(1, 3, 4)
    weights = torch.softmax(torch.stack([states[0, i] @ pooling.query for i in range(3)]), dim=0)
    expected = sum(weights[i] * states[0, i] for i in range(3))
    torch.testing.assert_close(pooling(states, torch.ones(1, 3))[0], expected)


def _a_pair() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, mask and token types of one row: two tokens of the first text, three of the second, one of padding."""
    torch.manual_seed(0)
    return torch.randn(1, 6, 4), torch.tensor([[1, 1, 1, 1, 1, 0]]), torch.tensor([[0, 0, 1, 1, 1, 0]])


def test_pair_pooling_sets_the_means_of_both_texts_side_by_side_and_against_each_other() -> None:
    states, mask, types = _a_pair()
    u, v = states[0, :2].mean(dim=0), states[0, 2:5].mean(dim=0)
    torch.testing.assert_close(PairPooling()(states, mask, types)[0], torch.cat([u, v, (u - v).abs(), u * v]))
    with pytest.raises(ValueError, match="token types"):
        PairPooling()(states, mask)


@pytest.mark.parametrize("pooling", ["pair", "bi_encoder"])
def test_a_head_that_compares_two_texts_takes_the_mean_of_single_ones(pooling: str) -> None:
    states, mask, _ = _a_pair()
    options = HeadOptions(pooling=pooling, dropout=0.0)
    assert Head(hidden=4, outputs=3, options=options, std=0.5, pair=True, kind=ClassesHead()).linear.in_features == 16
    of_singles = Head(hidden=4, outputs=3, options=options, std=0.5, kind=ClassesHead())
    torch.testing.assert_close(of_singles([states], mask), of_singles.linear(MeanPooling()(states, mask)))


def test_texts_apart_are_the_first_texts_and_then_the_second_ones_each_with_the_token_in_front() -> None:
    ids = torch.tensor([[1, 5, 6, 2, 7, 2], [1, 8, 2, 9, 2, 0]])
    types = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]])
    mask = (ids != 0).long()
    apart, apart_mask = texts_apart(ids, mask, types, pad=0)
    rows = [row[kept > 0].tolist() for row, kept in zip(apart, apart_mask, strict=True)]
    assert rows == [[1, 5, 6, 2], [1, 8, 2], [1, 7, 2], [1, 9, 2]]
    assert apart.shape == apart_mask.shape == (4, 4)
    assert not apart[apart_mask == 0].any()  # nothing of the other text
    with pytest.raises(ValueError, match="token types"):
        texts_apart(ids, mask, None, pad=0)


def test_a_bi_encoder_sets_the_means_of_both_texts_side_by_side_and_against_each_other() -> None:
    torch.manual_seed(0)
    states, mask = torch.randn(4, 3, 5), torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
    u, v = states[1, :2].mean(dim=0), states[3].mean(dim=0)
    pooled = BiEncoderPooling()(states, mask)
    torch.testing.assert_close(pooled[1], torch.cat([u, v, (u - v).abs(), u * v]))
    assert len(pooled) == 2


def test_a_bi_encoder_starts_a_regression_with_the_cosine_as_its_scale_from_lowest_to_highest_label() -> None:
    torch.manual_seed(0)
    options = HeadOptions(pooling="bi_encoder", dropout=0.5)
    head = Head(hidden=4, outputs=1, options=options, std=0.5, pair=True, kind=ValuesHead())
    head.fit_labels(torch.tensor([1.0, 3.0, 5.0, 99.0]), torch.tensor([1.0, 1.0, 1.0, 0.0]))
    u = torch.tensor([1.0, 0.0, 0.0, 0.0])
    v = torch.tensor([[2.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    states = torch.cat([u.expand(3, 4), v]).unsqueeze(1)
    values = head([states], torch.ones(6, 1))
    torch.testing.assert_close(values[:, 0], torch.tensor([5.0, 1.0, 1 + 4 * 0.5**0.5]))
    values.sum().backward()
    assert head.similarity is not None
    assert head.similarity.grad is not None
    assert head.linear.weight.grad is not None
    assert head.linear.weight.grad.abs().sum() > 0


def test_the_same_seed_gives_the_same_head_and_its_scale_is_the_one_asked_for() -> None:
    heads = []
    for _ in range(2):
        torch.manual_seed(3)
        heads.append(Head(hidden=256, outputs=100, options=HeadOptions(), std=0.02, kind=ClassesHead()))
    torch.testing.assert_close(heads[0].state_dict(), heads[1].state_dict(), rtol=0, atol=0)
    assert heads[0].linear.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert heads[0].linear.bias.abs().max() == 0
    assert isinstance(heads[0].pooling, AttentionPooling)
    assert heads[0].pooling.query.std().item() == pytest.approx(0.02, rel=0.2)


def test_a_mix_of_layers_starts_as_their_mean_and_shifts_as_its_weights_do() -> None:
    states = [torch.full((1, 2, 3), value) for value in (1.0, 2.0, 6.0)]
    mix = LayerMix(3)
    torch.testing.assert_close(mix(states), torch.full((1, 2, 3), 3.0))
    mix(states).sum().backward()
    gradient = mix.weights.grad
    assert gradient is not None
    assert gradient[0] < gradient[1] < 0 < gradient[2]  # a larger weight of a larger state increases the sum
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 50.0, 0.0]))
    torch.testing.assert_close(mix(states), states[1])


def test_a_head_without_a_mix_takes_the_last_layer_alone() -> None:
    torch.manual_seed(0)
    head = Head(hidden=4, outputs=2, options=HeadOptions(dropout=0.0), std=0.5, kind=ClassesHead())
    states, other, mask = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.ones(2, 3)
    assert head.mix is None
    torch.testing.assert_close(head([other, states], mask), head([states], mask))


def test_several_dropout_samples_give_the_output_with_each_mask() -> None:
    torch.manual_seed(0)
    states, mask = [torch.randn(2, 4, 64)], torch.ones(2, 4)
    options = HeadOptions(pooling="mean", dropout=0.5, dropout_samples=400)
    head = Head(hidden=64, outputs=3, options=options, std=0.5, kind=ClassesHead())
    outputs = head(states, mask).detach()
    assert outputs.shape == (400, 2, 3)
    assert len(outputs.unique(dim=0)) == 400
    torch.testing.assert_close(outputs.mean(dim=0), head.eval()(states, mask), rtol=0, atol=0.6)


@pytest.mark.parametrize("samples", [1, 4])
def test_dropout_takes_its_share_of_what_is_pooled_and_scales_up_the_rest(samples: int) -> None:
    torch.manual_seed(0)
    options = HeadOptions(pooling="mean", dropout=0.75, dropout_samples=samples)
    head = Head(hidden=64, outputs=64, options=options, std=0.5, kind=ClassesHead())
    torch.nn.init.eye_(head.linear.weight)
    outputs = head([torch.ones(50, 2, 64)], torch.ones(50, 2))
    assert outputs.unique().tolist() == [0.0, 4.0]
    assert (outputs == 0).float().mean().item() == pytest.approx(0.75, abs=0.05)


def test_dropout_samples_change_nothing_once_training_is_over() -> None:
    states, mask = [torch.randn(2, 4, 8)], torch.ones(2, 4)
    outputs = []
    for samples in (1, 8):
        torch.manual_seed(0)
        options = HeadOptions(dropout=0.5, dropout_samples=samples)
        outputs.append(Head(hidden=8, outputs=3, options=options, std=0.5, kind=ClassesHead()).eval()(states, mask))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)


def _regression(seed: int = 0) -> Head:
    torch.manual_seed(seed)
    return Head(hidden=8, outputs=1, options=HeadOptions(dropout=0.0), std=0.5, kind=ValuesHead())


def test_a_regression_takes_the_weighted_mean_and_spread_of_its_labels() -> None:
    head = _regression()
    head.fit_labels(torch.tensor([1.0, 5.0, 100.0]), torch.tensor([3.0, 1.0, 0.0]))
    assert head.shift.item() == pytest.approx(2)
    assert head.scale.item() == pytest.approx(3**0.5)
    torch.nn.init.zeros_(head.linear.weight)
    torch.testing.assert_close(head([torch.randn(2, 3, 8)], torch.ones(2, 3)), torch.full((2, 1), 2.0))


def test_a_regression_learns_alike_whatever_the_scale_of_its_labels() -> None:
    states, mask, labels = [torch.randn(6, 3, 8)], torch.ones(6, 3), torch.randn(6)
    gradients, outputs = [], []
    for factor, shift in ((1.0, 0.0), (1000.0, -7.0), (1e-8, 0.0)):
        head = _regression()
        own = labels * factor + shift
        head.fit_labels(own, torch.ones(6))
        values = head(states, mask)
        (((values.squeeze(1) - own) / head.scale) ** 2).mean().backward()
        assert head.linear.weight.grad is not None
        gradients.append(head.linear.weight.grad)
        outputs.append((values - shift) / factor)
    for other in (1, 2):
        torch.testing.assert_close(gradients[0], gradients[other], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(outputs[0], outputs[other], rtol=1e-4, atol=1e-5)


def test_labels_that_are_all_the_same_leave_a_regression_finite() -> None:
    head = _regression()
    head.fit_labels(torch.full((4,), 2.5), torch.ones(4))
    values = head([torch.randn(2, 3, 8)], torch.ones(2, 3))
    assert values.isfinite().all()
    torch.testing.assert_close(values, torch.full((2, 1), 2.5), rtol=0, atol=1e-4)


def test_what_a_regression_was_fitted_to_is_saved_and_is_no_weight() -> None:
    head, other = _regression(), _regression(1)
    head.fit_labels(torch.tensor([1.0, 3.0]), torch.ones(2))
    other.load_state_dict(head.state_dict())
    assert (other.shift.item(), other.scale.item()) == (2.0, 1.0)
    assert {"shift", "scale"}.isdisjoint(name for name, _ in head.named_parameters())


@pytest.mark.parametrize("pooling", ["attention", "cls", "mean", "pair"])
def test_a_row_of_several_windows_is_the_mean_of_their_pooled_states(pooling: str) -> None:
    torch.manual_seed(0)
    head = Head(hidden=8, outputs=3, options=HeadOptions(pooling), std=1.0, pair=True, kind=ClassesHead()).eval()
    states, mask = torch.randn(5, 4, 8), torch.ones(5, 4, dtype=torch.int64)
    types = torch.tensor([[0, 0, 1, 1]] * 5)
    outputs = head((states,), mask, types, torch.tensor([3, 1, 1]))
    alone = head((states,), mask, types)  # the linear layer of a mean is the mean of linear layers
    torch.testing.assert_close(outputs, torch.stack([alone[:3].mean(dim=0), alone[3], alone[4]]))


def test_a_row_of_several_windows_learns_through_one_dropout_mask_and_each_window() -> None:
    head = Head(hidden=8, outputs=3, options=HeadOptions("mean", dropout_samples=2), std=1.0, kind=ClassesHead())
    states = torch.randn(3, 4, 8, requires_grad=True)
    outputs = head((states,), torch.ones(3, 4, dtype=torch.int64), windows=torch.tensor([2, 1]))
    assert outputs.shape == (2, 2, 3)
    outputs.sum().backward()
    assert states.grad is not None
    assert (states.grad.abs().sum(dim=(1, 2)) > 0).all()


def test_a_bi_encoder_compares_texts_in_each_window() -> None:
    torch.manual_seed(0)
    head = Head(hidden=8, outputs=1, options=HeadOptions("bi_encoder"), std=1.0, pair=True, kind=ValuesHead()).eval()
    states, mask = torch.randn(6, 4, 8), torch.ones(6, 4, dtype=torch.int64)  # of three windows: first and second texts
    assert head((states,), mask, windows=torch.tensor([2, 1])).shape == (2, 1)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_dropout_before_pooling_takes_single_values_of_token_states_in_training_alone(rate: float) -> None:
    head = Head(
        hidden=8, outputs=2, options=HeadOptions("mean", pooling_dropout=rate, dropout=0.0), std=1.0, kind=ClassesHead()
    )
    states, mask = torch.randn(1, 4, 8), torch.ones(1, 4, dtype=torch.int64)
    assert torch.equal(head([states], mask), head([states], mask)) == (rate == 0)
    head.eval()
    torch.testing.assert_close(head([states], mask), head.linear(states.mean(dim=1)))
