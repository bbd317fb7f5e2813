"""The overhead of a trial in seconds, compared with plain nested Ray, and the gap between two trials.

    python benchmarks/trial_overhead.py [--quick] [--json FILE]

Trials report three epochs without training. Everything else is real (Tune, Ray Train, Optuna, MLflow):

* warm: a study with resources.isolation: warm, whose workers are reused by the next trial.
* isolated: a study with new worker processes for every trial.
* nested: what a user would write: a Tune function that calls TorchTrainer.fit() with TuneReportCallback, with Ray's
  defaults, in its own process and Ray, without search, tracker or bank.

Trials run one at a time. The cost of a trial is the time from the end of the previous trial to its own end. The fixed
costs of a study are start_seconds, until its first trial begins, and end_seconds, after its last trial ends.
Contenders alternate in reversing order; the table shows medians.

* stop_to_free_seconds: from the report at which ASHA stops a trial until the next trial begins on the same workers.
* isolated_stop_to_free_seconds: from such a report until the stopped trial's worker process has exited.
* first_step_seconds: from the end of a trial that fine-tunes MiniLM to the first optimizer step of the next trial.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import shared
import studies
from shared import Target

from tutti.bank.bank import Bank
from tutti.cluster.connect import connected
from tutti.config.folder import StudyFolder
from tutti.config.study import Resources, StudyConfig
from tutti.orchestration.broker.messages import Report, TrialConfig
from tutti.orchestration.worker.trial import Stopped, train_trial
from tutti.records import CheckpointRecord
from tutti.search.study_store import StudyStore
from tutti.tasks.predictions import Predictions

EPOCHS = 3
TARGETS = {
    "vs_nested": Target(8),
    "stop_to_free_seconds": Target(5, most=True),
    "isolated_stop_to_free_seconds": Target(5, most=True),
    "first_step_seconds": Target(2, most=True),
}

Tell = Callable[[Report], bool]


def _note(folder: Path, key: str, what: str) -> None:
    with (folder / "times.jsonl").open("a", encoding="utf8") as file:
        file.write(json.dumps([key, what, time.time()]) + "\n")


def report_alone(
    study: StudyConfig, folder: StudyFolder, trial: TrialConfig, *, tell: Tell, worsening: bool = False
) -> None:
    """A trial without training. With ``worsening``, each trial scores lower than the previous one."""
    _note(folder.path, trial["key"], "begin")
    _note(folder.path, f"{os.getpid()}", "process")
    score = 1.0 / (1 + trial["number"]) if worsening else 0.5
    report: Report = {"score": score, "task_scores": {"SST-2": score}, "metrics": {}, "at": time.time(), "host": "here"}
    for epoch in range(1, EPOCHS + 1):
        if not tell({**report, "epoch": epoch}):
            raise Stopped
    best: Report = {"best_score": score, "best_epoch": EPOCHS, "best_task_scores": report["task_scores"]}
    labels = np.arange(64) % 2
    predictions = Predictions(
        ids=np.arange(64).astype(str),
        outputs=np.eye(2, dtype=np.float32)[labels],
        labels=labels,
        names=("0", "1"),
    )
    record = CheckpointRecord(trial["key"], trial["number"], EPOCHS, score, {"SST-2": score}, None)
    Bank(folder.bank).put(record, {"SST-2": {"validation": predictions}})
    _note(folder.path, trial["key"], "end")
    tell({**report, "epoch": EPOCHS, "final": True, **best})


def fine_tune_and_note(study: StudyConfig, folder: StudyFolder, trial: TrialConfig, *, tell: Tell) -> None:
    """A normal trial that also records the times of its first optimizer step and its end."""
    from tutti.training.loop.trainer import MultiTaskTrainer

    plain = MultiTaskTrainer.before_step

    def before_step(self: MultiTaskTrainer) -> None:
        if self.state.global_step == 0:
            _note(folder.path, trial["key"], "step")
        plain(self)

    MultiTaskTrainer.before_step = before_step  # type: ignore[method-assign]
    try:
        train_trial(study, folder, trial, tell=tell)
    finally:
        MultiTaskTrainer.before_step = plain  # type: ignore[method-assign]
        _note(folder.path, trial["key"], "end")


def run(
    folder: Path,
    *,
    trials: int,
    isolation: str,
    train: Callable[..., None],
    data: Path,
    watch: Callable[[StudyStore], None] = lambda store: None,
    **changes: Any,
) -> list[tuple[str, str, float]]:
    """Runs a study in ``folder``; returns the events that it and its trials recorded, in order: key, event, time."""
    place = studies.run(
        {
            "study": isolation,
            "tasks": {"SST-2": studies.sst2(data, folder, rows=64)},
            "training": {"num_train_epochs": 1, "max_length": 32},
            "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-4}},
            "search": {"trials": trials, "scheduler": "none", **changes},
            "resources": {"isolation": isolation, "concurrent_trials": 1},
            "storage": {"path": str(folder)},
        },
        train=train,
        began=lambda place: _note(place.path, "", "start"),
        watch=watch,
    )
    _note(place.path, "", "over")
    lines = (place.path / "times.jsonl").read_text(encoding="utf8").splitlines()
    return [tuple(json.loads(line)) for line in lines]


def nested(folder: Path, *, trials: int) -> list[float]:
    """Runs plainly nested trials with Ray's defaults; returns the time at which each ended."""
    import ray
    from ray import train, tune
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    file = folder / "ends.jsonl"

    def worker(config: dict[str, Any]) -> None:
        for epoch in range(1, EPOCHS + 1):
            train.report({"epoch": epoch, "score": 0.5})

    def trainable(config: dict[str, Any]) -> None:
        TorchTrainer(
            worker,
            scaling_config=train.ScalingConfig(num_workers=1),
            run_config=train.RunConfig(
                name=f"nested-{time.time_ns()}", storage_path=str(folder), callbacks=[TuneReportCallback()]
            ),
        ).fit()
        with file.open("a", encoding="utf8") as out:
            out.write(f"{time.time()}\n")

    ray.init(address="local", logging_level="ERROR", log_to_driver=False)
    tune.Tuner(
        tune.with_resources(trainable, {"memory": 1}),
        param_space={"learning_rate": tune.loguniform(1e-5, 1e-4)},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=str(folder), name="tune", verbose=0),
    ).fit()
    return [float(line) for line in file.read_text(encoding="utf8").splitlines()]


def stops(folder: Path, *, trials: int, isolation: str, data: Path) -> list[float]:
    """Seconds from the start of each trial stopped at its first report to the start of the next trial on the same
    workers, or, with isolation, to the exit of its worker.
    """
    worsening, over = functools.partial(report_alone, worsening=True), threading.Event()
    watcher = threading.Thread(target=_note_ends, args=(folder / isolation, over))
    watcher.start()
    try:
        noted = run(folder, trials=trials, isolation=isolation, train=worsening, data=data, scheduler="asha")
    finally:
        over.set()
        watcher.join()
    begun = {key: at for key, what, at in noted if what == "begin"}
    ended = {key for key, what, _ in noted if what == "end"}
    free = {key: begun[later] for key, later in pairwise(sorted(begun))}
    if isolation == "isolated":
        gone = {process: at for process, what, at in noted if what == "gone"}
        processes = [process for process, what, _ in noted if what == "process"]
        free = {key: gone[process] for key, process in zip(sorted(begun), processes, strict=True) if process in gone}
    return [free[key] - begun[key] for key in free if key not in ended]


def _note_ends(folder: Path, over: threading.Event) -> None:
    """Records when each process that a trial recorded has exited."""
    file, gone = folder / "times.jsonl", set[str]()
    while not over.wait(0.05):
        lines = file.read_text(encoding="utf8").splitlines() if file.exists() else []
        for process in {key for key, what, _ in map(json.loads, lines) if what == "process"} - gone:
            if not psutil.pid_exists(int(process)):
                gone.add(process)
                _note(folder, process, "gone")


def first_steps(folder: Path, *, data: Path) -> list[float]:
    """Seconds from the end of each trial to the first optimizer step of the next."""
    noted = run(folder, trials=4, isolation="warm", train=fine_tune_and_note, data=data)
    ends, steps = ({key: at for key, what, at in noted if key and what == which} for which in ("end", "step"))
    return [steps[later] - ends[key] for key, later in pairwise(sorted(ends))]


def between(times: Sequence[float]) -> float:
    return median(later - earlier for earlier, later in pairwise(times))


def main() -> None:
    parser = shared.arguments(__doc__, quick="one turn of few trials: under 10 minutes on two cores")
    options = parser.parse_args()
    shared.quiet()
    os.environ["OMP_NUM_THREADS"] = "1"
    turns, trials = (1, 4) if options.quick else (3, 6)

    names = ("warm", "isolated", "nested", "start", "end", "stop", "isolated_stop", "step")
    found: dict[str, list[float]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory() as temporary,
        connected(Resources(concurrent_trials=1)),
    ):

        def folder(name: str) -> Path:
            place = Path(temporary) / f"{name}-{len(found[name])}"
            place.mkdir()
            return place

        def ours(name: str) -> None:
            many = trials if name == "isolated" else 4 * trials
            noted = run(folder(name), trials=many, isolation=name, train=report_alone, data=options.data)
            ends = [at for _, what, at in noted if what == "end"]
            found[name].append(between(ends))
            if name == "warm":
                when = {what: at for _, what, at in reversed(noted)}  # the first of each
                found["start"].append(when["begin"] - when["start"])
                found["end"].append(when["over"] - ends[-1])

        def plain() -> None:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found["nested"].append(between(pool.submit(nested, folder("nested"), trials=trials).result()))

        for turn in range(turns):
            contenders: list[Callable[[], None]] = [lambda: ours("warm"), lambda: ours("isolated"), plain]
            for contender in contenders[:: -1 if turn % 2 else 1]:
                contender()
            found["stop"] += stops(folder("stop"), trials=4 * trials, isolation="warm", data=options.data)
            found["isolated_stop"] += stops(
                folder("isolated_stop"), trials=trials, isolation="isolated", data=options.data
            )
            found["step"] += first_steps(folder("step"), data=options.data)

    values = {f"{name}_seconds": median(found[name]) for name in ("warm", "isolated", "nested", "start", "end")}
    values["vs_nested"] = values["nested_seconds"] / values["warm_seconds"]
    values["isolated_vs_nested"] = values["nested_seconds"] / values["isolated_seconds"]
    values["stop_to_free_seconds"] = median(found["stop"])
    values["isolated_stop_to_free_seconds"] = median(found["isolated_stop"])
    values["first_step_seconds"] = median(found["step"])
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
