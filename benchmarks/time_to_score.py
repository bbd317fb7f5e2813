"""Wall time until a study reaches the best score of a user's own search loop, with the same search space and rows.

    python benchmarks/time_to_score.py [--rows N] [--trials 16] [--quick] [--json FILE]

Sixteen trials of MiniLM on SST-2, three epochs each, evaluated on the validation rows after each epoch:

* loop: an Optuna study whose objective trains a transformers.Trainer with default settings, one trial after the other,
  with one thread per core. Its model, AutoModelForSequenceClassification, uses the first token; batches have 16 rows.
* tutti: a study with ASHA on warm workers, with one concurrent trial per core, a token budget per batch, and mean
  pooling as in examples/glue_sentences.yaml.

Both use the same search space and TPE with the same seed. Each runs in its own process. The time starts before the
first import, so it includes loading data, Ray and models.

The study continues with further trials until it reaches the loop's best score, or the loop's time is over.

* speedup: the loop's time to its best score / Tutti's time to at least this score.
* common_speedup: the same for common_score, the best score that both reach.
* whole_speedup: the loop's time for all trials / Tutti's time for the same number of trials.

A value that needs a score which Tutti does not reach within the loop's time is left out, with a message.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

EPOCHS, BATCH = 3, 16
TOKENS = 512  # about 20 rows of SST-2, near the loop's 16
SEED = 0
MAX_TRIALS_FACTOR = 8  # Tutti may run up to this many times the loop's trials
SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 3e-4},
    "warmup_steps": {"type": "uniform", "low": 0.0, "high": 0.2},  # as a share of all steps
    "weight_decay": {"type": "uniform", "low": 0.0, "high": 0.1},
}

Course = list[tuple[float, float]]  # (seconds since the start, best score so far), at each improvement


def _follow(course: Course, score: float, *, began: float) -> None:
    if not course or score > course[-1][1]:
        course.append((time.time() - began, score))


def loop(data: Path, rows: int | None, trials: int, folder: Path) -> tuple[Course, float]:
    """Runs Optuna with a plain Trainer; returns the course of the best score, and the total seconds."""
    began = time.time()
    import numpy as np
    import optuna
    import pandas as pd
    import shared
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    shared.quiet()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tokenizer = AutoTokenizer.from_pretrained(shared.BACKBONE)
    read: dict[str, list[dict[str, Any]]] = {}
    for part in ("train", "dev"):
        frame = pd.read_csv(data / "SST-2" / f"{part}.tsv", sep="\t", quoting=3, nrows=rows)
        texts = tokenizer(frame["sentence"].tolist(), truncation=True, max_length=shared.MAX_LENGTH)
        read[part] = [
            {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
            for ids, mask, label in zip(texts["input_ids"], texts["attention_mask"], frame["label"], strict=True)
        ]
    course: Course = []

    class Follow(TrainerCallback):
        def on_evaluate(self, *_: Any, metrics: dict[str, float], **__: Any) -> None:
            _follow(course, metrics["eval_accuracy"], began=began)
            self.best = max(getattr(self, "best", 0.0), metrics["eval_accuracy"])

    def objective(trial: optuna.Trial) -> float:
        parameters = {
            key: trial.suggest_float(key, kind["low"], kind["high"], log=kind["type"] == "log_uniform")
            for key, kind in SPACE.items()
        }
        follow = Follow()
        Trainer(
            model=AutoModelForSequenceClassification.from_pretrained(shared.BACKBONE, num_labels=2),
            args=TrainingArguments(
                output_dir=str(folder / str(trial.number)),
                num_train_epochs=EPOCHS,
                per_device_train_batch_size=BATCH,
                eval_strategy="epoch",
                save_strategy="best",
                metric_for_best_model="accuracy",
                save_total_limit=1,
                report_to="none",
                disable_tqdm=True,
                seed=SEED,
                use_cpu=True,
                **parameters,
            ),
            train_dataset=read["train"],
            eval_dataset=read["dev"],
            processing_class=tokenizer,
            compute_metrics=lambda evaluated: {
                "accuracy": float(np.mean(evaluated.predictions.argmax(1) == evaluated.label_ids))
            },
            callbacks=[follow],
        ).train()
        return follow.best

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=SEED))
    study.optimize(objective, n_trials=trials)
    return course, time.time() - began


def tutti(
    data: Path, rows: int | None, trials: int, best: float, most: float, folder: Path
) -> tuple[Course, float | None]:
    """Runs the same search as a study; returns the course of the best score, and the seconds until ``trials`` trials
    had ended, or None.

    Args:
        best, most: the study ends once ``trials`` trials have ended and it has the score ``best``, or after ``most``
            seconds.
    """
    began = time.time()
    import shared
    import studies

    from tutti.cluster.connect import connected
    from tutti.records import TrialState
    from tutti.search.study_store import StudyStore

    ended = (TrialState.FINISHED, TrialState.STOPPED)
    shared.quiet()
    course: Course = []
    whole: float | None = None
    over = False

    def watch(store: StudyStore) -> None:
        nonlocal whole, over
        records = store.records()
        if whole is None and sum(record.state in ended for record in records) >= trials:
            whole = time.time() - began
        for record in records:
            for score in record.scores_by_epoch.values():
                _follow(course, score, began=began)
        if not over and whole and course[-1][1] >= best:
            over = True
            signal.raise_signal(signal.SIGINT)  # ends the study as a user does

    document: dict[str, Any] = {
        "study": "tutti",
        "tasks": {"SST-2": studies.sst2(data, folder, rows=rows)},
        "training": {
            "num_train_epochs": EPOCHS,
            "max_tokens_per_batch": TOKENS,
            "max_length": shared.MAX_LENGTH,
            "pooling": "mean",
        },
        "search_space": SPACE,
        "search": {"trials": MAX_TRIALS_FACTOR * trials, "seed": SEED, "scheduler": "asha"},
        "resources": {"isolation": "warm"},
        "storage": {"path": str(folder)},
    }
    with connected(workers=1, cpus_per_worker=1, gpus_per_worker=0, concurrent_trials=None) as concurrent:
        remaining = max(most - (time.time() - began), 1.0)
        document["search"] |= {"max_hours": remaining / 3600}
        studies.run(document, concurrent_trials=concurrent, watch=watch)
    return [(at, score) for at, score in course if at <= most], whole


def first(course: Course, score: float) -> float | None:
    """Seconds until a score was reached; None if it never was."""
    return next((at for at, reached in course if reached >= score), None)


def run_isolated(contender: Callable[..., tuple[Course, Any]], *args: Any, threads: int) -> tuple[Course, Any]:
    """Runs a contender in its own process and folder, and returns its result."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(contender, *args, Path(folder)).result()


def main() -> None:
    import shared
    from shared import Target

    parser = shared.arguments(__doc__, quick="4 trials of 400 rows: under 10 minutes on two cores")
    parser.add_argument("--rows", type=int, help="so many training and validation rows at most, by default all")
    parser.add_argument("--trials", type=int, default=16)
    options = parser.parse_args()
    rows, trials = (400, 4) if options.quick else (options.rows, options.trials)
    theirs, whole = run_isolated(loop, options.data, rows, trials, threads=os.cpu_count() or 1)
    seconds, best = theirs[-1]
    ours, our_whole = run_isolated(tutti, options.data, rows, trials, best, whole, threads=1)
    values = {"loop_best": best, "loop_seconds_to_best": seconds, "loop_seconds": whole}
    if our_whole:
        values |= {"tutti_seconds": our_whole, "whole_speedup": whole / our_whole}
    if ours:
        common = min(best, ours[-1][1])
        at, our_at = first(theirs, common), first(ours, common)
        assert at is not None
        assert our_at is not None
        values |= {"tutti_best": ours[-1][1], "common_score": common, "common_speedup": at / our_at}
    reached = first(ours, best)
    if reached:
        values |= {"tutti_seconds_to_that": reached, "speedup": seconds / reached}
    shared.show_results(values, {"speedup": Target(5)})
    if not reached:
        print("Tutti did not reach the loop's best score in the loop's time.")
    shared.write_json(values, options.json)


if __name__ == "__main__":
    main()
