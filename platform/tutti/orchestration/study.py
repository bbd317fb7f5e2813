"""One study = one Ray Tune run over the study's store."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, SoftFileLock, Timeout

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import Fault, StorageError, StudyError, TrialError
from tutti.files import is_inside, storage_faults
from tutti.orchestration.broker import Broker
from tutti.orchestration.budget import prune
from tutti.orchestration.folds import forget_states
from tutti.orchestration.halt import storage_fault
from tutti.orchestration.pool import PoolHost, PoolJob
from tutti.orchestration.trial import train_trial
from tutti.records import Predictions, TrialRecord, TrialState
from tutti.search.database import this_process
from tutti.search.limits import Ending, ending_of, is_over
from tutti.search.study_store import StudyStore
from tutti.tracking.protocol import Tracker

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from tutti.orchestration.log import StudyLog
    from tutti.orchestration.objectives import Measure
    from tutti.orchestration.population import Population

_logger = logging.getLogger(__name__)

# What flock says of a lock that another process holds; without flock, its file is there for so long as it is held.
_HELD = {errno.EAGAIN, errno.EACCES, errno.ENOSYS}
CLOSING_SECONDS = 5.0  # for pools that have nothing left to train to go home


@dataclass(frozen=True)
class StudyOutcome:
    """How a study ended.

    Attributes:
        trials: every trial of the study, of earlier runs too.
        interrupted: keys of the trials that were cut off and go on with ``--resume``.
        complete: whether the study has all its trials, and each has ended.
        ending: the limit that the study ended at before that, if it did; it may have cut trials off.
    """

    trials: tuple[TrialRecord, ...]
    interrupted: tuple[str, ...]
    complete: bool
    ending: Ending | None = None


@contextmanager
def study_lock(folder: StudyFolder, *, patience: float = 2.0) -> Iterator[None]:
    """Keeps a study to one process: it is held from before the first file is written until the study's end.

    Args:
        patience: seconds to wait for another process, which may only be looking whether anybody holds it.

    Raises:
        StudyError: where another process runs the same study.
        StorageError: where the study's folder cannot be made or written to.
    """
    lock = FileLock(_lock_file(folder))
    with storage_faults(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=patience)
        except Timeout as error:  # an OSError too
            raise StudyError(
                Fault(
                    f"the study {folder.name!r}",
                    "be run by one process at a time",
                    f"{_holder(folder)} holding {lock.lock_file}",
                    "wait for the other run to end, or stop it",
                )
            ) from error
    if not isinstance(lock, SoftFileLock):  # which keeps what it goes by in the file
        with suppress(OSError):  # a disk may be full: it is a name for others, and no more
            _lock_file(folder).write_text(this_process())
    try:
        yield
    finally:
        lock.release()


def is_running(folder: StudyFolder) -> bool:
    """Whether a process holds the study now. Looks only: it writes nothing, and keeps no process from starting."""
    try:
        with _lock_file(folder).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                return error.errno in _HELD
    except OSError:  # it was never run, or is not to be read
        pass
    return False


def _lock_file(folder: StudyFolder) -> Path:
    return folder.path / "study.lock"


def _holder(folder: StudyFolder) -> str:
    """Who holds the study, as its lock says."""
    try:
        with _lock_file(folder).open("rb") as file:
            said = file.read(200).decode(errors="replace")
    except OSError:
        said = ""
    return "".join(character for character in said if character.isprintable()) or "another process"


def run_study(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    store: StudyStore,
    tracker: Tracker,
    concurrent_trials: int,
    tags: dict[str, str],
    watch: Callable[[], None],
    picture: Callable[[str, Predictions], bytes],
    notify: Callable[[str], None] = _logger.warning,
    train: Callable[..., None] = train_trial,
) -> StudyOutcome:
    """Runs trials until the study has ``study.search.trials`` of them, or has reached another limit of ``search``.

    They run on the Ray that this process is connected to.

    Trials that an earlier run left unfinished come first, under their own keys, from their last checkpoints. The caller
    holds the study's lock.

    Args:
        notify: called with what a user should see at once, though it ends no trial.
        train: what every worker of a trial does: ``train_trial``, or what takes its arguments.

    Raises:
        TrialError: where every trial failed.
        ClusterError: where the workers of no trial can start.
        StorageError: where a disk or the database failed the study. Trials that ran go on in a resumed one.
        ClaimLostError: where another driver has taken the study over; the tracker is told of no end of a trial then.
    """
    from tutti.orchestration.log import StudyLog

    records = store.records()
    clear_ended(folder, records)  # what a driver that died between two writes left there

    def keep_within_limit() -> None:
        if study.storage.max_gigabytes is not None:
            prune(folder, trials=store.records(), max_gigabytes=study.storage.max_gigabytes)

    if study.search.scheduler == "pbt":
        _keep_exchanges(folder, store)
    keep_within_limit()  # a resumed study may have a lower one
    over = is_over(study.search, records, seconds=store.run_seconds())
    ending = ending_of(study.search, records, seconds=store.run_seconds()) if over else None
    if not over or store.unfinished():
        log = StudyLog(
            store=store,
            tracker=tracker,
            folder=folder,
            tags=tags,
            watch=watch,
            picture=picture,
            folds=study.split.folds is not None,
            evals_per_epoch=study.evals_per_epoch,
            measure=_measure(study, folder, store),
            prune=keep_within_limit,
            notify=notify,
        )
        try:
            if not over:
                ending = _tune(
                    study,
                    folder,
                    store=store,
                    log=log,
                    concurrent_trials=concurrent_trials,
                    train=train,
                    notify=notify,
                )
            if ending and _needs_no_more(ending):  # also where a driver died before it had told all of them so
                log.stop(f"the study needs it no more: {ending.reason}")
            elif ending:  # to go on once there are more hours
                log.interrupt(f"the study ended: {ending.reason}")
        finally:
            try:
                log.interrupt()
            finally:
                log.close()
    trials = tuple(store.records())
    # Tune returns in good order when it was interrupted; the store knows what is left to do.
    interrupted = tuple(proposal.key for proposal in store.unfinished())
    complete = not interrupted and len(trials) >= study.search.trials
    if complete and all(trial.state is TrialState.FAILED for trial in trials):
        raise TrialError(
            Fault(
                f"the study {study.study!r}",
                "have at least one trial that finishes",
                f"{len(trials)} failed, the first because: {trials[0].reason}",
                "mend the cause, and start a study under a new name",
            )
        )
    ending = None if complete else ending_of(study.search, trials, seconds=store.run_seconds())
    if ending and interrupted and not ending.at_once:  # trials that it would have let go on were cut off
        ending = None
    return StudyOutcome(trials=trials, interrupted=interrupted, complete=complete, ending=ending)


def clear_ended(folder: StudyFolder, trials: Sequence[TrialRecord]) -> None:
    """Removes what ended trials would go on from, and of those that did not finish the predictions, which would vote.

    Each trial's end does so too, but a worker that is killed then may live, and write, for a moment longer.

    Raises:
        StorageError: where something cannot be removed.
    """
    bank, own = Bank(folder.bank), partial(is_inside, folder=folder.path)  # what a link leads to may be another's
    for trial in trials:
        if trial.state is not TrialState.RUNNING:
            forget_states(folder.trial(trial.key))
        if trial.state in (TrialState.STOPPED, TrialState.FAILED) and own(folder.bank / trial.key):
            bank.remove(trial.key)


def _measure(study: StudyConfig, folder: StudyFolder, store: StudyStore) -> Measure | None:
    if study.search.objectives == ("score",):
        return None
    from tutti.orchestration.objectives import Measure

    metrics = {name: task.metric for name, task in study.tasks.items()}
    return Measure(study.search.objectives, folder=folder, store=store, metrics=metrics)


def _tune(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    store: StudyStore,
    log: StudyLog,
    concurrent_trials: int,
    train: Callable[..., None],
    notify: Callable[[str], None],
) -> Ending | None:
    """Runs what the study lacks as one Ray Tune run.

    Returns:
        The limit that ended the running trials, if one did.
    """
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_WARN_THRESHOLD_S", "10")
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial that reports its failure has no score to report
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # its banner comes even at verbosity 0
    from ray import tune

    from tutti.orchestration.interrupt import Interrupt
    from tutti.orchestration.relay import RelayedTrial, Watch
    from tutti.orchestration.schedulers import make_scheduler
    from tutti.orchestration.searcher import StoreSearcher
    from tutti.orchestration.stopper import StudyStopper

    # It shows a traceback for every actor that is lost; the study's log says what becomes of its trial.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    unfinished, records = store.unfinished(), store.records()
    new = max(0, study.search.trials - len(records))
    count = min(concurrent_trials, len(unfinished) + new)
    population = _population(study, size=len(unfinished) + new)
    with (
        _pools(study, folder, count=count, train=train, population=population) as (broker, pools),
        Interrupt(notify) as interrupt,
    ):
        stopper, watch = StudyStopper(store, study.search, broker=broker), Watch(broker, pools)
        log.look = watch.look
        try:
            tune.Tuner(
                # It only relays: were it to ask for a CPU, a trial that needs them all would hang. Tune wants it to
                # ask for something, so it asks for one byte.
                tune.with_resources(tune.with_parameters(RelayedTrial, broker=broker), {"memory": 1}),
                tune_config=tune.TuneConfig(
                    search_alg=StoreSearcher(store, unfinished=unfinished, new=new, reached=stopper.reached),
                    scheduler=make_scheduler(study, records),
                    num_samples=len(unfinished) + new,
                    # Of a population all are under way, most of them without workers.
                    max_concurrent_trials=population.size if population else concurrent_trials,
                    reuse_actors=True,
                    trial_name_creator=_trial_name,
                    trial_dirname_creator=_trial_name,
                ),
                run_config=tune.RunConfig(
                    name="tune",
                    storage_path=str(folder.ray),
                    stop=stopper,
                    callbacks=[log, stopper, watch, interrupt],
                    failure_config=tune.FailureConfig(max_failures=study.search.retries),
                    verbose=0,
                ),
            ).fit()
        except Exception as error:  # Tune writes into the study's folder too
            if not isinstance(error, StorageError) and (fault := storage_fault(error, place=str(folder.path))):
                raise StorageError(fault) from error
            raise
        finally:
            with suppress(StorageError):  # as much is lost as where the driver is killed
                stopper.keep_time()
    return stopper.ending


def _needs_no_more(ending: Ending | None) -> bool:
    """Whether trials that still run end for good: a score that was reached stays so, and hours may be raised."""
    return ending is not None and ending.limit == "target_score"


def _population(study: StudyConfig, *, size: int) -> Population | None:
    if study.search.scheduler != "pbt":
        return None
    from tutti.orchestration.population import Population

    search = study.search
    return Population(study.search_space.root, size=size, every=search.exchange_epochs, seed=search.seed)


def _keep_exchanges(folder: StudyFolder, store: StudyStore) -> None:
    """What a driver that died between two writes has exchanged and not kept."""
    from tutti.training.exchange import exchange_of

    for proposal in store.unfinished():
        if told := exchange_of(folder.trial(proposal.key) / "resume"):
            store.exchange(proposal.key, **told)


@contextmanager
def _pools(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    count: int,
    train: Callable[..., None],
    population: Population | None,
) -> Iterator[tuple[ActorHandle[Broker], list[ObjectRef[str | None]]]]:
    """So many pools of workers, which come and go with the block, and the broker that trials find them through."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # What somebody else started may get further nodes; a Ray of our own is all there is.
    job = PoolJob(study, folder, train, grows=bool(os.environ.get("RAY_ADDRESS")))
    # Beside the driver: they hold no data, and the loss of another node must not take them along.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    light: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": here}
    broker = ray.remote(Broker).options(**light).remote(study.search.retries, population)
    host = ray.remote(PoolHost).options(**light, max_restarts=-1, max_task_retries=-1)
    hosts = [host.remote() for _ in range(count)]
    runs = [each.run.remote(f"pool-{index}", job, broker) for index, each in enumerate(hosts)]
    try:
        yield broker, runs
    finally:
        with suppress(RayError):  # the broker may be what has died
            idle = ray.get(broker.close.remote())
            ray.wait(runs, num_returns=len(runs), timeout=CLOSING_SECONDS if idle else 0)
        for run in runs:
            ray.cancel(run)  # else Ray says on the terminal that it will be tried again
        for each in (*hosts, broker):
            ray.kill(each)


def _trial_name(trial: object) -> str:
    return str(trial.config["key"])  # type: ignore[attr-defined]
