"""Texts whose decisive word lies beyond ``max_length``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tutti.config.training import LIMIT_KEYS, TrainingOptions
from tutti.data.encode import EncodedPart, encode_rows, load_tokenizer, part_of
from tutti.modeling.checkpoint import read_metadata
from tutti.records import TextLimit
from tutti.tasks.task import Task

TASK = Task(name="mood", names=("no", "yes"), pair=False, metric="accuracy", submission="csv")
LENGTH = 12


def rows_of(backbone: Path, rows: int, *, seed: int, limit: TextLimit) -> EncodedPart:
    """Texts of 6 to 24 words, of which the last one determines the class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=rows)
    texts = [
        " ".join(f"w{word}" for word in [*generator.integers(10, 60, size=generator.integers(5, 24)), label])
        for label in labels
    ]
    tokenizer = load_tokenizer(str(backbone))
    part = part_of(
        np.array([f"{seed}-{row}" for row in range(rows)]),
        encode_rows(pa.table({"text": texts}), tokenizer=tokenizer, limit=limit),
        pad_token_id=tokenizer.pad_token_id,
    )
    return replace(part, labels=labels.astype(np.int64))


@pytest.mark.parametrize(
    ("keys", "least"),
    [
        ({}, 0.0),
        ({"truncation": "head_tail"}, 0.9),
        ({"truncation": "windows", "stride": 2}, 0.9),
        ({"truncation": "windows", "max_tokens_per_batch": 200, "rdrop_alpha": 0.5}, 0.9),
    ],
)
def test_a_word_behind_the_first_tokens_is_learnt_by_its_ends_or_by_windows(tune, backbone, tmp_path, keys, least):
    training = {"max_length": LENGTH, **keys}
    limit = TrainingOptions(**{key: training[key] for key in LIMIT_KEYS if key in training}).limit
    parts = {
        name: rows_of(backbone, rows, seed=seed, limit=limit)
        for seed, (name, rows) in enumerate({"train": 160, "validation": 60, "test": 20}.items())
    }
    result, _ = tune(tmp_path, tasks=[TASK], parts={"mood": parts}, num_train_epochs=6, learning_rate=1e-2, **training)
    score = result.checkpoint.score
    assert score >= least
    assert least or score < 0.75
    assert result.predictions["mood"]["test"].outputs.shape == (20, 2)
    assert read_metadata(tmp_path / "best").limit == limit
