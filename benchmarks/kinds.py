"""A task of 28 labels per row: the time of a training step, and that of choosing thresholds with a nested estimate.

    python benchmarks/kinds.py [--quick] [--json FILE] [--data FOLDER] [--cpu-time]

Fine-tunes MiniLM on comments with 28 emotions, 16 rows per batch, in one precision, on one CPU thread:

* trial: the trainer of tutti.training.fine_tune.
* trainer: a plain transformers.Trainer with ``problem_type="multi_label_classification"``, whose loss is BCE.
* bare: a plain PyTorch loop with BCE, AdamW, clipping and schedule.

Only the training loop is measured. Contenders alternate; ratios of seconds per step are medians over the turns.

``decide_seconds`` is what the recipe `auto` takes for 8 members and 2,000 rows of 28 labels, macro-F1: members, method,
temperature and a threshold for each label, and the estimate of the score for which all of it is repeated on folds.

With --cpu-time the clock counts the CPU seconds of the process, for a machine with other work.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import shared
import torch
from shared import BACKBONE, MAX_LENGTH, Rows, Target, Turns
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    set_seed,
)

from tutti.config.study import TaskConfig
from tutti.ensembling.procedure import Ballot, Procedure, auto_methods, out_of_fold
from tutti.ensembling.select import Selection
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS
from tutti.tasks.scorer import Scorer
from tutti.training.machine.precision import cpu_gains_from_bf16

TARGETS = {"vs_bare": Target(0.95), "decide_seconds": Target(10, most=True)}
EMOTIONS = shared.GLUE.parent / "kinds" / "emotions"
TASK, METRIC = "emotions", "macro_f1"
BATCH, RATE = 16, 5e-5
LABELS, MEMBERS, ROWS = 28, 8, 2000
Timed = tuple[float]  # seconds per optimizer step


def emotion_rows(data: Path, count: int) -> Rows:
    """The first training rows, encoded as a study does. Exits with a message if the file is missing."""
    file = data / "train.csv"
    shared.at_hand(file, folder="whose train.csv has id, text and 28 labels")
    with file.open(encoding="utf8", newline="") as lines:
        identity, text, *labels = next(csv.reader(lines))
    columns: Any = {"id": identity, "text": text, "labels": labels}
    config = TaskConfig(layout="table", train=str(file), columns=columns, metric=METRIC)
    return shared.rows_of({TASK: config}, validation=0.1, count=count)


def _trial(rows: Rows, folder: Path) -> Timed:
    keys = {"per_device_train_batch_size": BATCH, "learning_rate": RATE, "weight_decay": 0.0, "warmup_steps": 0}
    keys |= {"num_train_epochs": 1, "max_length": MAX_LENGTH, "bf16": cpu_gains_from_bf16(), "group_by_length": False}
    watch = shared.timed(shared.trial_trainer(rows, keys, folder=folder))
    return (watch.seconds / watch.steps,)


def _model() -> nn.Module:
    set_seed(0)
    model: nn.Module = AutoModelForSequenceClassification.from_pretrained(
        BACKBONE, num_labels=LABELS, problem_type="multi_label_classification"
    )
    return model


def _collator() -> DataCollatorWithPadding:
    return DataCollatorWithPadding(AutoTokenizer.from_pretrained(BACKBONE))


def _trainer(rows: Rows, folder: Path) -> Timed:
    plain, keys = shared.plain_rows(rows.parts[TASK]["train"]), {"per_device_train_batch_size": BATCH}
    watch = shared.timed(shared.plain_trainer(_model(), plain, _collator(), folder=folder, learning_rate=RATE, **keys))
    return (watch.seconds / watch.steps,)


def _bare(rows: Rows, folder: Path) -> Timed:
    model, collate, plain = _model(), _collator(), shared.plain_rows(rows.parts[TASK]["train"])
    batches = np.array_split(np.random.default_rng(0).permutation(len(plain)), -(-len(plain) // BATCH))

    def loss(batch: np.ndarray) -> torch.Tensor:
        value: torch.Tensor = model(**collate([plain[row] for row in batch])).loss
        return value

    steps = len(batches)
    return (shared.bare_loop(model, batches, loss, steps=steps, rate=RATE, bf16=cpu_gains_from_bf16()) / steps,)


CONTENDERS: dict[str, Callable[[Rows, Path], Timed]] = {"trial": _trial, "trainer": _trainer, "bare": _bare}


def synthetic_votes() -> tuple[np.ndarray, np.ndarray]:
    """Votes ``(members, rows, labels)`` float32 with partly shared errors, and labels of which most are rare."""
    rng = np.random.default_rng(0)
    shares = rng.beta(0.6, 8, LABELS) + 0.01
    labels = (rng.random((ROWS, LABELS)) < shares).astype(np.float32)
    logits = np.log(shares / (1 - shares)) + 1.6 * (2 * labels - 1) + rng.normal(size=labels.shape)
    votes = 1 / (1 + np.exp(-logits - 0.6 * rng.normal(size=(MEMBERS, *labels.shape))))
    return votes.astype(np.float32), labels


def decide_seconds() -> float:
    """The seconds of all choices by the recipe `auto` and of their nested estimate."""
    votes, labels = synthetic_votes()
    kind, start = KINDS["labels"], shared.now()
    score = Scorer(kind, partial(METRICS[METRIC].score, outputs=LABELS))
    ballot = Ballot(votes, labels, score, np.arange(ROWS))
    methods, selection = auto_methods(kind, texts=ROWS), Selection(top=5, diversity=0.002)
    procedure = Procedure(selection, ballot.scores, 1, methods, kind.tuner(METRIC))
    ensemble = procedure.fit(ballot)
    estimate = ballot.judge(out_of_fold(procedure, ballot).scored).estimate
    seconds = shared.now() - start
    plain = score(labels, kind.decide(ensemble.combine(votes[ensemble.voters])))
    print(f"\nThresholds: {METRIC} {plain:.4f} with 0.5 for each label, {estimate} with tuned ones, on unseen rows")
    return seconds


def main() -> None:
    parser = shared.arguments(__doc__, quick="320 rows, 3 turns: under 5 minutes")
    parser.set_defaults(data=EMOTIONS)
    options = shared.with_cpu_time(parser)
    rows = emotion_rows(options.data, 320 if options.quick else 1600)
    values = {"decide_seconds": decide_seconds()}
    with tempfile.TemporaryDirectory() as folder:
        times = Turns.of(CONTENDERS, rows, warm_up=rows, turns=3 if options.quick else 5, folder=Path(folder))
    values |= {"seconds_per_step": times.median("trial"), "vs_bare": times.ratio("bare")}
    values["vs_trainer"] = times.ratio("trainer")
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
