"""LoRA and QLoRA through fine_tune: training, checkpoints, weight averages, and resuming."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_runs import Tune, newest_state

from tutti.modeling.adapters import has_bitsandbytes
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.model import MultiTaskModel

TRAINING = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "bf16": False}
TRAINING |= {"adapter": "lora", "lora_r": 4, "lora_dropout": 0.1}

needs_bitsandbytes = pytest.mark.skipif(not has_bitsandbytes(), reason="bitsandbytes is not installed")
STRAIN = [needs_bitsandbytes, pytest.mark.strain]
BITS = [None, pytest.param(4, marks=needs_bitsandbytes), pytest.param(8, marks=needs_bitsandbytes)]


@pytest.fixture(scope="module")
def tune(make_tune: Callable[..., Tune], backbone: Path) -> Tune:
    return make_tune(backbone, **TRAINING)


def _state(folder: Path, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    """The newest state's tensors."""
    return load_file(newest_state(folder) / file)


@contextmanager
def _watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[MultiTaskModel, dict[str, torch.Tensor]]]]:
    """Collects every model made from a backbone, with a copy of its initial weights."""
    seen = []
    module = importlib.import_module("tutti.training.loop.stage_model")
    model_class = module.MultiTaskModel

    def make(**options: Any) -> MultiTaskModel:
        model = model_class(**options)
        seen.append((model, {name: weight.detach().clone() for name, weight in model.named_parameters()}))
        return model

    with monkeypatch.context() as patch:
        patch.setattr(module, "MultiTaskModel", make)
        yield seen


@pytest.mark.parametrize("bits", BITS)
def test_adapter_and_heads_learn_and_the_encoders_own_weights_stay(tune, tmp_path, monkeypatch, bits):
    with _watched(monkeypatch) as seen:
        done, reports = tune(tmp_path, bits=bits, num_train_epochs=16, lora_dropout=0.0)
    ((model, before),) = seen
    after = dict(model.named_parameters())
    changed = {name for name in before if not torch.equal(before[name], after[name].to(before[name].device))}
    assert changed == set(model.trained_state())
    assert done.checkpoint.score == max(report.score for report in reports) > 0.8


@pytest.mark.parametrize("bits", BITS)
def test_the_checkpoint_says_what_the_run_said(tune, tmp_path, parts, bits):
    done, _ = tune(tmp_path, bits=bits, use_cpu=True)
    model, metadata = load_checkpoint(tmp_path / "best")
    assert metadata.adapter is not None
    assert (metadata.adapter.bits, metadata.adapter.rank) == (bits, 4)
    part = parts["mood"]["test"]
    for row, expected in zip(part.encoded["input_ids"], done.predictions["mood"]["test"].outputs, strict=True):
        ids = torch.tensor([row])
        with torch.inference_mode():
            outputs = model("mood", ids, torch.ones_like(ids)).softmax(dim=1)[0]
        tolerance = 1e-2 if bits == 8 else 1e-5  # with 8 bits, inputs are rounded per batch
        np.testing.assert_allclose(outputs, expected, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"ema_decay": 0.9},
        pytest.param({"bits": 4, "optim": "paged_adamw_8bit", "lora_r": 128}, marks=STRAIN),
        pytest.param({"bits": 4, "bf16": True, "quant_type": "fp4", "double_quant": False}, marks=needs_bitsandbytes),
        pytest.param({"bits": 8, "ema_decay": 0.9, "activation_checkpointing": True}, marks=STRAIN),
    ],
    ids=lambda training: "-".join(map(str, training.values())),
)
def test_a_run_that_was_interrupted_ends_bit_equal(tune: Tune, tmp_path: Path, training: dict[str, Any]) -> None:
    whole, _ = tune(tmp_path / "whole", num_train_epochs=3, **training)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", num_train_epochs=3, stop_after=1, **training)
    resumed, reports = tune(tmp_path / "cut", num_train_epochs=3, **training)
    assert [report.epoch for report in reports] == [1, 2, 3]
    ends = _state(tmp_path / "whole"), _state(tmp_path / "cut")
    assert all("lora_" in name or name.startswith("heads.") for name in ends[0])
    torch.testing.assert_close(*ends, rtol=0, atol=0)
    for task, by_part in whole.predictions.items():
        for part, predictions in by_part.items():
            resumed_probabilities = resumed.predictions[task][part].outputs
            np.testing.assert_array_equal(predictions.outputs, resumed_probabilities)


def test_a_moving_average_holds_the_trained_weights_alone_and_is_what_is_kept(tune: Tune, tmp_path: Path) -> None:
    tune(tmp_path, ema_decay=0.9, use_cpu=True, seed=1)
    average = _state(tmp_path, "average.safetensors")
    assert set(average) - {"updates"} == set(_state(tmp_path))
    best, metadata = load_checkpoint(tmp_path / "best")
    assert metadata.epoch == 2  # the best epoch is the last, whose average is in the newest state
    for name, weight in best.trained_state().items():
        torch.testing.assert_close(weight, average[name], rtol=0, atol=0)
        assert not torch.equal(weight, _state(tmp_path)[name])


def test_activation_checkpointing_trains_alike(tune: Tune, tmp_path: Path) -> None:
    for name, on in (("plain", False), ("recomputed", True)):
        tune(tmp_path / name, activation_checkpointing=on)
    torch.testing.assert_close(_state(tmp_path / "plain"), _state(tmp_path / "recomputed"), rtol=1e-5, atol=1e-6)


def test_a_later_stage_trains_the_adapter_that_one_before_left_alone(tune: Tune, tmp_path: Path) -> None:
    stages = [{"freeze_encoder": True, "num_train_epochs": 1}, {"freeze_encoder": False, "num_train_epochs": 1}]
    with pytest.raises(InterruptedError):
        tune(tmp_path, stages=stages, stop_after=1)
    zero = {name: weight for name, weight in _state(tmp_path).items() if "lora_B" in name}
    assert all(weight.abs().max() == 0 for weight in zero.values())
    tune(tmp_path, stages=stages)
    assert all(_state(tmp_path)[name].abs().max() > 0 for name in zero)


@pytest.mark.slow
@needs_bitsandbytes
@pytest.mark.parametrize(
    ("optim", "same_in_32"),
    [
        ("adamw_8bit", "adamw_torch"),
        pytest.param("paged_adamw_8bit", "adamw_torch", marks=pytest.mark.strain),
        pytest.param("paged_lion_8bit", "lion_32bit", marks=pytest.mark.strain),
    ],
)
def test_an_8_bit_optimizer_holds_moments_in_bytes_and_learns_as_one_of_32_bits(tune, tmp_path, optim, same_in_32):
    losses = []
    for name in (optim, same_in_32):
        _, reports = tune(tmp_path / name, optim=name, lora_r=128, num_train_epochs=3)
        losses.append([report.metrics["train_loss"] for report in reports])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] == sorted(losses[0], reverse=True)
    states = torch.load(newest_state(tmp_path / optim) / "optimizer.pt", weights_only=False)["state"].values()
    moments = [state["__bnb_optimizer_quant_state__"]["state1"] for state in states]
    dtypes = {(moment.numel() >= 4096, moment.dtype) for moment in moments}
    assert dtypes == {(True, torch.uint8), (False, torch.float32)}  # small tensors stay in 32 bits


@needs_bitsandbytes
def test_what_bitsandbytes_keeps_of_an_optimizer_is_let_go_after_the_run(tune: Tune, tmp_path: Path) -> None:
    from bitsandbytes.optim.optimizer import GlobalOptimManager

    tune(tmp_path, adapter=None, optim="adamw_8bit")
    assert GlobalOptimManager.get_instance().module_weight_config_triple == []
