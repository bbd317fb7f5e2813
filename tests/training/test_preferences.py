"""fine_tune learns values of texts from pairs of which one is better."""

from __future__ import annotations

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

TASK = Task("rate", ("better", "worse"), False, "pairwise_accuracy", "csv", "preference", unit="text")


def rows_of(backbone: Path, rows: int, *, seed: int, single: bool = False) -> EncodedPart:
    """The better text begins with w1, the other with w0."""
    generator = np.random.default_rng(seed)
    texts = [
        [
            " ".join(f"w{word}" for word in [first, *generator.integers(10, 60, generator.integers(1, 5))])
            for _ in range(rows)
        ]
        for first in (1, 0)
    ]
    tokenizer = load_tokenizer(str(backbone))
    columns = {"text": texts[0]} if single else {"text": texts[0], "text_b": texts[1]}
    table = encode_rows(pa.table(columns), tokenizer=tokenizer, limit=TextLimit(16, unit="text"))
    part = part_of(np.array([f"{seed}-{row}" for row in range(rows)]), table, pad_token_id=tokenizer.pad_token_id)
    return part if single else replace(part, labels=np.zeros(rows, dtype=np.int64))


@pytest.mark.parametrize(
    "keys",
    [
        {"label_smoothing_factor": 0.1, "ema_decay": 0.8, "max_tokens_per_batch": 300},
        {"pair_loss": "margin", "rdrop_alpha": 0.5, "adversarial": "fgm"},
        {"focal_gamma": 1.0, "head_dropout_samples": 2, "pooling": "mean"},
    ],
    ids=str,
)
def test_the_better_text_gets_the_higher_value_and_a_checkpoint_says_the_same(tune, backbone, tmp_path, keys) -> None:
    sizes = {"train": 120, "validation": 60, "test": 21}
    parts = {name: rows_of(backbone, rows, seed=seed) for seed, (name, rows) in enumerate(sizes.items())}
    parts["test-single"] = rows_of(backbone, 15, seed=5, single=True)
    training = {"max_length": 16, "num_train_epochs": 6, "learning_rate": 1e-2, **keys}
    done, _ = tune(tmp_path, tasks=[TASK], parts={"rate": parts}, **training)
    assert done.checkpoint.score >= 0.9
    predicted = done.predictions["rate"]
    single = predicted["test-single"].outputs
    np.testing.assert_array_equal(np.isnan(single), [[False, True]] * 15)
    model, _ = load_checkpoint(tmp_path / "best")
    for part in ("test", "test-single"):
        outputs = predict(model, parts[part], task="rate", batch_size=7, device=torch.device("cpu"))
        np.testing.assert_allclose(outputs, predicted[part].outputs, atol=1e-4)


def test_a_long_text_loses_the_beginning_of_its_prompt_and_then_its_end(backbone) -> None:
    tokenizer = load_tokenizer(str(backbone))

    def tokens(text: str, **options) -> list[str]:
        table = encode_rows(pa.table({"text": [text]}), tokenizer=tokenizer, limit=TextLimit(8, unit="text", **options))
        return tokenizer.convert_ids_to_tokens(table["input_ids"].to_pylist()[0])

    prompt, text = " ".join(f"w{n}" for n in range(6)), " ".join(f"w{n}" for n in range(10, 13))
    assert tokens(f"{prompt} [SEP] {text}") == ["[CLS]", "w4", "w5", "[SEP]", "w10", "w11", "w12", "[SEP]"]
    long = " ".join(f"w{n}" for n in range(10, 20))
    assert tokens(f"w0 [SEP] {long}") == ["[CLS]", "[SEP]", *(f"w{n}" for n in range(10, 15)), "[SEP]"]
    assert tokens(long) == ["[CLS]", *(f"w{n}" for n in range(10, 16)), "[SEP]"]
    ends = ["w10", "w11", "w12", "w17", "w18", "w19"]
    assert tokens(long, truncation="head_tail") == ["[CLS]", *ends, "[SEP]"]
