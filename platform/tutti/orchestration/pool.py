"""A pool: the workers of one Ray Train run, which train one trial after the other, or just one."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.config.study import Resources, StudyConfig
from tutti.errors import Fault, TrialError, TrialMemoryError
from tutti.orchestration.broker import FAILED, INFEASIBLE, Broker
from tutti.orchestration.halt import storage_fault
from tutti.orchestration.memory import cause_of, for_its_node, is_out_of_memory
from tutti.orchestration.mistakes import mistake_in, place_of
from tutti.orchestration.trial import Stopped

if TYPE_CHECKING:
    from ray.actor import ActorHandle

# Between two looks of Ray Train at the workers. Reports do not wait for it, but the start and the end of a run do.
POLL_SECONDS = {True: "1", False: "0.1"}  # warm, isolated


@dataclass(frozen=True)
class PoolJob:
    """What every trial of a study has in common.

    Attributes:
        folder: the study's, which every node sees.
        train: what every worker does with a trial: ``train_trial``, or what takes its arguments.
        grows: whether nodes may be added to the cluster, for which workers wait then.
    """

    study: StudyConfig
    folder: StudyFolder
    train: Callable[..., None]
    grows: bool

    @property
    def warm(self) -> bool:
        """Whether the workers stay for the next trial."""
        return self.study.resources.isolation != "isolated"


@dataclass(frozen=True)
class Failure:
    """Why a run of workers failed, in one line.

    Attributes:
        for_its_node: of one out of memory, whether Ray ended it for its node, which its neighbours may have filled.
        final: whether its trial would fail so again.
        halting: said where the storage is why, which no other worker could do better with.
        no_room: whether its workers never started, for the cluster had no room for them.
    """

    reason: str
    out_of_memory: bool = False
    for_its_node: bool = False
    final: bool = False
    halting: Fault | None = None
    no_room: bool = False


class PoolHost:
    """Runs Ray Train runs one after the other, until the study is over; Ray runs it as an actor."""

    def run(self, name: str, job: PoolJob, broker: ActorHandle[Broker]) -> str | None:
        """Ends with the study, or with the reason why the workers cannot start.

        Every run has a name of its own, so that a snapshot cut off by a kill never fails a later one.
        """
        os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = POLL_SECONDS[job.warm]
        os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
        # A node that is to go is used until it goes: then its trial is begun again elsewhere, from its last state.
        os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
        import ray
        from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE

        # Ray Train frees a run's workers once the State API says that its controller is dead. Not told which cluster to
        # ask, it asks any that it finds on the machine: with two there, it may kill a living run, or free nothing.
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        ENV_VARS_TO_PROPAGATE.add("RAY_ADDRESS")
        ray.get(broker.lost.remote(name, "the host of its workers died"))  # where this is not the first to run
        in_vain = 0
        while not ray.get(broker.closed.remote()):
            if not job.warm and not ray.get(broker.wanted.remote()):
                continue
            failure = _run_once(name, job, broker)
            if failure is None:
                in_vain = 0
                continue
            if failure.halting:
                ray.get(broker.halt.remote(failure.halting))
                return failure.reason
            if failure.no_room and job.grows:  # until Ray is ended, by Ctrl-C or a limit of the study
                ray.get(broker.notice.remote(_waits(job.study.resources)))
                continue
            memory = {"out_of_memory": failure.out_of_memory, "for_its_node": failure.for_its_node}
            trained = ray.get(broker.lost.remote(name, failure.reason, **memory, final=failure.final))
            in_vain = 0 if trained else in_vain + 1
            if in_vain > job.study.search.retries:
                return failure.reason
            time.sleep(in_vain)
        return None


def _run_once(name: str, job: PoolJob, broker: ActorHandle[Broker]) -> Failure | None:
    """One Ray Train run; why it failed, or nothing."""
    from ray import train
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    from tutti.orchestration.worker_group import WorkerGroup

    try:
        WorkerGroup(
            train_trials,
            train_loop_config={"pool": name, "job": job, "broker": broker},
            resources=job.study.resources,
            run_config=train.RunConfig(
                name=f"{name}-{time.time_ns()}",
                storage_path=str(job.folder.ray / "pools"),
                # None within a run: its workers would take a new trial, and leave theirs to nobody.
                failure_config=train.FailureConfig(
                    max_failures=0, controller_failure_limit=0, max_preemption_failures=0
                ),
            ),
        ).fit()
    except Exception as error:  # of a worker, of Ray Train's controller, or of Ray itself
        if isinstance(error, train.WorkerGroupError) and error.worker_failures:
            failures = error.worker_failures
            starved = {rank: each for rank, each in failures.items() if is_out_of_memory(each)}
            halting = _halting(job, *failures.values())
            if not (starved or halting) and (rank := mistake_in(failures)) is not None:
                return Failure(reason_of({rank: failures[rank]}) + place_of(rank, str(error)), final=True)
            by_itself = {rank: each for rank, each in starved.items() if not for_its_node(each)}
            memory = {"out_of_memory": bool(starved), "for_its_node": bool(starved) and not by_itself}
            return Failure(reason_of(by_itself or starved or failures), **memory, halting=halting)
        said = getattr(error, "controller_failure", None) or error
        no_room = isinstance(said, WorkerGroupStartupTimeoutError)
        return Failure(_line(said), halting=_halting(job, said), no_room=no_room)
    return None


def _waits(resources: Resources) -> str:
    each = f"{resources.cpus_per_worker} CPUs and {resources.gpus_per_worker:g} GPUs"
    missing = f"workers: {resources.workers}, each with {each}"
    return f"waits for nodes: the cluster has no room yet for {missing} (see `ray status`)"


def _halting(job: PoolJob, *errors: BaseException) -> Fault | None:
    place = str(job.folder.path)
    return next((fault for error in errors if (fault := storage_fault(error, place=place))), None)


def train_trials(config: Mapping[str, Any]) -> None:
    """What every worker of a pool runs: rank 0 takes a trial from the broker, and all ranks train it together."""
    import ray
    import torch

    from tutti.training.ranks import from_rank_zero

    pool, job, broker = config["pool"], config["job"], config["broker"]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(job.study.resources.cpus_per_worker)
    while (taken := from_rank_zero(lambda: ray.get(broker.take.remote(pool)))) is not None:
        if not taken:
            continue
        trial, attempt = taken

        def tell(report: dict[str, Any], key: str = trial["key"], attempt: int = attempt) -> bool:
            place = from_rank_zero(lambda: ray.get(broker.tell.remote(key, attempt, report)))
            while place is not None:
                said = from_rank_zero(lambda: ray.get(broker.verdict.remote(key, attempt, place)))
                if said is not None:
                    return said
            return False

        with _nothing_left():
            try:
                job.train(job.study, job.folder, trial, tell=tell)
            except Stopped:
                pass
            except TrialError as error:  # raised on every rank alike, and no second try would end otherwise
                tell({FAILED: str(error)} | ({INFEASIBLE: True} if isinstance(error, TrialMemoryError) else {}))
        if not job.warm:
            return


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Leaves nothing of a trial in its process for the next one: memory, compiled code, switches, environment.

    What the trial raised must be caught inside: its traceback holds the trainer.
    """
    import torch

    threads, environment = torch.get_num_threads(), dict(os.environ)
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)  # TrainingArguments' full_determinism, as are the next three lines
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        if "torch._dynamo" in sys.modules:  # it gives up compiling after so many models
            torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def reason_of(failures: Mapping[int, BaseException]) -> str:
    """The first worker's failure in one line."""
    rank, error = min(failures.items())
    return f"worker {rank}: {_line(cause_of(error))}"[:500]


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # Others end with what happened; one of memory begins with it, and ends with what Ray or torch advises.
    return f"{type(error).__name__}: {lines[0 if is_out_of_memory(error) else -1]}"[:500]
