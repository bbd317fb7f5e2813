"""A pool: the workers of a Ray Train run. They train one trial after another, or only one if trials are isolated."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tutti import mirror
from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import Fault, first_line
from tutti.launchers import forget_launcher
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.broker.failure_kind import Failure, find_program_error, traceback_location
from tutti.orchestration.broker.messages import Report, TrialConfig
from tutti.orchestration.worker.memory import cause_of, is_node_out_of_memory, is_out_of_memory
from tutti.orchestration.worker.nodes import Probe, elsewhere_than, no_node_fault, probe_of
from tutti.orchestration.worker.storage_failure import storage_fault
from tutti.orchestration.worker.trial import Stopped

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from tutti.orchestration.broker.population import Population

# Seconds between Ray Train's polls of its workers, by whether they are warm. Polling delays no report, but delays the
# start and the end of a run.
POLL_SECONDS = {True: "1", False: "0.1"}
CLOSING_SECONDS = 5.0  # for idle pools to end by themselves


@dataclass(frozen=True)
class PoolJob:
    """What all trials of a study have in common.

    Attributes:
        folder: the study's, visible to every node.
        train: trains a trial on every worker: ``train_trial``, or a function with the same arguments.
        grows: whether nodes may be added to the cluster. Workers wait for them then.
        probe: shows whether a node sees the folder.
    """

    study: StudyConfig
    folder: StudyFolder
    train: Callable[..., None]
    grows: bool
    probe: Probe

    @property
    def warm(self) -> bool:
        """Whether the workers stay for the next trial."""
        resources = self.study.resources
        if resources.isolation != "auto" or not resources.gpus_per_worker:
            return resources.isolation != "isolated"
        from tutti.config.possible import possible_values, stages_of

        # bitsandbytes never frees the state of a paged optimizer: the memory in use would grow with each trial.
        optimizers = [
            each for stage in stages_of(self.study) for _, each in possible_values(self.study, "optim", stage)
        ]
        return not any(str(optimizer).startswith("paged_") for optimizer in optimizers)


@contextmanager
def running_pools(
    study: StudyConfig, folder: StudyFolder, *, count: int, train: Callable[..., None], population: Population | None
) -> Iterator[tuple[ActorHandle[Broker], Pools]]:
    """Starts a broker and ``count`` pools of workers, and ends them with the block."""
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import remove_placement_group

    with probe_of(folder) as probe:
        # A cluster that somebody else started may get further nodes; a private Ray does not.
        job = PoolJob(study, folder, train, grows=bool(os.environ.get("RAY_ADDRESS")), probe=probe)
        options = beside_driver()
        broker = ray.remote(Broker).options(**options).remote(study.search.retries, population)
        pools = Pools(lambda: ray.remote(PoolHost).options(**options).remote(), job=job, broker=broker, count=count)
        try:
            yield broker, pools
        finally:
            with suppress(RayError):  # the broker may have died
                all_idle = ray.get(broker.close.remote())
                pools.wait(CLOSING_SECONDS if all_idle else 0)
            for host in pools.hosts:
                ray.kill(host)
            with suppress(RayError):
                for placement_group in ray.get(broker.placement_groups.remote()):
                    remove_placement_group(placement_group)  # does nothing if it was removed
            ray.kill(broker)


def beside_driver() -> dict[str, Any]:
    """Options of an actor without CPUs on the driver's node: the loss of another node must not end it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Ray places an actor without CPUs at random if its affinity is soft.
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return {"num_cpus": 0, "scheduling_strategy": this_node}


class Pools:
    """The hosts of a study's pools, which the driver starts again where they die.

    Ray would restart actors by itself. But where a node runs out of memory, it kills such actors before any worker: the
    hosts, which hold little memory, instead of the worker whose batch is too large.
    """

    def __init__(
        self, make_host: Callable[[], ActorHandle[PoolHost]], *, job: PoolJob, broker: ActorHandle[Broker], count: int
    ) -> None:
        self._make_host, self._job, self._broker = make_host, job, broker
        self.hosts = [make_host() for _ in range(count)]
        self._runs = [self._run(index) for index in range(count)]

    def _run(self, index: int) -> ObjectRef[str | None]:
        return self.hosts[index].run.remote(f"pool-{index}", self._job, self._broker)

    def wait(self, seconds: float) -> None:
        """Waits until every pool has ended, at most for some seconds."""
        import ray

        ray.wait(self._runs, num_returns=len(self._runs), timeout=seconds)

    def ended(self) -> list[str | None]:
        """What the pools that have ended gave as the reason, after starting hosts that died again.

        Raises:
            RayError: if a host failed otherwise than by its death.
        """
        import ray
        from ray.exceptions import RayActorError

        reasons: list[str | None] = []
        for index, run in enumerate(self._runs):
            if not ray.wait([run], timeout=0)[0]:
                continue
            try:
                reasons.append(ray.get(run))
            except RayActorError:
                ray.kill(self.hosts[index])  # if it is only out of reach, it must not go on beside the new one
                self.hosts[index] = self._make_host()
                self._runs[index] = self._run(index)
        return reasons


class PoolHost:
    """Runs one Ray Train run after another until the study is over; Ray runs it as an actor."""

    def run(self, name: str, job: PoolJob, broker: ActorHandle[Broker]) -> str | None:
        """Returns none once the study is over, or the reason why the workers cannot start."""
        set_train_environment(warm=job.warm)
        import ray
        from ray.util.placement_group import remove_placement_group

        # If this actor replaces one that died: Ray has ended that one's workers, but not freed their CPUs.
        for placement_group in ray.get(broker.placement_groups.remote(name)):
            remove_placement_group(placement_group)
        ray.get(broker.report_loss.remote(name, Failure("the host of its workers died")))
        idle_failures = 0  # in succession, of workers that began no trial
        while not ray.get(broker.is_over.remote()):
            if not job.warm and not ray.get(broker.wait_for_trial.remote()):
                continue
            failure = _run_once(name, job, broker)
            if failure is None:
                idle_failures = 0
                continue
            if failure.halt_fault:
                ray.get(broker.halt.remote(failure.halt_fault))
                return failure.reason
            if failure.no_room and job.grows:  # retry until Ray shuts down, by Ctrl-C or a limit of the study
                missing = f"{job.study.resources} (see `ray status`)"
                ray.get(broker.post_notice.remote(f"waits for nodes: the cluster has no room yet for {missing}"))
                continue
            began_trial = ray.get(broker.report_loss.remote(name, failure))
            idle_failures = 0 if began_trial else idle_failures + 1
            if idle_failures > job.study.search.retries:
                return failure.reason
            time.sleep(idle_failures)
        return None


def set_train_environment(*, warm: bool) -> None:
    """Sets how Ray Train runs workers. Call it before Ray Train is imported."""
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = POLL_SECONDS[warm]
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    # Use a node that is about to be removed until it is: its trial then resumes elsewhere from its last state.
    os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"


def _run_once(name: str, job: PoolJob, broker: ActorHandle[Broker]) -> Failure | None:
    """Runs one Ray Train run to its end; its failure, if any."""
    import ray

    from tutti.orchestration.worker.worker_group import WorkerGroup

    avoided = ray.get(broker.blind_nodes.remote())
    try:
        WorkerGroup(
            train_trials,
            train_loop_config={"pool": name, "job": job, "broker": broker},
            resources=job.study.resources,
            nodes=elsewhere_than(avoided),
            on_one_node=job.probe.address is not None,
            on_placement_group=lambda group: ray.get(broker.register_placement_group.remote(name, group)),
            name=name,
            records=str(job.folder.ray / "pools"),
        ).fit()
    except Exception as error:  # of a worker, of Ray Train's controller, or of Ray itself
        return _classify(error, job)
    blind = ray.get(broker.blind_nodes.remote())
    if len(blind) > len(avoided) and (fault := no_node_fault(job.folder, blind, job.study.resources)):
        return Failure(str(fault), halt_fault=fault)
    return None


def _classify(error: Exception, job: PoolJob) -> Failure:
    from ray import train
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError

    if isinstance(error, train.WorkerGroupError) and error.worker_failures:
        failures = error.worker_failures
        out_of_memory = {rank: each for rank, each in failures.items() if is_out_of_memory(each)}
        halt_fault = _halt_fault(job, *failures.values())
        if not (out_of_memory or halt_fault) and (rank := find_program_error(failures)) is not None:
            location = traceback_location(rank, str(error))
            return Failure(reason_of({rank: failures[rank]}) + location, final=True)
        by_itself = {rank: each for rank, each in out_of_memory.items() if not is_node_out_of_memory(each)}
        return Failure(
            reason_of(by_itself or out_of_memory or failures),
            out_of_memory=bool(out_of_memory),
            for_its_node=bool(out_of_memory) and not by_itself,
            halt_fault=halt_fault,
        )
    cause = getattr(error, "controller_failure", None) or error
    no_room = isinstance(cause, WorkerGroupStartupTimeoutError)
    return Failure(_error_line(cause), halt_fault=_halt_fault(job, cause), no_room=no_room)


def _halt_fault(job: PoolJob, *errors: BaseException) -> Fault | None:
    place = str(job.folder.path)
    return next((fault for error in errors if (fault := storage_fault(error, place=place))), None)


def train_trials(loop_config: Mapping[str, Any]) -> None:
    """Runs on every worker of a pool: rank 0 takes a trial from the broker, and all ranks train it together."""
    # Imports leave no garbage, but each collection, of which a trial makes several, would walk through them.
    gc.disable()
    import ray
    import torch

    from tutti.training.machine.ranks import from_rank_zero, gathered, rank

    forget_launcher(single=loop_config["job"].study.resources.workers == 1)  # that of the node
    gc.freeze()
    gc.enable()
    pool, job, broker = loop_config["pool"], loop_config["job"], loop_config["broker"]
    torch.set_num_threads(job.study.resources.cpus_per_worker)
    if not all(gathered(_sees_folder(job, broker))):
        return
    while (assignment := from_rank_zero(lambda: ray.get(broker.take.remote(pool)))) is not None:
        if not assignment:
            continue
        config: TrialConfig = assignment[0]
        attempt: int = assignment[1]
        if rank() == 0:
            broker.begin.remote(config["key"], attempt)

        def tell(report: Report, key: str = config["key"], attempt: int = attempt) -> bool:
            count = from_rank_zero(lambda: ray.get(broker.report.remote(key, attempt, report)))
            while count is not None:
                decision = from_rank_zero(lambda: ray.get(broker.await_decision.remote(key, attempt, count)))
                if decision is not None:
                    return decision
            return False

        # The trials of a population go from worker to worker, and the driver copies their states.
        trial, alone = job.folder.trial(config["key"]).path, job.study.search.scheduler != "pbt"
        with _clean_process(), suppress(Stopped), mirror.held(trial, release=alone and rank() == 0):
            job.train(job.study, job.folder, config, tell=tell)
        if not job.warm:
            return


def _sees_folder(job: PoolJob, broker: ActorHandle[Broker]) -> bool:
    """Whether this node sees the study's folder. If not, the broker has every pool avoid it."""
    import ray

    if job.probe.is_seen():
        return True
    ray.get(broker.avoid.remote(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()))
    return False


@contextmanager
def _clean_process() -> Iterator[None]:
    """Frees or resets whatever a trial leaves in its process: memory, compiled code, torch's switches, environment.

    Exceptions of the trial must be caught inside: their tracebacks keep the trainer alive.
    """
    import torch

    threads, environment = torch.get_num_threads(), dict(os.environ)
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    backends: Any = torch.backends  # mypy does not see this attribute
    float32 = backends.fp32_precision
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        # The next four lines undo what TrainingArguments' full_determinism sets.
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        backends.fp32_precision = float32
        if "transformers" in sys.modules:  # it sets the precision only for values that it has not seen yet
            sys.modules["transformers.utils.import_utils"].enable_tf32.cache_clear()
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        if "torch._dynamo" in sys.modules:  # it stops compiling after a number of models
            torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def reason_of(failures: Mapping[int, BaseException]) -> str:
    """The failure of the lowest rank in one line."""
    rank, error = min(failures.items())
    return f"worker {rank}: {_error_line(cause_of(error))}"[:500]


def _error_line(error: BaseException) -> str:
    # Most messages end with what happened. One on memory begins with it, and ends with advice from Ray or torch.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = first_line(error) if is_out_of_memory(error) or not lines else lines[-1]
    return f"{type(error).__name__}: {text}"[:500]
