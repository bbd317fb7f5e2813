"""fine_tune learns to choose among a row's own candidates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from training_runs import Tune
from transformers import AutoModelForCausalLM
from word_backbone import save_decoder

from tutti.data.encode import EncodedPart, encode_rows, load_tokenizer, part_of
from tutti.modeling.checkpoint import load_checkpoint
from tutti.records import TextLimit
from tutti.tasks.task import Task
from tutti.training.predict import predict

TASK = Task("pick", ("A", "B", "C", "D"), False, "accuracy", "csv", "choice")


def rows_of(backbone: Path, rows: int, *, seed: int, context: int = 8, most: int = 3, **limit: Any) -> EncodedPart:
    """Two to four candidates of some words; the right one begins with w1, and the others with w0."""
    generator = np.random.default_rng(seed)
    choices, labels = [], []
    for _ in range(rows):
        labels.append(generator.integers(count := generator.integers(2, 5)))
        further = generator.integers(10, 60, size=(count, generator.integers(1, most + 1)))
        own = [[int(place == labels[-1]), *further[place]] for place in range(count)]
        choices.append(json.dumps([" ".join(f"w{word}" for word in words) for words in own]))
    texts = [" ".join(f"w{word}" for word in generator.integers(10, 60, size=context)) for _ in range(rows)]
    tokenizer = load_tokenizer(str(backbone))
    table = encode_rows(
        pa.table({"text": texts, "choices": choices}),
        tokenizer=tokenizer,
        limit=TextLimit(**{"max_length": 16, **limit}),
    )
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


LETTERS = [*"ABCD", *(f"{name}." for name in "ABCD"), "Answer:"]


@pytest.fixture
def tune_decoder(make_tune: Callable[..., Tune], tmp_path: Path) -> Tune:
    save_decoder(tmp_path / "decoder", further=LETTERS)
    return make_tune(tmp_path / "decoder", head="verbalizer", bf16=False)


def lettered(tmp_path: Path, sizes: dict[str, int]) -> dict[str, EncodedPart]:
    small: dict[str, Any] = {"context": 1, "most": 1, "max_length": 24, "unit": "letters"}
    return {
        name: rows_of(tmp_path / "decoder", rows, seed=seed, **small) for seed, (name, rows) in enumerate(sizes.items())
    }


def test_a_decoder_learns_to_answer_by_letters_and_a_checkpoint_says_the_same(tune_decoder, tmp_path) -> None:
    parts = lettered(tmp_path, {"train": 240, "validation": 60, "test": 21})
    keys = {"num_train_epochs": 7, "learning_rate": 5e-3, "batching": "packed", "rdrop_alpha": 0.5, "max_length": 24}
    done, _ = tune_decoder(tmp_path, tasks=[TASK], parts={"pick": parts}, **keys)
    assert done.checkpoint.score >= 0.9
    test = done.predictions["pick"]["test"].outputs
    np.testing.assert_array_equal(test > 0, np.arange(4) < parts["test"].candidates[:, None])
    np.testing.assert_allclose(test.sum(axis=1), 1, atol=1e-6)
    model, metadata = load_checkpoint(tmp_path / "best")
    assert TASK.limit(metadata.limit) == TextLimit(24, unit="letters")
    outputs = predict(model, parts["test"], task="pick", batch_size=7, device=torch.device("cpu"))
    np.testing.assert_allclose(outputs, test, atol=1e-5)


def test_letters_start_with_their_probabilities_as_next_tokens(tune_decoder, tmp_path) -> None:
    parts = lettered(tmp_path, {"train": 8, "validation": 8, "test": 9})
    done, _ = tune_decoder(tmp_path, tasks=[TASK], parts={"pick": parts}, max_steps=1, learning_rate=1e-12)
    model, test = AutoModelForCausalLM.from_pretrained(tmp_path / "decoder"), parts["test"]
    letters = load_tokenizer(str(tmp_path / "decoder")).convert_tokens_to_ids(LETTERS[:4])
    rows = zip(test.encoded["input_ids"], test.candidates, done.predictions["pick"]["test"].outputs, strict=True)
    for ids, count, outputs in rows:
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0, -1, letters[:count]].softmax(0)
        np.testing.assert_allclose(outputs[:count], expected, rtol=0, atol=1e-5)
