"""Wall time until a study reaches what a user's own search loop ends with, with the same search space and rows.

    python benchmarks/time_to_score.py [--rows N] [--trials 16] [--studies N] [--quick] [--json FILE]

Sixteen trials of MiniLM on SST-2, three epochs each, evaluated on the validation rows after each epoch:

* loop: an Optuna study whose objective trains a transformers.Trainer with default settings, one trial after the other,
  with one thread per core. Its model, AutoModelForSequenceClassification, uses the first token; batches have 16 rows.
* tutti: a study with ASHA on warm workers, with one concurrent trial per core, a token budget per batch, and mean
  pooling as in examples/glue_sentences.yaml.

Both use the same search space and TPE; the first study has the loop's seed. Each runs in its own process. The time
starts before the first import, so it includes loading data, Ray and models.

* speedup: the loop's time to its best validation score / Tutti's time until a trial has at least this score.
* unseen_speedup: the loop's time to its best trial / Tutti's time from which on the mean vote of its best five trials
  labels rows that neither has trained on or selected with, the last 1,500 of the training file, as well as that trial.
* common_speedup: like speedup, for common_score, the best score that both reach.
* whole_speedup: the loop's time for all trials / Tutti's time for the same number of trials.

The best of the loop's 48 validation scores is high by luck too, and that of a study differs by its seed: with
--studies N the loop is compared with N studies, and the values are medians. Once its trials have ended, a study goes on
until it has the loop's best score, or a quarter of the loop's time is over. A speedup that this leaves unknown counts
as 0 in a median; one of 0 is left out, with a message.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tutti.config.folder import StudyFolder
    from tutti.records import TrialRecord

EPOCHS, BATCH = 3, 16
TOKENS = 512  # about 20 rows of SST-2, near the loop's 16
VOTES = 5  # members of a study's vote, the default of `tutti ensemble`
UNSEEN = 1500  # rows, of the training file's end
MAX_TRIALS_FACTOR = 8  # Tutti may run up to this many times the loop's trials
SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 3e-4},
    "warmup_steps": {"type": "uniform", "low": 0.0, "high": 0.2},  # as a share of all steps
    "weight_decay": {"type": "uniform", "low": 0.0, "high": 0.1},
}

Course = list[tuple[float, float]]  # (seconds since the start, score), in order of time


@dataclass(frozen=True)
class Search:
    """What a search reached.

    Attributes:
        course: the best validation score so far, at each improvement.
        unseen: accuracy on the unseen rows of what the search would use, at each change.
        seconds: until all of the loop's number of trials had ended, or None.
    """

    course: Course
    unseen: Course
    seconds: float | None


def _follow(course: Course, score: float, *, began: float) -> bool:
    """Adds a score that is the best so far; returns whether it was."""
    improved = not course or score > course[-1][1]
    if improved:
        course.append((time.time() - began, score))
    return improved


def write_rows(data: Path, rows: int | None, folder: Path) -> None:
    """Writes the rows of all searches in GLUE's layout: train.tsv, dev.tsv, test.tsv, and unseen.tsv with labels."""
    train = (data / "SST-2" / "train.tsv").read_text(encoding="utf8").splitlines()
    dev = (data / "SST-2" / "dev.tsv").read_text(encoding="utf8").splitlines()
    unseen, last = train[-UNSEEN:], len(train) - UNSEEN if rows is None else min(rows + 1, len(train) - UNSEEN)
    texts = [line.rpartition("\t")[0] for line in unseen]
    test = ["index\tsentence", *(f"{row}\t{text}" for row, text in enumerate(texts))]
    files = {"train": train[:last], "dev": dev if rows is None else dev[: rows + 1], "test": test}
    for name, lines in {**files, "unseen": [train[0], *unseen]}.items():
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf8")


def loop(data: Path, trials: int, folder: Path) -> Search:
    """Runs Optuna with a plain Trainer. The seconds of labelling the unseen rows do not count."""
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
    for part in ("train", "dev", "unseen"):
        frame = pd.read_csv(data / f"{part}.tsv", sep="\t", quoting=3)
        texts = tokenizer(frame["sentence"].tolist(), truncation=True, max_length=shared.MAX_LENGTH)
        read[part] = [
            {"input_ids": ids, "attention_mask": mask, "labels": int(label)}
            for ids, mask, label in zip(texts["input_ids"], texts["attention_mask"], frame["label"], strict=True)
        ]
    course: Course = []
    unseen: Course = []

    class Follow(TrainerCallback):
        best, improved = 0.0, False

        def on_evaluate(self, *_: Any, metrics: dict[str, float], **__: Any) -> None:
            if "eval_accuracy" in metrics:
                self.improved |= _follow(course, metrics["eval_accuracy"], began=began)
                self.best = max(self.best, metrics["eval_accuracy"])

    def objective(trial: optuna.Trial) -> float:
        nonlocal began
        parameters = {
            key: trial.suggest_float(key, kind["low"], kind["high"], log=kind["type"] == "log_uniform")
            for key, kind in SPACE.items()
        }
        follow = Follow()
        trainer = Trainer(
            model=AutoModelForSequenceClassification.from_pretrained(shared.BACKBONE, num_labels=2),
            args=TrainingArguments(
                output_dir=str(folder / str(trial.number)),
                num_train_epochs=EPOCHS,
                per_device_train_batch_size=BATCH,
                eval_strategy="epoch",
                save_strategy="best",
                metric_for_best_model="accuracy",
                load_best_model_at_end=True,
                save_total_limit=1,
                report_to="none",
                disable_tqdm=True,
                seed=0,
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
        )
        trainer.train()
        if follow.improved:
            ended = time.time()
            unseen.append(
                (course[-1][0], trainer.evaluate(read["unseen"], metric_key_prefix="unseen")["unseen_accuracy"])
            )
            began += time.time() - ended
        return follow.best

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return Search(course, unseen, time.time() - began)


def tutti(data: Path, trials: int, best: float, most: float, seed: int, folder: Path) -> Search:
    """Runs the same search as a study.

    Args:
        best, most: once ``trials`` trials have ended, the study ends when it has the score ``best``, or after ``most``
            seconds.
    """
    began = time.time()
    import shared
    import studies

    from tutti.cluster.connect import connected
    from tutti.config.study import Resources
    from tutti.records import TrialState
    from tutti.search.study_store import StudyStore

    shared.quiet()
    course: Course = []
    whole: float | None = None
    over = False
    ended: list[TrialRecord] = []

    def watch(store: StudyStore) -> None:
        nonlocal whole, over, ended
        records = store.records()
        ended = [record for record in records if record.state in (TrialState.FINISHED, TrialState.STOPPED)]
        if whole is None and len(ended) >= trials:
            whole = time.time() - began
        for record in records:
            for score in record.scores_by_epoch.values():
                _follow(course, score, began=began)
        if not over and whole and (course[-1][1] >= best or time.time() - began > most):
            over = True
            signal.raise_signal(signal.SIGINT)  # ends the study as a user does

    files = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    document: dict[str, Any] = {
        "study": "tutti",
        "tasks": {
            "SST-2": {
                "layout": "glue",
                "metric": "accuracy",
                **{part: str(data / name) for part, name in files.items()},
            }
        },
        "training": {
            "num_train_epochs": EPOCHS,
            "max_tokens_per_batch": TOKENS,
            "max_length": shared.MAX_LENGTH,
            "pooling": "mean",
        },
        "search_space": SPACE,
        "search": {"trials": MAX_TRIALS_FACTOR * trials, "seed": seed, "scheduler": "asha"},
        "resources": {"isolation": "warm"},
        "storage": {"path": str(folder)},
    }
    with connected(Resources()) as concurrent:
        place = studies.run(document, concurrent_trials=concurrent, watch=watch)
    finished = [record for record in ended if record.state is TrialState.FINISHED]  # only these may vote
    return Search(course, _votes(place, finished, data / "unseen.tsv", began=began), whole)


def _votes(place: StudyFolder, finished: Sequence[TrialRecord], file: Path, *, began: float) -> Course:
    """The accuracy on the unseen rows of the mean vote of the best trials so far, at each trial's end."""
    import numpy as np
    import pandas as pd

    from tutti.bank.bank import Bank

    bank = Bank(place.bank)
    labels = pd.read_csv(file, sep="\t", quoting=3)["label"].to_numpy()
    course: Course = []
    best: list[tuple[float, str]] = []  # scores and keys
    for at, score, key in sorted((record.ended or 0.0, record.score or 0.0, record.key) for record in finished):
        best = sorted([*best, (score, key)], reverse=True)[:VOTES]
        votes = np.mean([bank.predictions(member, "SST-2", "test").outputs for _, member in best], axis=0)
        course.append((at - began, float(np.mean(votes.argmax(1) == labels))))
    return course


def first(course: Course, score: float) -> float | None:
    """Seconds until a score was reached; None if it never was."""
    return next((at for at, reached in course if reached >= score), None)


def lasting(course: Course, score: float) -> float | None:
    """Seconds from which on a course keeps at least a score; None if it ends below."""
    kept = None
    for at, reached in course:
        kept = None if reached < score else kept or at
    return kept


def run_isolated(contender: Callable[..., Search], *args: Any, threads: int) -> Search:
    """Runs a contender in its own process and folder, and returns its result."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(contender, *args, Path(folder)).result()


def compare(theirs: Search, ours: Search) -> dict[str, float]:
    """The results of one study. A speedup is 0 where the study did not reach the score."""
    assert theirs.seconds is not None
    seconds, best = theirs.course[-1]
    common = min(best, ours.course[-1][1])
    at, our_at = first(theirs.course, common), first(ours.course, common)
    reached, kept = first(ours.course, best), lasting(ours.unseen, theirs.unseen[-1][1])
    assert at is not None
    assert our_at is not None
    return {
        "tutti_best": ours.course[-1][1],
        "tutti_unseen": ours.unseen[-1][1],
        "common_speedup": at / our_at,
        "whole_speedup": theirs.seconds / ours.seconds if ours.seconds else 0.0,
        "unseen_speedup": seconds / kept if kept else 0.0,
        "speedup": seconds / reached if reached else 0.0,
    }


def main() -> None:
    import shared
    from shared import Target

    parser = shared.arguments(__doc__, quick="4 trials of 400 rows: under 10 minutes on two cores")
    parser.add_argument("--rows", type=int, help="so many training and validation rows at most, by default all")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--studies", type=int, default=1, help="compare the loop with so many studies")
    options = parser.parse_args()
    rows, trials = (400, 4) if options.quick else (options.rows, options.trials)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_rows(options.data, rows, data)
        theirs = run_isolated(loop, data, trials, threads=os.cpu_count() or 1)
        assert theirs.seconds is not None
        print(f"loop: {theirs}", flush=True)
        seconds, best = theirs.course[-1]
        compared = []
        for seed in range(options.studies):
            ours = run_isolated(tutti, data, trials, best, theirs.seconds / 4, seed, threads=1)
            print(f"study {seed}: {ours}", flush=True)
            compared.append(compare(theirs, ours))
    medians = {key: median(study[key] for study in compared) for key in compared[0]}
    values = {"loop_best": best, "loop_unseen": theirs.unseen[-1][1], "loop_seconds_to_best": seconds}
    values |= {"loop_seconds": theirs.seconds, **{key: value for key, value in medians.items() if value}}
    if not medians["speedup"]:
        print("Tutti did not reach the loop's best validation score in a quarter of the loop's time.")
    shared.show_results(values, {"speedup": Target(5), "unseen_speedup": Target(5)}, options.json)


if __name__ == "__main__":
    main()
