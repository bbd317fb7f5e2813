"""The language-model head scores and writes what AutoModelForCausalLM does, and comes back from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import save_model, text_task
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer
from word_backbone import save_decoder

from tutti.errors import BackboneError
from tutti.modeling.adapters import Adapter
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.kinds.protocol import LossOptions
from tutti.modeling.language_head import causal_model
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.records import TextLimit

TASK = text_task()
KINDS = [
    (kind, tied)
    for kind in ("qwen2", "qwen3", "llama", "gemma2", "gemma3_text", "mistral", "phi3", "gpt2")
    for tied in (True, False)
]
IDS = torch.tensor([[1, 7, 9, 30, 12, 5, 40, 2, 11, 2], [1, 8, 20, 61, 33, 2, 0, 0, 0, 0]])
MASK = torch.tensor([[1] * 10, [1] * 6 + [0] * 4])


def model_of(folder: Path, kind: str = "llama", *, tied: bool = True, **adapter: Any) -> MultiTaskModel:
    if not (folder / "config.json").exists():
        save_decoder(folder, kind, tied=tied)
    given = Adapter(**adapter) if adapter else None
    encoder = load_encoder(str(folder), adapter=given)
    heads = HeadOptions(pooling="last")
    return MultiTaskModel(encoder=encoder, tasks=[TASK], heads=heads, adapter=given, backbone=str(folder)).eval()


def losses(causal: Any, smoothing: float = 0.0) -> Tensor:
    """``(rows, tokens - 1)``: of each token but the first, by the model's own logits."""
    with torch.no_grad():
        logits = causal(input_ids=IDS, attention_mask=MASK).logits[:, :-1]
    return functional.cross_entropy(logits.mT, IDS[:, 1:], reduction="none", label_smoothing=smoothing)


@pytest.mark.parametrize(("kind", "tied"), KINDS)
def test_each_target_token_has_the_loss_by_the_logits_of_the_causal_model(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    model = model_of(tmp_path, kind, tied=tied)
    causal = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert ("weight" in dict(model.head("answers").named_parameters())) is not tied
    expected = losses(causal) * MASK[:, 1:]
    per_place = []  # from each place to the end, so that neighbours differ by one token
    for place in range(1, IDS.shape[1]):
        with torch.no_grad():
            out = model("answers", IDS, MASK, places=torch.tensor([place, place]))
        assert out.dtype == torch.float32
        assert out[:, 1].tolist() == MASK[:, place:].sum(dim=1).tolist()
        per_place.append(out[:, 0])
    found = torch.stack([*per_place, torch.zeros(2)]).diff(dim=0).neg().T
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_smoothed_labels_are_those_of_torch(tmp_path: Path) -> None:
    model = model_of(tmp_path, "gemma2")
    causal = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    places = torch.tensor([4, 3])
    wanted = (torch.arange(1, IDS.shape[1]) >= places[:, None]) & (MASK[:, 1:] != 0)
    expected = (losses(causal, 0.2) * wanted).sum(dim=1) / wanted.sum(dim=1)
    with torch.no_grad():
        out = model("answers", IDS, MASK, places=places)
    options = LossOptions(smoothing=0.2)
    found = model.head("answers").kind.losses(out, places, scale=torch.ones(()), options=options)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "tied"), KINDS)
def test_it_writes_what_the_causal_model_writes(tmp_path: Path, kind: str, tied: bool) -> None:
    model = model_of(tmp_path, kind, tied=tied)
    causal = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    writer = causal_model(model.encoder, model.head("answers"))
    ids = torch.tensor([[1, 7, 9, 30], [0, 1, 8, 20]])
    for settings in ({}, {"num_beams": 3, "repetition_penalty": 1.3}):
        options = {"attention_mask": (ids != 0).long(), "max_new_tokens": 12, "do_sample": False, **settings}
        assert writer.generate(ids, **options).tolist() == causal.generate(ids, **options).tolist()
    assert writer.get_input_embeddings().weight is model.encoder.get_input_embeddings().weight


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("adapter", [{}, {"rank": 2}], ids=["full", "lora"])
def test_a_checkpoint_comes_back_with_the_same_likelihoods(tmp_path: Path, tied: bool, adapter: dict[str, Any]) -> None:
    model = model_of(tmp_path / "backbone", tied=tied, **adapter)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) / 20)
    folder = save_model(
        tmp_path / "best", model, tmp_path / "backbone", limit=TextLimit(16, target_max_len=8, train_on_source=True)
    )
    assert set(load_file(folder / "heads.safetensors")) == ({"task:answers.weight"} if not (tied or adapter) else set())
    assert (folder / "model.safetensors").exists() is not bool(adapter)
    again, metadata = load_checkpoint(folder)
    assert metadata.tasks == (TASK,)
    assert metadata.limit == TextLimit(16, target_max_len=8, train_on_source=True)
    options = {"input_ids": IDS, "attention_mask": MASK, "places": torch.tensor([3, 2])}
    with torch.no_grad():
        torch.testing.assert_close(again("answers", **options), model("answers", **options), rtol=0, atol=1e-6)


def test_a_decoder_saved_without_its_head_is_refused(tmp_path: Path) -> None:
    save_decoder(tmp_path / "whole", tied=False)
    load_encoder(str(tmp_path / "whole")).save_pretrained(tmp_path / "headless")
    AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "headless")
    with pytest.raises(BackboneError, match="must hold a language-model head; got weights without lm_head"):
        model_of(tmp_path / "headless")


def test_a_head_with_a_bias_is_refused(tmp_path: Path) -> None:
    save_decoder(tmp_path, tied=False)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "lm_head.bias": torch.ones(64)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match="must have a language-model head without a bias"):
        model_of(tmp_path)
