"""The effect of each training trick on the score, and its cost: the table of docs/tricks.md.

    python benchmarks/tricks.py [--rows N] [--epochs E] [--seeds 3] [--only NAME] [--runs FILE] [--out FILE] [--quick]

Fine-tunes MiniLM on CoLA, SST-2, MRPC and STS-B together: the baseline, and the baseline with each trick alone, with
the same seeds. A seed determines the training rows, the initial head weights (if a trick has the same heads) and the
order of batches, so a trick and the baseline differ in nothing else. The number of rows of each task is proportional
to the size of its file, N per task on average, because task sampling would have no effect on equal numbers.

The defaults make the table in 35 minutes on two cores with bfloat16. With more rows smaller differences are
significant: use more cores, and as many --processes.

Each finished run is a line of the file --runs, from which an interrupted script resumes. The page is written from all
lines with the same settings.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # one for each process

import shared
import torch
from shared import BACKBONE, MAX_LENGTH
from tricks_page import TASKS, outcome, page

from tutti.training import EpochReport, FineTuned, fine_tune
from tutti.training.machine.precision import cpu_gains_from_bf16

ROOT = Path(__file__).resolve().parents[1]
BASELINE = "baseline"
ROWS, VALIDATION_ROWS = 200, 300
EPOCHS = 3  # the dynamic weight average starts in the third epoch


def tricks(epochs: int) -> dict[str, dict[str, Any]]:
    """Every trick by name: the training keys that it changes in the baseline."""
    return {
        BASELINE: {},
        "temperature sampling": {"task_sampling": "temperature"},
        "uniform sampling": {"task_sampling": "uniform"},
        "sampling weights": {"task_sampling": "weights", "sampling_weights": {"MRPC": 2.0, "STS-B": 2.0}},
        "task weights": {"task_weights": {"MRPC": 2.0, "STS-B": 2.0}},
        "uncertainty weighting": {"loss_balancing": "uncertainty"},
        "dynamic weight average": {"loss_balancing": "dynamic"},
        "class weights": {"class_weights": "balanced"},
        "focal loss": {"focal_gamma": 2.0},
        "label smoothing": {"label_smoothing_factor": 0.1},
        "cls pooling": {"pooling": "cls"},
        "attention pooling": {"pooling": "attention"},
        "pair pooling": {"pooling": "pair"},
        "bi-encoder": {"pooling": "bi_encoder"},
        "last 4 layers": {"pooling_layers": 4},
        "multi-sample dropout": {"head_dropout_samples": 5},
        "FGM": {"adversarial": "fgm"},
        "AWP": {"adversarial": "awp", "adversarial_start": 1.0},
        "R-Drop": {"rdrop_alpha": 1.0},
        "NEFTune": {"neftune_noise_alpha": 5.0},
        "mixout": {"mixout": 0.7},
        "re-initialised top layer": {"reinit_layers": 1},
        "EMA": {"ema_decay": 0.999},
        "SWA": {"swa_epochs": 2},
        "layer-wise rates": {"layer_lr_decay": 0.9},
        "head rate": {"head_learning_rate": 1e-3},
        "two stages": {
            "stages": [
                {"num_train_epochs": epochs},
                {"num_train_epochs": 1, "freeze_encoder": True, "learning_rate": 1e-3},
            ]
        },
        "LoRA": {"adapter": "lora", "learning_rate": 1e-3},
        "QLoRA": {"adapter": "lora", "bits": 4, "learning_rate": 1e-3},
    }


def baseline(epochs: int) -> dict[str, Any]:
    """The training keys of every run; all others have their defaults."""
    return {
        "num_train_epochs": epochs,
        "learning_rate": 2e-4,
        "per_device_train_batch_size": 16,
        "pooling": "mean",  # as the encoder was pretrained
        "max_length": MAX_LENGTH,
        "bf16": cpu_gains_from_bf16(),  # measured once, so that all runs agree
    }


@dataclass(frozen=True)
class Job:
    """One run: a trick by name, a seed, and everything else that determines the result."""

    name: str
    seed: int
    settings: Mapping[str, Any]
    training: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Equal for identical runs."""
        what = {"seed": self.seed, "settings": self.settings, "training": self.training}
        return json.dumps([self.name, what], sort_keys=True)


@lru_cache(maxsize=1)
def _all_rows(data: str) -> shared.Rows:
    return shared.glue_rows(Path(data), TASKS)


def _drawn(data: str, settings: Mapping[str, Any], *, seed: int) -> shared.Rows:
    rows = _all_rows(data).drawn(settings["rows"], part="train", seed=seed)
    return rows.drawn(dict.fromkeys(TASKS, settings["validation_rows"]), part="validation", seed=0)


def row_counts(data: str, rows: int) -> dict[str, int]:
    """The number of training rows of each task, proportional to the size of its file, ``rows`` on average."""
    whole = {task: len(_all_rows(data).parts[task]["train"].ids) for task in TASKS}
    every = sum(whole.values())
    return {task: min(round(rows * len(TASKS) * count / every), count) for task, count in whole.items()}


def start_process(data: str) -> None:
    """Initialises a process with an untimed training, because the first one of a process is slow."""
    shared.quiet()
    torch.set_num_threads(1)
    few = {"rows": dict.fromkeys(TASKS, 32), "validation_rows": 32}
    _fine_tune(_drawn(data, few, seed=0), baseline(1))


def run(job: Job, data: str) -> dict[str, Any]:
    """Trains; returns the line for the file of runs."""
    rows = _drawn(data, job.settings, seed=job.seed)
    start = time.process_time()  # CPU time of the single thread, which other processes hardly affect
    tuned, reports = _fine_tune(rows, {**job.training, "seed": job.seed})
    seconds = time.process_time() - start
    return {
        "name": job.name,
        "seed": job.seed,
        "score": tuned.checkpoint.score,
        "task_scores": dict(tuned.checkpoint.task_scores),
        "epoch": tuned.checkpoint.epoch,
        "seconds": seconds,
        "precision": reports[0].precision,
        "settings": job.settings,
        "training": job.training,
    }


def _fine_tune(rows: shared.Rows, training: Mapping[str, Any]) -> tuple[FineTuned, list[EpochReport]]:
    reports: list[EpochReport] = []
    with tempfile.TemporaryDirectory() as folder:
        tuned = fine_tune(
            backbone=BACKBONE,
            tasks=rows.tasks,
            parts=rows.parts,
            training=training,
            folder=Path(folder),
            on_epoch=reports.append,
        )
    return tuned, reports


def finished(file: Path) -> dict[str, dict[str, Any]]:
    """The lines of a file of runs by the key of their job; skips an incomplete last line."""
    lines = {}
    for text in file.read_text(encoding="utf8").splitlines() if file.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        lines[Job(line["name"], line["seed"], line["settings"], line["training"]).key] = line
    return lines


def run_all(jobs: Sequence[Job], *, data: str, processes: int, file: Path) -> Iterator[str]:
    """Runs the jobs that the file lacks, and appends their lines. Yields a message for each run that failed."""
    lines = finished(file)
    missing = [job for job in jobs if job.key not in lines]
    print(f"{len(jobs)} runs, {len(jobs) - len(missing)} of them done before", flush=True)
    if not missing:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_file() and not file.read_text(encoding="utf8").endswith("\n"):
        with file.open("a", encoding="utf8") as out:
            out.write("\n")
    with (
        file.open("a", encoding="utf8") as out,
        ProcessPoolExecutor(
            processes, mp_context=get_context("spawn"), initializer=start_process, initargs=(data,)
        ) as pool,
    ):
        waiting = {pool.submit(run, job, data): job for job in missing}
        for count, future in enumerate(as_completed(waiting), start=1):
            job = waiting[future]
            try:
                line = future.result()
            except Exception as error:  # a trick that fails must not prevent the table
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                print(f"{count:4}/{len(missing)}  {job.name}, seed {job.seed}: {reason}", flush=True)
                yield f"{job.name}, seed {job.seed}: {reason}"
                continue
            out.write(json.dumps(line) + "\n")
            out.flush()
            result = f"{100 * line['score']:.2f} in {line['seconds']:.0f} s"
            print(f"{count:4}/{len(missing)}  {job.name}, seed {job.seed}: {result}", flush=True)


def main() -> None:
    parser = shared.arguments(__doc__, quick="1 epoch of few rows, 2 seeds: under 10 minutes on two cores; no page")
    parser.add_argument("--rows", type=int, help=f"training rows of a task, on average ({ROWS}; with --quick 40)")
    parser.add_argument("--validation-rows", type=int, help=f"of a task, at most ({VALIDATION_ROWS}; with --quick 100)")
    parser.add_argument("--epochs", type=int, help=f"of the baseline ({EPOCHS}; with --quick 1)")
    parser.add_argument("--seeds", type=int, help="of each trick (3; with --quick 2)")
    parser.add_argument("--only", action="append", metavar="NAME", help="this trick, beside the baseline; repeatable")
    parser.add_argument("--processes", type=int, default=2, help="that train at a time, with one thread each")
    parser.add_argument("--runs", type=Path, default=Path("tricks-runs.jsonl"), help="keeps a line for each run")
    parser.add_argument("--out", type=Path, help="the page (docs/tricks.md; with --quick none)")
    options = parser.parse_args()
    shared.quiet()
    epochs = options.epochs or (1 if options.quick else EPOCHS)
    seeds = options.seeds or (2 if options.quick else 3)
    out = options.out or (None if options.quick else ROOT / "docs" / "tricks.md")
    data = str(options.data.resolve())
    every = tricks(epochs)
    unknown = [name for name in options.only or () if name not in every]
    if unknown:
        parser.error(f"unknown trick {unknown[0]!r}; known are {', '.join(every)}")
    rows = options.rows or (40 if options.quick else ROWS)
    counts = row_counts(data, rows)
    validation_rows = options.validation_rows or (100 if options.quick else VALIDATION_ROWS)
    settings = {"rows": counts, "validation_rows": validation_rows}
    training = baseline(epochs)

    def job(name: str, seed: int) -> Job:
        return Job(name, seed, settings, {**training, **every[name]})

    wanted = [name for name in every if not options.only or name == BASELINE or name in options.only]
    jobs = [job(name, seed) for seed in range(seeds) for name in wanted]  # by seed, so that each seed completes a table
    failures = list(run_all(jobs, data=data, processes=options.processes, file=options.runs))

    by_key = finished(options.runs)
    lines = {
        name: {seed: by_key[key] for seed in range(seeds) if (key := job(name, seed).key) in by_key} for name in every
    }
    base = lines[BASELINE]
    if not base:
        sys.exit("no run of the baseline was finished: there is nothing to compare with")
    outcomes = {
        name: outcome(by_seed, base, of_base=name == BASELINE)
        for name, by_seed in lines.items()
        if by_seed.keys() & base.keys()
    }
    command = f"python benchmarks/tricks.py --rows {rows} --validation-rows {validation_rows}"
    text = page(outcomes, base, keys=every, settings=settings, training=training, failures=failures, command=command)
    if out is None:
        print(f"\n{text}")
    else:
        out.write_text(text, encoding="utf8")
        print(f"wrote {out}")
    values: dict[str, float] = {}
    for name, result in outcomes.items():
        if result.difference is not None:
            values |= {f"{name}: difference": result.difference, f"{name}: cost": result.cost}
    shared.write_json(values, options.json)


if __name__ == "__main__":
    main()
