"""fine_tune learns to choose among a row's own candidates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tutti.data.encode import EncodedPart, encode_rows, load_tokenizer, part_of
from tutti.modeling.checkpoint import load_checkpoint
from tutti.records import TextLimit
from tutti.tasks.task import Task
from tutti.training.predict import predict

TASK = Task("pick", ("A", "B", "C", "D"), False, "accuracy", "csv", "choice")


def rows_of(backbone: Path, rows: int, *, seed: int) -> EncodedPart:
    """Two to four candidates of some words; the right one begins with w1, and the others with w0."""
    generator = np.random.default_rng(seed)
    choices, labels = [], []
    for _ in range(rows):
        labels.append(generator.integers(count := generator.integers(2, 5)))
        further = generator.integers(10, 60, size=(count, generator.integers(1, 4)))
        own = [[int(place == labels[-1]), *further[place]] for place in range(count)]
        choices.append(json.dumps([" ".join(f"w{word}" for word in words) for words in own]))
    texts = [" ".join(f"w{word}" for word in generator.integers(10, 60, size=8)) for _ in range(rows)]
    tokenizer = load_tokenizer(str(backbone))
    table = encode_rows(pa.table({"text": texts, "choices": choices}), tokenizer=tokenizer, limit=TextLimit(16))
    part = part_of(np.array([f"{seed}-{row}" for row in range(rows)]), table, pad_token_id=tokenizer.pad_token_id)
    return replace(part, labels=np.array(labels, dtype=np.int64))


@pytest.mark.parametrize(
    "keys",
    [
        {"class_weights": "balanced", "label_smoothing_factor": 0.1, "ema_decay": 0.8},
        {"max_tokens_per_batch": 300, "rdrop_alpha": 0.5, "adversarial": "fgm"},
        {"focal_gamma": 1.0, "head_dropout_samples": 2, "pooling": "mean"},
    ],
    ids=str,
)
def test_the_right_candidate_is_learnt_and_a_checkpoint_says_the_same(tune, backbone, tmp_path, keys) -> None:
    sizes = {"train": 160, "validation": 60, "test": 21}
    parts = {name: rows_of(backbone, rows, seed=seed) for seed, (name, rows) in enumerate(sizes.items())}
    training = {"max_length": 16, "num_train_epochs": 6, "learning_rate": 1e-2, **keys}
    done, _ = tune(tmp_path, tasks=[TASK], parts={"pick": parts}, **training)
    assert done.checkpoint.score >= 0.9
    test = done.predictions["pick"]["test"].outputs
    assert parts["test"].windows is not None
    np.testing.assert_array_equal(test > 0, np.arange(4) < parts["test"].windows[:, None])
    np.testing.assert_allclose(test.sum(axis=1), 1, atol=1e-6)
    model, _ = load_checkpoint(tmp_path / "best")
    outputs = predict(model, parts["test"], task="pick", batch_size=7, device=torch.device("cpu"))
    np.testing.assert_allclose(outputs, test, atol=1e-5)
