"""Settings of short runs of fine_tune, and what such a run leaves: its newest state and the weights in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tutti.training import EpochReport, FineTuned

Tune = Callable[..., tuple[FineTuned, list[EpochReport]]]
TRAINING: dict[str, Any] = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "learning_rate": 3e-3,
    "logging_steps": 4,
    "bf16": False,  # for equal numbers on any machine
}
EMA_AND_DROPOUT: dict[str, Any] = {"ema_decay": 0.9, "head_dropout": 0.3}
WORDS = "encoder.embeddings.word_embeddings.weight"


def newest_state(folder: Path) -> Path:
    """The folder of the newest state."""
    return max(
        (folder / "resume").glob("stage-*"), key=lambda path: [int(number) for number in path.name.split("-")[1::2]]
    )


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(newest_state(folder) / "model.safetensors")


def assert_same_end(one: FineTuned, other: FineTuned, folder: Path, other_folder: Path) -> None:
    torch.testing.assert_close(final_weights(folder), final_weights(other_folder), rtol=0, atol=0)
    for task, by_part in one.predictions.items():
        for part, predictions in by_part.items():
            other_probabilities = other.predictions[task][part].outputs
            np.testing.assert_array_equal(predictions.outputs, other_probabilities)
