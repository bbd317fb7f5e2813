"""The faster CPU implementations are equivalent to PyTorch's."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel, TrainingArguments
from transformers.models.bert import modeling_bert

from tutti.training import fine_tune
from tutti.training.machine import cpu, one_device
from tutti.training.machine.cpu import eager_attention, quick_masks, slow_attention
from tutti.training.machine.one_device import OneDeviceTrainer


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
        with quick_masks():  # as if one trainer runs within another
            within = drawn(0.1)
        assert torch.equal(drawn(0.1), within)
    assert not torch.equal(before, within)
    assert torch.equal(before, drawn(0.1))


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused_as_pytorch_does(p):
    with quick_masks(), pytest.raises(RuntimeError, match="p to be in"):
        torch.empty(3).bernoulli_(p)


def test_with_many_threads_masks_are_pytorchs_own():
    before, threads = drawn(0.1), torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        with quick_masks():
            assert torch.equal(before, drawn(0.1))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_eager_attention_comes_to_the_same(padded, bf16, monkeypatch):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    encoder = BertModel(config, add_pooling_layer=False).eval()
    calls, own = [], modeling_bert.eager_attention_forward
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", lambda *a, **k: calls.append(1) or own(*a, **k))
    rows = {"input_ids": torch.arange(24).view(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.int64)}
    rows["attention_mask"][0, 7:] = 0 if padded else 1
    slow = slow_attention(torch.nn.Sequential(encoder))
    assert slow == [encoder.config]
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        whole = encoder(**rows).last_hidden_state
        assert calls == []
        with eager_attention(slow):
            stepped = encoder(**rows).last_hidden_state
    assert len(calls) == 2
    assert encoder.config._attn_implementation == "sdpa"
    filled = rows["attention_mask"].bool()
    torch.testing.assert_close(stepped[filled], whole[filled], atol=0.05 if bf16 else 1e-5, rtol=1e-4)


def test_attention_without_dropout_or_of_another_kind_stays_what_it_is():
    assert slow_attention(BertModel(BertConfig(num_hidden_layers=1, attention_probs_dropout_prob=0.0))) == []
    assert slow_attention(BertModel(BertConfig(num_hidden_layers=1, attn_implementation="eager"))) == []


class _Probe(torch.nn.Module):
    """A model that records its attention implementation and the use of quick masks in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}
        self.encoder = BertModel(BertConfig(vocab_size=32, **shape), add_pooling_layer=False)
        self.seen: list[tuple[bool, str, bool]] = []

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append((self.training, self.encoder.config._attn_implementation, bool(cpu._active_override)))
        return {"loss": self.encoder(input_ids=input_ids).last_hidden_state.mean(), "logits": labels}


@pytest.mark.parametrize(
    ("bf16", "attention", "expected"),
    [(True, None, "eager"), (False, None, "sdpa"), (True, "sdpa", "sdpa")],
)
def test_a_trainer_steps_quickly_unless_the_user_names_an_attention(bf16, attention, expected, tmp_path):
    model = _Probe()
    rows = [{"input_ids": torch.arange(6), "labels": torch.tensor(1)}] * 4
    args = TrainingArguments(
        output_dir=str(tmp_path), bf16=bf16, use_cpu=True, max_steps=2, eval_strategy="steps", eval_steps=1,
        report_to="none", disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    threads = torch.get_num_threads()
    try:
        OneDeviceTrainer(model=model, args=args, attention=attention, train_dataset=rows, eval_dataset=rows).train()
    finally:
        torch.set_num_threads(threads)
    assert {(how, quick) for training, how, quick in model.seen if training} == {(expected, True)}
    assert {how for training, how, _ in model.seen if not training} == {"sdpa"}
    assert not cpu._active_override


def test_a_trial_trains_with_the_attention_that_it_names(backbone, tasks, parts, tmp_path, monkeypatch):
    stepped: list[int] = []

    def watched(configs):
        stepped.append(len(configs))
        return eager_attention(configs)

    monkeypatch.setattr(one_device, "eager_attention", watched)
    for attention, expected in ((None, 1), ("sdpa", 0)):
        stepped.clear()
        fine_tune(
            backbone=str(backbone),
            tasks=tasks,
            parts=parts,
            training={"num_train_epochs": 1, "bf16": True, "attn_implementation": attention, "use_cpu": True},
            folder=tmp_path / str(attention),
            on_epoch=lambda report: None,
        )
        assert set(stepped) == {expected}
