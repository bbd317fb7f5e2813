"""Decoders, and an encoder beside them: each kind learns with an adapter, and a row's prediction is its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_runs import Tune
from word_backbone import save_decoder

from tutti.data.encode import EncodedPart
from tutti.modeling.checkpoint import load_checkpoint
from tutti.training.loop.predict import predict

KINDS = ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "mistral", "phi3", "gpt2", "modernbert"]
TRAINING: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "bf16": False}
LORA: dict[str, Any] = {"adapter": "lora", "lora_r": 2}
Parts = dict[str, dict[str, EncodedPart]]


@pytest.fixture
def tune(make_tune: Callable[..., Tune], tmp_path: Path) -> Callable[..., Any]:
    """Makes a decoder of a kind and fine-tunes it for two steps, with an adapter unless ``adapter=None``."""

    def run(kind: str = "llama", **training: Any) -> Any:
        save_decoder(tmp_path / "backbone", kind)
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
