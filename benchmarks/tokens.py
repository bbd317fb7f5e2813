"""Entities: training and predicting against transformers' own recipe and a bare loop, and decoding many sentences.

    python benchmarks/tokens.py [--quick] [--json FILE] [--data FOLDER] [--cpu-time]

Fine-tunes MiniLM on the posts of WNUT 2017 in one precision, on one CPU thread, 16 rows per batch:

* trial: the trainer of tutti.training.fine_tune, which makes batches of rows of similar length.
* trainer: transformers.Trainer with AutoModelForTokenClassification as its recipe run_ner.py has it: rows in random
  order, padded to the longest of each batch, labels at the first token of each word.
* bare: a plain PyTorch loop over the trial's own sort of batches, with AdamW, clipping and schedule.

Only the training loops, and the predictions of the test file, are measured. Contenders alternate; ratios are medians
over the turns. ``viterbi_seconds`` is what the best paths of 10,000 sentences of 40 words with 21 tags take.

With --cpu-time the clock counts the CPU seconds of the process, for a machine with other work.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import shared
import torch
from shared import BACKBONE, MAX_LENGTH, Rows, Target, Turns
from torch import nn
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    set_seed,
)

from tutti.config.study import TaskConfig
from tutti.data.encode import EncodedPart, take
from tutti.tasks.kinds.entities import best_paths
from tutti.training.machine.precision import cpu_gains_from_bf16
from tutti.training.predict import predict

TARGETS = {
    "vs_trainer": Target(1.5),
    "predict_vs_trainer": Target(1.5),
    "vs_bare": Target(0.95),
    "viterbi_seconds": Target(2, most=True),
}
ENTITIES = shared.GLUE.parent / "kinds" / "entities"
TASK, BATCH, RATE = "WNUT", 16, 5e-5
Timed = tuple[float, float]  # seconds of training, and of predicting


def entity_rows(data: Path, count: int) -> Rows:
    """The first rows of each file, encoded as a study does. Exits with a message if a file is missing."""
    files = {
        part: data / f"{name}.conll" for part, name in (("train", "train"), ("validation", "dev"), ("test", "test"))
    }
    shared.at_hand(*files.values(), folder="with train, dev and test.conll")
    config = TaskConfig(layout="tokens", **{part: str(file) for part, file in files.items()})
    return shared.rows_of({TASK: config}, validation=0.1, count=count)


def plain_rows(part: EncodedPart) -> list[dict[str, Any]]:
    """Rows as the recipe has them: the label of a word at its first token, -100 at all others."""
    assert part.units is not None
    (places, starts), columns = part.units, part.encoded.with_format(None)[:]
    rows = []
    for row, ids in enumerate(columns["input_ids"]):
        labels = [-100] * len(ids)
        for unit, (_, first, _) in enumerate(places[starts[row] : starts[row + 1]].tolist()):
            labels[first] = 0 if part.labels is None else int(part.labels[row, unit])
        rows.append({"input_ids": list(ids), "attention_mask": [1] * len(ids), "labels": labels})
    return rows


def _trial(rows: Rows, folder: Path) -> Timed:
    keys = {"per_device_train_batch_size": BATCH, "learning_rate": RATE, "weight_decay": 0.0, "warmup_steps": 0}
    keys |= {"num_train_epochs": 1, "max_length": MAX_LENGTH, "bf16": cpu_gains_from_bf16()}
    trainer = shared.trial_trainer(rows, keys, folder=folder)
    seconds, start = shared.timed(trainer).seconds, shared.now()
    with torch.autocast("cpu", torch.bfloat16) if cpu_gains_from_bf16() else nullcontext():
        predict(trainer.model, rows.parts[TASK]["test"], task=TASK, batch_size=64, device=torch.device("cpu"))
    return seconds, shared.now() - start


def _model(rows: Rows) -> nn.Module:
    set_seed(0)
    model: nn.Module = AutoModelForTokenClassification.from_pretrained(BACKBONE, num_labels=rows.tasks[0].outputs)
    return model


def _collator() -> DataCollatorForTokenClassification:
    return DataCollatorForTokenClassification(AutoTokenizer.from_pretrained(BACKBONE))


def _trainer(rows: Rows, folder: Path) -> Timed:
    keys = {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": 64, "bf16_full_eval": False}
    train, test = (plain_rows(rows.parts[TASK][part]) for part in ("train", "test"))
    trainer = shared.plain_trainer(_model(rows), train, _collator(), folder=folder, learning_rate=RATE, **keys)
    seconds = shared.timed(trainer).seconds
    start = shared.now()
    trainer.predict(test)
    return seconds, shared.now() - start


def _batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of similar length together, in random order of batches."""
    rng = np.random.default_rng(0)
    order = np.argsort(lengths * rng.uniform(0.94, 1, len(lengths)), kind="stable")
    batches = np.array_split(order, -(-len(order) // BATCH))
    yield from (batches[index] for index in rng.permutation(len(batches)))


def _bare(rows: Rows, folder: Path) -> Timed:
    model, collate, plain = _model(rows), _collator(), plain_rows(rows.parts[TASK]["train"])
    batches = list(_batches(rows.parts[TASK]["train"].lengths))

    def loss(batch: np.ndarray) -> torch.Tensor:
        value: torch.Tensor = model(**collate([plain[row] for row in batch])).loss
        return value

    bf16 = cpu_gains_from_bf16()
    return shared.bare_loop(model, batches, loss, steps=len(batches), rate=RATE, bf16=bf16), float("nan")


CONTENDERS: dict[str, Callable[[Rows, Path], Timed]] = {"trial": _trial, "trainer": _trainer, "bare": _bare}


def times(rows: Rows, *, turns: int, folder: Path) -> dict[str, float]:
    """Seconds of the trial's epoch and predictions, and the others' relative to them."""
    few = Rows(rows.tasks, {TASK: {part: take(own, np.arange(32)) for part, own in rows.parts[TASK].items()}})
    taken = Turns.of(CONTENDERS, rows, warm_up=few, turns=turns, folder=folder)
    return {
        "train_seconds": taken.median("trial"),
        "predict_seconds": taken.median("trial", 1),
        "vs_trainer": taken.ratio("trainer"),
        "predict_vs_trainer": taken.ratio("trainer", 1),
        "vs_bare": taken.ratio("bare"),
    }


def viterbi_seconds() -> float:
    """The seconds of decoding random probabilities, of which hardly any likeliest tags are a legal path."""
    probabilities = np.random.default_rng(0).dirichlet(np.ones(21), (10_000, 40)).astype(np.float32)
    start = shared.now()
    best_paths(probabilities)
    return shared.now() - start


def main() -> None:
    parser = shared.arguments(__doc__, quick="480 rows, 3 turns: under 3 minutes")
    parser.set_defaults(data=ENTITIES)
    options = shared.with_cpu_time(parser)
    rows = entity_rows(options.data, 480 if options.quick else 2994)
    values = {"viterbi_seconds": min(viterbi_seconds() for _ in range(3))}
    with tempfile.TemporaryDirectory() as folder:
        values |= times(rows, turns=3 if options.quick else 5, folder=Path(folder))
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
