"""The cost of a trial in time, memory and disk space, in a study with a thousand trials.

    python benchmarks/many_trials.py [--quick] [--json FILE]

One study of 1,000 trials (--quick: 300) that report three epochs without training, one at a time on warm workers.
Everything else is real (Tune, Ray Train, Optuna, MLflow, the bank). Parameters are sampled at random, since the time
that a sampler such as TPE needs for many trials is not measured here.

* early_seconds, late_seconds: the median time from the end of one trial to the end of the next, over 100 trials around
  the hundredth, and over the last hundred.
* growth: late_seconds / early_seconds.
* mib_per_trial: the growth of the driver process's memory per trial, from the hundredth trial on.
* optuna_mib, mlflow_mib, bank_mib, ray_mib, other_mib: disk space at the end.
"""

from __future__ import annotations

import os
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import shared
from shared import Target
from trial_overhead import report_alone, run

from tutti.cluster.connect import connected
from tutti.config.study import Resources
from tutti.search.study_store import StudyStore

WINDOW = 100
MIB = 2**20
TARGETS = {"growth": Target(1.1, most=True)}


def _size(*paths: Path) -> int:
    """The total size in bytes of these files, and of all files in these folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


def sizes(study: Path) -> dict[str, float]:
    """The size in MiB of each store in a study's folder."""
    stores = {
        "optuna": list(study.glob("optuna.db*")),
        "mlflow": [*study.glob("mlflow.db*"), study / "mlflow-artifacts"],
        "bank": [study / "bank"],
        "ray": [study / "ray"],
    }
    by_store = {name: _size(*paths) / MIB for name, paths in stores.items()}
    return {**by_store, "other": _size(study) / MIB - sum(by_store.values())}


def main() -> None:
    parser = shared.arguments(__doc__, quick="300 trials: under 10 minutes on two cores")
    options = parser.parse_args()
    shared.quiet()
    os.environ["OMP_NUM_THREADS"] = "1"
    trials = 300 if options.quick else 1000

    memory: list[tuple[int, int]] = []  # size of the trials' notes in bytes, resident memory of the driver in bytes
    with (
        tempfile.TemporaryDirectory() as temporary,
        connected(Resources(concurrent_trials=1)),
    ):
        study = Path(temporary) / "warm"

        def watch(store: StudyStore) -> None:
            memory.append(((study / "times.jsonl").stat().st_size, psutil.Process().memory_info().rss))

        noted = run(
            Path(temporary),
            trials=trials,
            isolation="warm",
            train=report_alone,
            data=options.data,
            watch=watch,
            sampler="random",
        )
        disk = sizes(study)
        length = (study / "times.jsonl").stat().st_size
    ends = [at for _, what, at in noted if what == "end"]
    costs = [later - earlier for earlier, later in pairwise(ends)]
    early, late = median(costs[WINDOW // 2 : WINDOW * 3 // 2]), median(costs[-WINDOW:])
    # All trials' notes have the same length, so the file's size gives the number of trials.
    note_sizes, resident = np.array(memory, dtype=float).T
    trial_counts = note_sizes * trials / length
    settled = trial_counts > WINDOW
    slope = np.polyfit(trial_counts[settled], resident[settled], 1)[0]
    values = {"early_seconds": early, "late_seconds": late, "growth": late / early, "mib_per_trial": slope / MIB}
    values |= {f"{name}_mib": size for name, size in disk.items()}
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
