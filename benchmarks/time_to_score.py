"""Wall time until a study has the best score of a loop that a user would write, with the same points and rows.

    python benchmarks/time_to_score.py [--rows N] [--trials 16] [--quick] [--json FILE]

Sixteen trials of MiniLM on SST-2, three epochs each, judged on its validation rows after each epoch:

* loop: an Optuna study whose objective trains transformers.Trainer at its defaults, one trial after the other, with as
  many threads as there are cores.
* tutti: a study with ASHA on warm workers, as many trials at a time as there are cores, with batches of a budget of
  tokens, and the mean of the tokens as examples/glue_sentences.yaml has it; the loop's model sees the first token, as
  AutoModelForSequenceClassification gives it, 16 rows a batch.

Both draw from the same search space with TPE of the same seed. Each runs in a process of its own, and its time counts
from before the first import: data, Ray and models are loaded in it.

The study goes on with further trials until it has the loop's best score, or the loop's time is over.

* speedup: the loop's time until it has its best score, over Tutti's until it has at least that.
* common_speedup: the same for common_score, the best that both of them reach.
* whole_speedup: the loop's time for all its trials over Tutti's for as many.

What Tutti does not reach in the loop's time has no number; of the loop's best score the program says so.
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
TOKENS = 1024  # about 40 rows of SST-2
SEED = 0
MORE = 8  # times as many trials as the loop has, at most
SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 3e-4},
    "warmup_steps": {"type": "uniform", "low": 0.0, "high": 0.2},  # a share of all steps
    "weight_decay": {"type": "uniform", "low": 0.0, "high": 0.1},
}

Course = list[tuple[float, float]]  # seconds since the beginning, best score by then


def _follow(course: Course, score: float, *, began: float) -> None:
    if not course or score > course[-1][1]:
        course.append((time.time() - began, score))


def loop(data: Path, rows: int | None, trials: int, folder: Path) -> tuple[Course, float]:
    """Optuna around a plain Trainer; the course of its best score, and its seconds."""
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
        drawn = {
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
                **drawn,
            ),
            train_dataset=read["train"],
            eval_dataset=read["dev"],
            processing_class=tokenizer,
            compute_metrics=lambda said: {"accuracy": float(np.mean(said.predictions.argmax(1) == said.label_ids))},
            callbacks=[follow],
        ).train()
        return follow.best

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=SEED))
    study.optimize(objective, n_trials=trials)
    return course, time.time() - began


def tutti(
    data: Path, rows: int | None, trials: int, best: float, most: float, folder: Path
) -> tuple[Course, float | None]:
    """The same search as a study; the course of its best score, and the seconds of so many trials, if it had them.

    Args:
        best, most: it ends once it has ended ``trials`` and has this score, or after so many seconds.
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
            signal.raise_signal(signal.SIGINT)  # as a user ends it

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
        "search": {"trials": MORE * trials, "seed": SEED, "scheduler": "asha"},
        "resources": {"isolation": "warm"},
        "storage": {"path": str(folder)},
    }
    with connected(workers=1, cpus_per_worker=1, gpus_per_worker=0, concurrent_trials=None) as concurrent:
        left = max(most - (time.time() - began), 1.0)
        document["search"] |= {"max_hours": left / 3600}
        studies.run(document, concurrent_trials=concurrent, watch=watch)
    return [(at, score) for at, score in course if at <= most], whole


def first(course: Course, score: float) -> float | None:
    """Seconds until a score was reached; none where it never was."""
    return next((at for at, reached in course if reached >= score), None)


def apart(contender: Callable[..., tuple[Course, Any]], *given: Any, threads: int) -> tuple[Course, Any]:
    """What a contender finds in a process and a folder of its own."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(contender, *given, Path(folder)).result()


def main() -> None:
    import shared
    from shared import Target

    parser = shared.arguments(__doc__, quick="4 trials of 400 rows: under 10 minutes on two cores")
    parser.add_argument("--rows", type=int, help="so many training and validation rows at most, by default all")
    parser.add_argument("--trials", type=int, default=16)
    options = parser.parse_args()
    rows, trials = (400, 4) if options.quick else (options.rows, options.trials)
    theirs, whole = apart(loop, options.data, rows, trials, threads=os.cpu_count() or 1)
    seconds, best = theirs[-1]
    ours, our_whole = apart(tutti, options.data, rows, trials, best, whole, threads=1)
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
