from __future__ import annotations

import pytest
import torch

from tutti.modeling.heads import AttentionPooling, ClsPooling, Head, MeanPooling


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


def test_attention_with_a_query_of_zeros_is_the_mean() -> None:
    states, mask = torch.randn(2, 4, 8), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    torch.testing.assert_close(AttentionPooling(8)(states, mask), MeanPooling()(states, mask))


def test_the_same_seed_gives_the_same_head_and_its_scale_is_the_one_asked_for() -> None:
    heads = []
    for _ in range(2):
        torch.manual_seed(3)
        heads.append(Head(hidden=256, classes=100, pooling="attention", dropout=0.1, std=0.02))
    torch.testing.assert_close(heads[0].state_dict(), heads[1].state_dict(), rtol=0, atol=0)
    assert heads[0].linear.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert heads[0].linear.bias.abs().max() == 0


def test_a_head_gives_float32_logits_one_row_each() -> None:
    head = Head(hidden=8, classes=5, pooling="cls", dropout=0.0, std=0.02).bfloat16()
    logits = head(torch.randn(3, 4, 8, dtype=torch.bfloat16), torch.ones(3, 4))
    assert logits.shape == (3, 5)
    assert logits.dtype == torch.float32
