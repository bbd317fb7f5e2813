"""What a plain ``transformers.Trainer`` scores on GLUE's tasks: the first line of a table in docs/results.md.

    python benchmarks/glue_trainer.py [--seeds 3] [--epochs 5] [--learning-rate 1e-4] [--quick] [--json FILE]

Fine-tunes MiniLM on each of CoLA, SST-2, MRPC and STS-B alone, in batches of 32 rows padded to the longest of them, and
scores the weights of the last epoch on the task's dev file. The rest has the Trainer's defaults; bfloat16 where the
processor computes in it. A seed determines the head's initial weights, dropout and the order of rows.

Each run has one thread, and --processes of them train at a time. The values are means over the seeds, with their
standard deviation.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev

os.environ["OMP_NUM_THREADS"] = "1"  # one for each process

import shared
import torch
from shared import BACKBONE
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from tutti.tasks import metrics
from tutti.tasks.scorer import Scorer
from tutti.training.machine.precision import cpu_gains_from_bf16

METRICS = {"CoLA": ["matthews"], "SST-2": ["accuracy"], "MRPC": ["f1", "accuracy"], "STS-B": ["pearson", "spearman"]}
BATCH = 32

Scores = dict[str, float]  # by "task metric"


def run(data: Path, name: str, *, seed: int, epochs: float, learning_rate: float, rows: int | None) -> Scores:
    """Fine-tunes on one task; returns its scores on the dev file."""
    shared.quiet()
    torch.set_num_threads(1)
    drawn = shared.glue_rows(data, [name])
    if rows is not None:
        drawn = drawn.drawn({name: rows}, part="train", seed=seed)
    (task,), parts = drawn.tasks, drawn.parts[name]
    set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=AutoModelForSequenceClassification.from_pretrained(BACKBONE, num_labels=task.outputs),
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=epochs,
                learning_rate=learning_rate,
                per_device_train_batch_size=BATCH,
                seed=seed,
                bf16=cpu_gains_from_bf16(),
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=shared.plain_rows(parts["train"]),
            data_collator=DataCollatorWithPadding(AutoTokenizer.from_pretrained(BACKBONE)),
        )
        shared.timed(trainer)  # which prints nothing
        predicted = trainer.predict(shared.plain_rows(parts["validation"]))
    outputs = predicted.predictions[:, 0] if task.outputs == 1 else predicted.predictions
    scorers = {metric: Scorer.of(task, metrics.METRICS[metric]) for metric in METRICS[name]}
    return {f"{name} {metric}": scorer.score(predicted.label_ids, outputs) for metric, scorer in scorers.items()}


def main() -> None:
    parser = shared.arguments(__doc__, quick="500 training rows, 1 epoch, 2 seeds: under 10 minutes on two cores")
    parser.add_argument("--seeds", type=int, help="3; with --quick 2")
    parser.add_argument("--epochs", type=float, help="5; with --quick 1")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--processes", type=int, default=2, help="that train at a time")
    options = parser.parse_args()
    keys = {
        "epochs": options.epochs or (1.0 if options.quick else 5.0),
        "learning_rate": options.learning_rate,
        "rows": 500 if options.quick else None,
    }
    began = time.time()
    by_name: dict[str, list[float]] = {f"{task} {metric}": [] for task, own in METRICS.items() for metric in own}
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        runs = {
            pool.submit(run, options.data.resolve(), name, seed=seed, **keys): f"{name}, seed {seed}"
            for seed in range(options.seeds or (2 if options.quick else 3))
            for name in METRICS
        }
        for future in as_completed(runs):
            scores = future.result()
            text = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
            print(f"{time.time() - began:6.0f} s  {runs[future]}: {text}", flush=True)
            for metric, value in scores.items():
                by_name[metric].append(value)
    values: dict[str, float] = {}
    for name, by_seed in by_name.items():
        values[name] = mean(by_seed)
        if len(by_seed) > 1:
            values[f"{name}, standard deviation"] = stdev(by_seed)
    shared.show_results(values, {}, options.json)


if __name__ == "__main__":
    main()
