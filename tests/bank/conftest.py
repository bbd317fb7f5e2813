from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions


@pytest.fixture
def predictions() -> Callable[..., Predictions]:
    def make(
        rows: int = 6, classes: tuple[str, ...] = ("happy", "sad", "生气"), *, labelled: bool = True, seed: int = 0
    ):
        rng = np.random.default_rng(seed)
        return Predictions(
            ids=np.array([f"row {index}" for index in range(rows)], dtype=np.str_),
            outputs=rng.dirichlet(np.ones(len(classes)), size=rows).astype(np.float32),
            labels=rng.integers(len(classes), size=rows) if labelled else None,
            names=classes,
        )

    return make


@pytest.fixture
def record() -> Callable[..., CheckpointRecord]:
    def make(number: int = 0, score: float = 0.8) -> CheckpointRecord:
        return CheckpointRecord(f"t{number:04d}", number, 2, score, {"emotion": score}, f"trials/t{number:04d}/best")

    return make
