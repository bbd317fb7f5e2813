"""Training on packed rows: what it learns from a batch is what it learns from the same rows padded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import TRAINING, Tune, assert_same_end, final_weights

from tutti.data.encode import EncodedPart
from tutti.modeling.checkpoint import load_checkpoint
from tutti.modeling.packed import pack_rows
from tutti.tasks.task import Task
from tutti.training.predict import predict

Parts = dict[str, dict[str, EncodedPart]]
# All rows of a task are one batch; Adam would enlarge the difference of gradients that are nearly 0.
WHOLE: dict[str, Any] = {**TRAINING, "per_device_train_batch_size": 64, "optim": "sgd", "learning_rate": 0.3}


@pytest.fixture
def tune(
    make_tune: Callable[..., Tune], steady_backbone: Path, tasks: tuple[Task, ...], parts: Parts
) -> Callable[..., Any]:
    run = make_tune(steady_backbone, **WHOLE)
    return partial(run, tasks=tasks[1:], parts={"mood": parts["mood"]})


@pytest.mark.parametrize(
    "training",
    [
        {"pooling": "mean", "ema_decay": 0.9, "head_dropout": 0.0},
        {"rdrop_alpha": 1.0, "pooling_layers": 2, "head_dropout": 0.0},
        {"adversarial": "fgm", "pooling": "cls", "head_dropout": 0.0},
        {"adversarial": "awp", "class_weights": "balanced", "head_dropout": 0.0},
        {"adapter": "lora", "lora_dropout": 0.0, "activation_checkpointing": True, "head_dropout": 0.0},
    ],
    ids=lambda training: next(iter(training)),
)
def test_packed_rows_are_learnt_as_padded_ones(
    tune: Callable[..., Any], tmp_path: Path, training: dict[str, Any]
) -> None:
    padded, _ = tune(tmp_path / "padded", **training)
    packed, reports = tune(tmp_path / "packed", batching="packed", **training)
    one, other = final_weights(tmp_path / "padded"), final_weights(tmp_path / "packed")
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for task, by_part in padded.predictions.items():
        for part, predictions in by_part.items():
            np.testing.assert_allclose(predictions.outputs, packed.predictions[task][part].outputs, rtol=0, atol=1e-5)
    assert reports[-1].usage.rows == 3 * 37


def test_packed_rows_are_predicted_as_padded_ones(tune: Callable[..., Any], tmp_path: Path, parts: Parts) -> None:
    tune(tmp_path / "trial", max_steps=1)
    model, _ = load_checkpoint(tmp_path / "trial/best")
    options: dict[str, Any] = {"task": "mood", "batch_size": 4, "device": torch.device("cpu")}
    padded = predict(model, parts["mood"]["validation"], **options)
    pack_rows(model.encoder, asked=False, exact=True)
    model.packs = True
    np.testing.assert_allclose(predict(model, parts["mood"]["validation"], **options), padded, rtol=0, atol=1e-5)
    budget = predict(model, parts["mood"]["validation"], max_tokens=24, **options)
    np.testing.assert_allclose(budget, padded, rtol=0, atol=1e-5)


def test_a_run_that_ends_within_an_epoch_goes_on_with_the_same_packed_batches(
    make_tune: Callable[..., Tune], backbone: Path, tmp_path: Path
) -> None:
    keys = {"batching": "packed", "max_tokens_per_batch": 64, "ema_decay": 0.9, "evals_per_epoch": 2}
    tune = make_tune(backbone, **{**TRAINING, **keys})
    whole, _ = tune(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        tune(tmp_path / "resumed", stop_after=3)
    resumed, _ = tune(tmp_path / "resumed")
    assert_same_end(whole, resumed, tmp_path / "whole", tmp_path / "resumed")


def test_a_compiled_step_is_compiled_once_for_all_batches(
    make_tune: Callable[..., Tune], steady_backbone: Path, tmp_path: Path, parts: Parts, tasks: tuple[Task, ...]
) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    keys = {"torch_compile_backend": "aot_eager", "batching": "packed", "max_tokens_per_batch": 48}
    mood = {"tasks": tasks[1:], "parts": {"mood": parts["mood"]}}
    _, reports = make_tune(steady_backbone, **{**TRAINING, **keys})(tmp_path / "trial", **mood)
    counters = torch._dynamo.utils.counters
    assert len(reports) == 3
    assert counters["stats"]["unique_graphs"] == 1, dict(counters)
    assert not counters["graph_break"]
