"""Packed rows: what a model gives them, and what it learns from them, is what padded ones would give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from tutti.errors import TrialError
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel
from tutti.modeling.packed import Layout, pack_rows, varlen_attention
from tutti.tasks.task import Task

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "modernbert": {"local_attention": 6, "global_attn_every_n_layers": 2},
    "electra": {"embedding_size": 32},
    "distilbert": {"dim": 32, "n_heads": 2, "n_layers": 2, "hidden_dim": 64},
    "llama": GROUPED,
    "qwen2": {"num_key_value_heads": 1},
    "qwen3": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 3},
    "gemma2": {**GROUPED, "sliding_window": 3},
    "gemma3_text": {**GROUPED, "sliding_window": 3},
    "phi3": {"num_key_value_heads": 1},
}
LENGTHS = (5, 12, 3, 9, 1)
TASK = Task(name="mood", names=("no", "yes", "so"), pair=True, metric="accuracy", submission="csv")


def model_of(kind: str, **heads: Any) -> MultiTaskModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SMALL, **SPECIAL, "initializer_range": 0.3, **KINDS.get(kind, {})})
    encoder = AutoModel.from_config(config)
    return MultiTaskModel(encoder=encoder, tasks=[TASK], heads=HeadOptions(dropout=0.0, **heads)).eval()


def both_batches(lengths: tuple[int, ...] = LENGTHS) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The same random rows padded, and packed with two rows of no token and seven tokens after the last row."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(4, 64, (length,), generator=generator) for length in lengths]
    types = [torch.arange(length) * 2 // max(length, 2) for length in lengths]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    padded = {"input_ids": pad(rows, batch_first=True, padding_value=1), "attention_mask": mask}
    padded["token_type_ids"] = pad(types, batch_first=True)
    row_mask = torch.cat([mask, torch.zeros_like(mask[:2])]).bool()[None]
    ends = torch.ones(7, dtype=torch.int64)
    packed = {"input_ids": torch.cat([*rows, ends])[None], "token_type_ids": torch.cat([*types, 0 * ends])[None]}
    return padded, {**packed, "attention_mask": torch.ones_like(packed["input_ids"]), "row_mask": row_mask}


def assert_same_loss_and_gradients(model: MultiTaskModel) -> None:
    pack_rows(model.encoder, asked=False, exact=True)
    found = []
    for inputs in both_batches():
        model.zero_grad(set_to_none=True)
        outputs = model("mood", **inputs)[: len(LENGTHS)]
        loss = torch.nn.functional.cross_entropy(outputs, torch.tensor([0, 2, 1, 1, 0]), reduction="sum")
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        found.append({"outputs": outputs.detach(), "loss": loss.detach(), **gradients})
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[0]["outputs"][0], found[0]["outputs"][1], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_gradients_and_predictions_are_those_of_padded_rows(kind: str) -> None:
    assert_same_loss_and_gradients(model_of(kind, pooling="attention"))


@pytest.mark.parametrize("pooling", ["cls", "last", "mean", "pair"])
def test_each_pooling_pools_a_row_alone(pooling: str) -> None:
    assert_same_loss_and_gradients(model_of("bert", pooling=pooling, layers=2))


def test_an_attention_of_its_own_chooses_the_rows_by_a_mask_too() -> None:
    model = model_of("modernbert")
    model.encoder.config._attn_implementation = "eager"
    assert_same_loss_and_gradients(model)


@pytest.mark.parametrize("kind", ["deberta-v2", "gpt2", "fnet"])
def test_a_backbone_that_cannot_keep_rows_apart_is_refused(kind: str) -> None:
    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 2} if kind == "gpt2" else {}
    encoder = AutoModel.from_config(AutoConfig.for_model(kind, **{**SMALL, **SPECIAL, **sizes}))
    message = f"the training key batching must be padded for a backbone .* packed with a model of type '{kind}'"
    with pytest.raises(TrialError, match=message):
        pack_rows(encoder, asked=False, exact=True)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.1}, {"sliding_window": 4}], ids=str)
def test_a_gpu_s_kernel_takes_rows_by_their_bounds_and_gives_gradients(options: dict[str, Any]) -> None:
    shapes = [(2, heads, 16, 8) for heads in (4, 2, 2)]
    states = [torch.randn(shape, device="meta", dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    bounds = torch.zeros(9, dtype=torch.int32, device="meta")
    module = torch.nn.Module()
    outputs, _ = varlen_attention(module, *states, None, cu_seq_lens_q=bounds, max_length_q=7, scaling=0.3, **options)
    assert outputs.shape == (2, 16, 4, 8)
    assert [each.shape for each in torch.autograd.grad(outputs.sum(), states)] == shapes


def test_bounds_say_where_each_row_begins_and_divide_what_follows_the_last() -> None:
    row_mask = torch.tensor([[[1, 1, 0], [1, 1, 1], [0, 0, 0]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]).bool()
    layout = Layout.of(row_mask, 10)
    assert layout.bounds.tolist() == [0, 2, 5, 5, 8, 10, 10, 10, 11, 13, 16, 19, 20, 20, 20]
    assert layout.segments.tolist() == [[0, 0, 1, 1, 1, 3, 3, 3, 3, 3], [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]]
    assert layout.positions.tolist() == [[0, 1, 0, 1, 2, 0, 0, 0, 0, 0], [0, 0, 1, 0, 1, 2, 0, 0, 0, 0]]
