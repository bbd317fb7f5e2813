"""Decoders, and an encoder beside them: each kind learns with an adapter, and a row's prediction is its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import word_backbone
from safetensors.torch import load_file
from training_runs import Tune
from transformers import AutoModelForCausalLM
from word_backbone import save_decoder

from tutti.data.encode import EncodedPart
from tutti.errors import TrialError
from tutti.modeling.adapters import Adapter, has_bitsandbytes
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.model import load_encoder
from tutti.training.predict import predict

KINDS = ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "mistral", "phi3", "gpt2", "modernbert"]
TRAINING: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "bf16": False}
needs_bitsandbytes = pytest.mark.skipif(not has_bitsandbytes(), reason="bitsandbytes is not installed")
LORA: dict[str, Any] = {"adapter": "lora", "lora_r": 2}
Parts = dict[str, dict[str, EncodedPart]]


@pytest.fixture
def tune(make_tune: Callable[..., Tune], tmp_path: Path) -> Callable[..., Any]:
    """Makes a decoder of a kind and fine-tunes it for two steps, with an adapter unless ``adapter=None``."""

    def run(kind: str = "llama", **training: Any) -> Any:
        save_decoder(tmp_path / "backbone", kind)
        shutil.rmtree(tmp_path / "trial", ignore_errors=True)
        return make_tune(tmp_path / "backbone", **TRAINING, **LORA)(tmp_path / "trial", **training)[0]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_learns_with_an_adapter_and_predicts_a_row_alike_alone_and_among_others(
    tune: Callable[..., Any], tmp_path: Path, parts: Parts, kind: str
) -> None:
    done = tune(kind)
    saved = load_file(tmp_path / "trial/best/adapter_model.safetensors")
    assert any(weight.abs().sum() for name, weight in saved.items() if ".lora_B" in name)
    assert not (tmp_path / "trial/best/model.safetensors").exists()
    model, metadata = load_checkpoint(tmp_path / "trial/best")
    assert metadata.heads.pooling == ("attention" if kind == "modernbert" else "last")
    options: dict[str, Any] = {"task": "mood", "device": torch.device("cpu")}
    alone, together = (
        predict(model, parts["mood"]["test"], batch_size=size, **options)
        for size in (1, len(parts["mood"]["test"].ids))
    )
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-5)
    np.testing.assert_allclose(done.predictions["mood"]["test"].outputs, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gpt2"])
def test_padding_on_the_left_gives_what_padding_on_the_right_does(
    tune: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    tune(kind, adapter=None)
    model, _ = load_checkpoint(tmp_path / "trial/best")
    ids = torch.tensor([[1, 7, 9, 30], [1, 8, 8, 8]])
    with torch.inference_mode():
        alone = model("mood", ids, torch.ones_like(ids))
        for left, right in ((3, 0), (0, 3), (1, 2)):
            padded = torch.nn.functional.pad(ids, (left, right))
            mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
            torch.testing.assert_close(model("mood", padded, mask), alone, rtol=0, atol=1e-5)


@needs_bitsandbytes
@pytest.mark.parametrize(
    "training",
    [
        {"bits": 4, "weights": "bfloat16", "activation_checkpointing": True},
        {"bits": 8, "ema_decay": 0.9},
        {"use_dora": True, "use_rslora": True, "lora_targets": ["q_proj", "down_proj"], "lora_layers": 1},
        {"adapter": None, "lora_r": None, "adversarial": "fgm", "rdrop_alpha": 1.0, "pooling_layers": 2},
        {"adversarial": "awp", "max_tokens_per_batch": 64, "pooling": "mean", "weights": "bfloat16"},
        {"adapter": None, "lora_r": None, "layer_lr_decay": 0.8, "reinit_layers": 1, "mixout": 0.2},
    ],
    ids=lambda training: next(iter(training)),
)
def test_what_trains_encoders_trains_decoders_and_the_checkpoint_predicts_the_same(
    tune: Callable[..., Any], tmp_path: Path, parts: Parts, training: dict[str, Any]
) -> None:
    done = tune(**training)
    model, _ = load_checkpoint(tmp_path / "trial/best")
    outputs = predict(model, parts["mood"]["test"], task="mood", batch_size=64, device=torch.device("cpu"))
    np.testing.assert_allclose(done.predictions["mood"]["test"].outputs, outputs, rtol=0, atol=1e-5)


def test_adapters_are_at_the_layers_that_are_named_alone(tune: Callable[..., Any], tmp_path: Path) -> None:
    tune(use_dora=True, lora_targets="q_proj, down_proj", lora_layers=1)
    names = {name.split(".lora_")[0] for name in load_file(tmp_path / "trial/best/adapter_model.safetensors")}
    assert names == {f"base_model.model.layers.1.{name}" for name in ("self_attn.q_proj", "mlp.down_proj")}


def test_a_layer_that_the_backbone_does_not_have_is_named_with_those_that_it_has(tune: Callable[..., Any]) -> None:
    rule = "lora_targets must name linear layers of the backbone: down_proj, .*; got 'q_porj'; did you mean 'q_proj'"
    with pytest.raises(TrialError, match=rule):
        tune(lora_targets="q_porj")


@pytest.mark.parametrize("kind", ["llama", "phi3"])
def test_a_verbalizer_starts_from_the_probabilities_of_the_words_as_next_tokens(
    tune: Callable[..., Any], tmp_path: Path, parts: Parts, kind: str
) -> None:
    rate = {"learning_rate": 1e-12, "adapter": None, "lora_r": None}
    done = tune(kind, head="verbalizer", words={"no": "w5", "yes": "w9"}, **rate)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "backbone")
    part = parts["mood"]["test"]
    for ids, outputs in zip(part.encoded["input_ids"], done.predictions["mood"]["test"].outputs, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0, -1, [9, 13]].softmax(0)
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"no": "w5 w6", "yes": "w9"},
            "must be one token of the backbone each; got 'w5 w6' for no, which is 'w5', 'w6'",
        ),
        ({"no": "w9", "yes": "w9"}, "must differ from class to class"),
        ({"nope": "w5"}, "must have a word for each class of a task; got nope"),
    ],
)
def test_words_that_do_not_tell_the_classes_are_refused(
    tune: Callable[..., Any], words: dict[str, str], message: str
) -> None:
    with pytest.raises(TrialError, match=f"the training key words {message}"):
        tune(head="verbalizer", words=words)


@needs_bitsandbytes
def test_a_backbone_in_4_bits_is_at_no_time_held_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # the profiler does not see other threads
    monkeypatch.setattr(word_backbone, "_SIZES", {**word_backbone._SIZES, "hidden_size": 256, "intermediate_size": 512})
    save_decoder(tmp_path, "llama")
    AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path)
    adapter = Adapter(rank=1, bits=4, weights="bfloat16", compute_dtype="bfloat16")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        encoder = load_encoder(str(tmp_path), adapter=adapter)
    assert {weight.dtype for weight in encoder.parameters() if not weight.requires_grad} == {
        torch.uint8,
        torch.bfloat16,
    }
    sizes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    weights = sum(weight.numel() for weight in load_encoder(str(tmp_path)).parameters())
    file = (tmp_path / "model.safetensors").stat().st_size  # mapped, in bfloat16
    assert max(np.cumsum(sizes)) - file < 0.5 * 4 * weights


def test_swapped_pairs_are_predicted_as_the_mean_of_both_orders(tune: Callable[..., Any], parts: Parts) -> None:
    part, other = parts["mood"]["test"], parts["news.v1"]["test"]
    both = {**parts, "mood": {**parts["mood"], "test": replace(part, swapped=replace(other, ids=part.ids))}}
    done = tune(parts=both)
    alone = tune(parts={**parts, "mood": {**parts["mood"], "test": part, "again": other}})
    outputs = alone.predictions["mood"]
    expected = (outputs["test"].outputs + outputs["again"].outputs) / 2
    np.testing.assert_allclose(done.predictions["mood"]["test"].outputs, expected, rtol=0, atol=1e-6)
