"""How many reports a second a study's driver carries, and what it waits for with many trials.

    python benchmarks/driver_limits.py [--quick] [--json FILE]

Nothing is trained; all else is real.

* broker_1, broker_50, broker_500: reports/s that the broker passes on in one process, with so many trials in progress.
* broker_actor: the same as Ray runs it, an actor called by two processes, with 200 trials in progress. Each report
  takes three calls: the worker's report, its question whether to go on, and Tune's for the next report.
* study: reports/s through everything: the workers, the broker, Tune, Optuna's database and MLflow's queue, from trials
  of 50 reports, one at a time.
* head_mib_per_trial: memory of the processes that a trial in progress has on the driver's node besides its workers: the
  host of its pool and Tune's actor.
* records_seconds: a look at all trials in a database with 2,000, which a driver takes for its table and for Prometheus.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import ray
import shared
import trial_overhead
from shared import Target

from tutti.cluster.connect import connected
from tutti.config.space import SearchSpace
from tutti.config.study import Resources
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.messages import Report
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Resumption

TARGETS = {"broker_500": Target(2000), "broker_actor": Target(2000)}
PROCESSES, IN_PROGRESS = 2, 200  # of broker_actor
REPORTS = 50  # per trial of the study


class Here:
    """Calls a broker of this process as if it were Ray's actor."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return type("Method", (), {"remote": staticmethod(getattr(self._broker, name))})


async def train(broker: Any, pool: str, reports: int) -> None:
    """What a pool's worker sends of one trial."""
    config, attempt = await broker.take.remote(pool)
    await broker.begin.remote(config["key"], attempt)
    for epoch in range(1, reports + 1):
        report: Report = {"epoch": epoch, "score": 0.5, "at": time.time(), "metrics": {"loss": 0.5}}
        last: Report = {"final": True} if epoch == reports else {}
        count = await broker.report.remote(config["key"], attempt, {**report, **last})
        if count is not None:
            await broker.await_decision.remote(config["key"], attempt, count)


async def relay(broker: Any, number: int) -> None:
    """What Tune asks for one trial."""
    key = f"t{number:04d}"
    known = {"resumption": Resumption(), "optuna_number": number}
    _, index = await broker.submit.remote({"key": key, "number": number, "parameters": {}, **known})
    while "final" not in await broker.next_report.remote(key, index):
        index += 1


async def all_of(broker: Any, trials: range, reports: int) -> None:
    calls = [train(broker, f"pool-{number}", reports) for number in trials]
    await asyncio.gather(*calls, *(relay(broker, number) for number in trials))


async def alone(trials: int, reports: int) -> float:
    """Reports/s of a broker in this process."""
    began = time.perf_counter()
    await all_of(Here(Broker(0)), range(trials), reports)
    return trials * reports / (time.perf_counter() - began)


class Callers:
    """Workers and relays in a process of their own."""

    async def run(self, broker: Any, trials: range, reports: int) -> None:
        await all_of(broker, trials, reports)


def as_actor(reports: int) -> float:
    """Reports/s of a broker that is an actor, as a study's is."""
    broker = ray.remote(Broker).options(num_cpus=0).remote(0)
    callers = [ray.remote(Callers).options(num_cpus=0).remote() for _ in range(PROCESSES)]
    ray.get([each.__ray_ready__.remote() for each in [broker, *callers]])
    each = IN_PROGRESS // PROCESSES
    began = time.perf_counter()
    ray.get([callers[n].run.remote(broker, range(n * each, (n + 1) * each), reports) for n in range(PROCESSES)])
    return IN_PROGRESS * reports / (time.perf_counter() - began)


def whole(trials: int, data: Path) -> tuple[float, float]:
    """Reports/s of a study, from its first trial's begin to its last one's end, and MiB per trial in progress."""
    trial_overhead.EPOCHS = REPORTS
    memory: list[float] = []

    def watch(_: StudyStore) -> None:
        if len(memory) < 10:  # each look takes a while
            memory.append(memory_of("ray::PoolHost", "ray::RelayedTrial"))

    with tempfile.TemporaryDirectory() as temporary:
        noted = trial_overhead.run(
            Path(temporary),
            trials=trials,
            isolation="warm",
            train=report_many,
            data=data,
            watch=watch,
            sampler="random",
        )
    times = [at for _, what, at in noted if what in ("begin", "end")]
    return trials * REPORTS / (max(times) - min(times)), max(memory)


def memory_of(*names: str) -> float:
    """MiB that this process's descendants with these titles have for themselves."""
    total = 0
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, IndexError):
            if each.cmdline()[0].startswith(names):
                total += each.memory_full_info().uss
    return total / 2**20


def report_many(*given: Any, **named: Any) -> None:
    """Trains a trial in a worker, which imports this module anew."""
    trial_overhead.EPOCHS = REPORTS
    trial_overhead.report_alone(*given, **named)


def records_seconds(trials: int) -> float:
    with tempfile.TemporaryDirectory() as temporary:
        url = f"sqlite:///{temporary}/optuna.db"
        with closing(StudyStore.open(url, name="s", space=SearchSpace(), sampler="random", seed=0)) as store:
            for number in range(trials):
                key = store.ask().key
                store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})
                store.finish(key, state=TrialState.FINISHED, score=number / trials)
            began = time.perf_counter()
            store.records()
            return time.perf_counter() - began


def main() -> None:
    parser = shared.arguments(__doc__, quick="fewer reports: under 5 minutes on two cores")
    options = parser.parse_args()
    shared.quiet()
    reports = 20 if options.quick else 100
    values = {f"broker_{trials}": asyncio.run(alone(trials, reports)) for trials in (1, 50, 500)}
    with connected(Resources(concurrent_trials=1)):
        values["broker_actor"] = as_actor(reports)
        values["study"], values["head_mib_per_trial"] = whole(10 if options.quick else 40, options.data)
    values["records_seconds"] = records_seconds(500 if options.quick else 2000)
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
