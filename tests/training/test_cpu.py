"""What a CPU does another way while it trains is what PyTorch does, only faster."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel

from tutti.training.cpu import quick_masks, slow_attention, step_by_step


def drawn(p: float, *, dtype: torch.dtype = torch.float32, seed: int = 0, shape: tuple[int, ...] = (500, 401)):
    return torch.empty(shape, dtype=dtype).bernoulli_(p, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
@pytest.mark.parametrize("p", [0.0, 1e-4, 0.1, 0.5, 0.9, 0.9999, 1.0])
def test_a_mask_holds_ones_with_the_probability_that_was_asked_for(p, dtype):
    with quick_masks():
        mask = drawn(p, dtype=dtype)
    assert mask.dtype == dtype
    assert set(mask.double().unique().tolist()) <= {0.0, 1.0}
    rows = mask.numel()
    assert mask.double().mean().item() == pytest.approx(p, abs=5 * (p * (1 - p) / rows) ** 0.5)


def test_the_entries_of_a_mask_have_nothing_to_do_with_each_other():
    with quick_masks():
        mask = drawn(0.5, shape=(400_000,)) - 0.5
    for step in (1, 2, 3, 4, 5, 8, 624):
        assert abs((mask[step:] * mask[:-step]).mean().item()) < 5 * 0.25 / 400_000**0.5


def test_the_same_seed_gives_the_same_mask_another_one_another_and_no_shape_is_refused():
    with quick_masks():
        assert torch.equal(drawn(0.3, seed=1), drawn(0.3, seed=1))
        assert not torch.equal(drawn(0.3, seed=1), drawn(0.3, seed=2))
        torch.manual_seed(5)
        first = torch.nn.functional.dropout(torch.ones(64, 7), 0.1)
        torch.manual_seed(5)
        assert torch.equal(first, torch.nn.functional.dropout(torch.ones(64, 7), 0.1))
        assert drawn(0.3, shape=()).numel() == 1
        assert drawn(0.3, shape=(0, 3)).shape == (0, 3)
        turned = torch.full((5, 3), 7.0).t()
        assert set(turned.bernoulli_(0.5).flatten().tolist()) <= {0.0, 1.0}


def test_outside_of_the_block_masks_are_pytorchs_own_again():
    before = drawn(0.1)
    with quick_masks():
        with quick_masks():  # as where one trainer runs within another's block
            within = drawn(0.1)
        assert torch.equal(drawn(0.1), within)
    assert not torch.equal(before, within)
    assert torch.equal(before, drawn(0.1))


def test_attention_with_dropout_is_computed_step_by_step_only_within_the_block_and_comes_to_the_same():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    encoder = BertModel(config, add_pooling_layer=False).eval()
    rows = {"input_ids": torch.arange(24).view(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}
    rows["attention_mask"][0, 7:] = 0
    slow = slow_attention(torch.nn.Sequential(encoder))
    assert slow == [encoder.config]
    whole = encoder(**rows).last_hidden_state
    with step_by_step(slow):
        assert encoder.config._attn_implementation == "eager"
        stepped = encoder(**rows).last_hidden_state
    assert encoder.config._attn_implementation == "sdpa"
    kept = rows["attention_mask"].bool()
    torch.testing.assert_close(stepped[kept], whole[kept], atol=1e-5, rtol=1e-4)


def test_attention_without_dropout_or_of_another_kind_stays_what_it_is():
    assert slow_attention(BertModel(BertConfig(num_hidden_layers=1, attention_probs_dropout_prob=0.0))) == []
    assert slow_attention(BertModel(BertConfig(num_hidden_layers=1, attn_implementation="eager"))) == []
