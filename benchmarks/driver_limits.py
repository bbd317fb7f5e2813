"""How many reports a second a study's driver carries, and what it waits for with many trials.

    python benchmarks/driver_limits.py [--quick] [--json FILE] [--nodes 20]

Nothing is trained; all else is real.

* broker_1, broker_50, broker_500: reports/s that the broker passes on in one process, with so many trials in progress.
* broker_actor: the same as Ray runs it, an actor called by two processes, with 200 trials in progress. Each report
  takes three calls: the worker's report, its question whether to go on, and Tune's for the next report.
* study: reports/s through everything: the workers, the broker, Tune, Optuna's database and MLflow's queue, from trials
  of 50 reports, one at a time.
* head_mib_per_trial: memory of the processes that a trial in progress has on the driver's node besides its workers: the
  host of its pool and Tune's actor.
* nodes_N: with --nodes N: reports/s of a study on N nodes of Ray that are processes of this machine, each with room for
  one trial, all in progress; nodes_N_trials is trials/s, and nodes_N_driver_share the cores that the driver's process,
  the broker, the hosts and Tune's actors took of the two, the rest being the nodes' own processes.
* records_seconds: a look at all trials in a database with 2,000, which a driver takes for its table and for Prometheus.
"""

from __future__ import annotations

import asyncio
import json
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
import studies
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


def on_nodes(nodes: int, trials: int, data: Path) -> dict[str, float]:
    """A study on nodes that are processes of this machine; connects to them."""
    from ray.cluster_utils import Cluster

    trial_overhead.EPOCHS = REPORTS
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, wait=False)
    cluster.wait_for_nodes(timeout=30 * nodes)
    os.environ["RAY_ADDRESS"] = cluster.address
    driving: list[tuple[float, float]] = []  # time, CPU seconds

    def watch(_: StudyStore) -> None:
        if not driving or time.time() > driving[-1][0] + 5:  # each look takes a while
            driving.append((time.time(), cpu_seconds_of("ray::PoolHost", "ray::RelayedTrial", "ray::Broker")))

    try:
        with (
            connected(Resources(concurrent_trials=nodes), tell=print),
            tempfile.TemporaryDirectory() as temporary,
        ):
            place = studies.run(
                {
                    "study": "nodes",
                    "tasks": {"SST-2": studies.sst2(data, Path(temporary), rows=64)},
                    "training": {"num_train_epochs": 1, "max_length": 32},
                    "search_space": {"learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-4}},
                    "search": {"trials": trials, "scheduler": "none", "sampler": "random"},
                    "resources": {"isolation": "warm", "concurrent_trials": nodes},
                    "storage": {"path": temporary},
                },
                concurrent_trials=nodes,
                train=report_many,
                watch=watch,
            )
            noted = [json.loads(line) for line in (place.path / "times.jsonl").read_text().splitlines()]
    finally:
        del os.environ["RAY_ADDRESS"]
        cluster.shutdown()
    ends = sorted(at for _, what, at in noted if what == "end")[nodes:]  # the first ones waited for their workers
    per_second = (len(ends) - 1) / (ends[-1] - ends[0])
    (began, cpu), (over, cpu_over) = driving[len(driving) // 2], driving[-1]
    return {
        f"nodes_{nodes}": per_second * REPORTS,
        f"nodes_{nodes}_trials": per_second,
        f"nodes_{nodes}_driver_share": (cpu_over - cpu) / (over - began),
    }


def cpu_seconds_of(*names: str) -> float:
    """CPU seconds that this process and those with these titles have taken."""
    total = sum(psutil.Process().cpu_times()[:2])
    for each in psutil.process_iter():
        with suppress(psutil.Error, IndexError):
            if each.cmdline()[0].startswith(names):
                total += sum(each.cpu_times()[:2])
    return float(total)


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
    import trial_overhead  # the host unpickles this function too: with this import above, it would load torch

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
    parser.add_argument("--nodes", type=int, help="how many nodes of this machine a study runs on too")
    options = parser.parse_args()
    shared.quiet()
    reports = 20 if options.quick else 100
    values = {f"broker_{trials}": asyncio.run(alone(trials, reports)) for trials in (1, 50, 500)}
    with connected(Resources(concurrent_trials=1)):
        values["broker_actor"] = as_actor(reports)
        values["study"], values["head_mib_per_trial"] = whole(10 if options.quick else 40, options.data)
    if options.nodes:
        values |= on_nodes(options.nodes, (4 if options.quick else 20) * options.nodes, options.data)
    values["records_seconds"] = records_seconds(500 if options.quick else 2000)
    shared.show_results(values, TARGETS, options.json)


if __name__ == "__main__":
    main()
