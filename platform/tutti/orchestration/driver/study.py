"""Runs a study: one Ray Tune run over the study's store."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tutti import mirror
from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import ClusterError, Fault, StorageError, StudyError, TrialError, counted
from tutti.orchestration.broker.broker import Broker
from tutti.orchestration.driver.ending import Ender
from tutti.orchestration.driver.pictures import Picture, PictureDrawer, draw_owed
from tutti.orchestration.driver.recording import Recorder
from tutti.orchestration.upkeep.budget import prune
from tutti.orchestration.worker.folds import delete_states
from tutti.orchestration.worker.memory import is_node_out_of_memory
from tutti.orchestration.worker.nodes import NODE_ID
from tutti.orchestration.worker.pool import running_pools
from tutti.orchestration.worker.storage_failure import GO_ON, storage_fault
from tutti.orchestration.worker.trial import train_trial
from tutti.records import TrialRecord, TrialState
from tutti.search.limits import Ending, ending_of, is_over
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import is_key
from tutti.tracking.protocol import Tracker

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.tune import Tuner
    from ray.tune.experiment import Trial

    from tutti.orchestration.broker.population import Population
    from tutti.orchestration.driver.log import StudyLog
    from tutti.orchestration.driver.objectives import Measure
    from tutti.orchestration.driver.stopper import StudyStopper
    from tutti.search.trial_attributes import Proposal


@dataclass(frozen=True)
class StudyOutcome:
    """The result of a run of a study.

    Attributes:
        trials: every trial of the study, including those of earlier runs.
        interrupted: keys of the trials that were cut off. ``--resume`` continues them.
        complete: the study has all its trials, and each has ended.
        ending: the limit that ended the study before it was complete, if any. It may have cut trials off.
    """

    trials: tuple[TrialRecord, ...]
    interrupted: tuple[str, ...]
    complete: bool
    ending: Ending | None = None


def _check_folders(folder: StudyFolder, records: Sequence[TrialRecord]) -> None:
    """Refuses folders of trials that the store does not know: new trials of their keys would go on from them."""
    known = {record.key for record in records}
    found = {path.name for path in folder.trials.glob("t*")} | mirror.stored_keys(folder.trials)
    unknown = sorted(name for name in found - known if is_key(name))
    if unknown:
        rule, got = f"hold only folders of the {counted(len(known), 'trial')} that its database has", ", ".join(unknown)
        remedy = "restore the database that knows the others, or move their folders away"
        raise StudyError(Fault(str(folder.trials), rule, got, remedy))


def run_study(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    store: StudyStore,
    tracker: Tracker,
    concurrent_trials: int,
    tags: dict[str, str],
    watch: Callable[[], None],
    picture: Picture | None,
    notify: Callable[[str], None],
    train: Callable[..., None] = train_trial,
    backlogs: Mapping[str, Callable[[], int]] = MappingProxyType({}),
) -> StudyOutcome:
    """Runs trials until the study has ``study.search.trials`` of them, or has reached another limit of ``search``.

    The trials run on the Ray that this process is connected to. Trials that an earlier run left unfinished come first,
    under their own keys, from their last states. The caller holds the study's lock.

    Args:
        watch: see ``StudyLog``.
        picture: see ``PictureDrawer``.
        notify: called with messages that users should see at once, though no trial ends.
        train: trains a trial on every worker: ``train_trial``, or a function with the same arguments.
        backlogs: of ``StudyMetrics``.

    Raises:
        StudyError: if there are folders of trials that the store does not know.
        TrialError: if every trial failed.
        ClusterError: if the workers of no trial can start.
        StorageError: if a disk or the database failed. A resumed study continues the trials that ran.
        ClaimLostError: if another driver has taken the study over. The tracker gets no end of a trial then.
    """
    from tutti.orchestration.driver.log import StudyLog

    records = store.records()
    _check_folders(folder, records)
    clear_ended(folder, records)  # a driver may have died before it did
    finished = [record.key for record in records if record.state is TrialState.FINISHED]
    draw_owed(finished, folder=folder, tracker=tracker, picture=picture)
    if study.search.scheduler == "pbt":
        _record_exchanges(folder, store)
    prune_weights = partial(_prune_weights, study, folder, store, set())
    prune_weights()  # a resumed study may have a lower limit
    if store.unfinished() or not is_over(study.search, records, seconds=store.run_seconds()):
        recorder = Recorder(
            store=store,
            tracker=tracker,
            folder=folder,
            tags=tags,
            folds=study.split.folds is not None,
            evals_per_epoch=study.evals_per_epoch,
        )
        pictures = PictureDrawer(folder=folder, tracker=tracker, picture=picture)
        ender = Ender(recorder, pictures, measure=_measure(study, folder, store), prune=prune_weights)
        log = StudyLog(recorder, ender, watch=watch, notify=notify)
        with closing(log):
            try:
                ending = ending_of(study.search, records, seconds=store.run_seconds())
                if ending is None or not ending.at_once:
                    ending = _tune(
                        study,
                        folder,
                        store=store,
                        log=log,
                        concurrent_trials=concurrent_trials,
                        train=train,
                        notify=notify,
                        backlogs=backlogs,
                    )
                if ending:
                    _end_running(log, ending)
            finally:
                log.interrupt()
    return _outcome(study, store)


def _prune_weights(study: StudyConfig, folder: StudyFolder, store: StudyStore, settled: set[str]) -> None:
    if study.storage.max_gigabytes is not None:
        prune(folder, trials=store.records(), max_gigabytes=study.storage.max_gigabytes, settled=settled)


def _end_running(log: StudyLog, ending: Ending) -> None:
    """Ends the trials that a limit cut off, in this run or in an earlier one whose driver died before it did so."""
    if ending.limit == "target_score":  # which stays reached
        log.stop(f"the study needs it no more: {ending.reason}")
    else:  # max_hours may be raised, and the trials resumed
        log.interrupt(f"the study ended: {ending.reason}")


def _outcome(study: StudyConfig, store: StudyStore) -> StudyOutcome:
    """The result according to the store: Tune returns normally even if it was interrupted."""
    trials = tuple(store.records())
    interrupted = tuple(proposal.key for proposal in store.unfinished())
    complete = not interrupted and len(trials) >= study.search.trials
    if complete and all(trial.state is TrialState.FAILED for trial in trials):
        got = f"{len(trials)} failed, the first because: {trials[0].reason}"
        remedy = "fix the cause, and start it again"
        raise TrialError(Fault(f"the study {study.study!r}", "have at least one trial that finishes", got, remedy))
    ending = None if complete else ending_of(study.search, trials, seconds=store.run_seconds())
    if ending and interrupted and not ending.at_once:  # something else interrupted them: this limit lets trials finish
        ending = None
    return StudyOutcome(trials=trials, interrupted=interrupted, complete=complete, ending=ending)


def clear_ended(folder: StudyFolder, trials: Sequence[TrialRecord]) -> None:
    """Deletes saved states of ended trials, and predictions of those that did not finish, which must not vote.

    The log does so at each trial's end, but the trial's workers may write for a moment longer before they are killed.

    Raises:
        StorageError: if something cannot be deleted.
    """
    bank = Bank(folder.bank)
    ended = [trial for trial in trials if trial.state is not TrialState.RUNNING]
    lost = [trial.key for trial in ended if trial.state in (TrialState.STOPPED, TrialState.FAILED)]
    for trial in ended:
        delete_states(folder.trial(trial.key))
    for key in lost:
        bank.remove(key)
    mirror.drop(folder.trials, inside="resume", keys=[trial.key for trial in ended])
    mirror.drop(folder.bank, keys=lost)


def _measure(study: StudyConfig, folder: StudyFolder, store: StudyStore) -> Measure | None:
    if study.search.objectives == ("score",):
        return None
    from tutti.data.prepared import load_prepared
    from tutti.orchestration.driver.objectives import Measure

    return Measure(study.search.objectives, folder=folder, store=store, tasks=load_prepared(folder.data).tasks)


def _tune(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    store: StudyStore,
    log: StudyLog,
    concurrent_trials: int,
    train: Callable[..., None],
    notify: Callable[[str], None],
    backlogs: Mapping[str, Callable[[], int]],
) -> Ending | None:
    """Runs the remaining trials as one Ray Tune run.

    Returns:
        The limit that ended the running trials, if any.
    """
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_WARN_THRESHOLD_S", "10")
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # the report of a failure has no score
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")  # its banner is shown even with verbose=0
    from tutti.orchestration.driver.interrupt import Interrupt
    from tutti.orchestration.driver.metrics import StudyMetrics
    from tutti.orchestration.driver.relay import PoolWatch
    from tutti.orchestration.driver.stopper import StudyStopper

    # Hides Tune's traceback for every lost actor; the study's log records what becomes of its trial.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    unfinished, records = store.unfinished(), store.records()
    count = len(unfinished) + max(0, study.search.trials - len(records))
    population = _population(study, size=count)
    with (
        running_pools(study, folder, count=min(concurrent_trials, count), train=train, population=population) as (
            broker,
            pools,
        ),
        # Tune would wait for reports of trials in mid-epoch, until it gives up after ten seconds.
        Interrupt(notify, close=broker.close.remote) as interrupt,
    ):
        stopper = StudyStopper(store, study.search, broker=broker)
        pool_watch = PoolWatch(broker, pools, folder, notify)
        log.check_pools = pool_watch.check
        asked = max(study.search.trials, len(records))
        metrics = StudyMetrics(store, broker, study=study.study, asked=asked, backlogs=backlogs)
        try:
            _tuner(
                study,
                folder,
                store=store,
                broker=broker,
                unfinished=unfinished,
                records=records,
                # All trials of a population are in progress at once, most of them without workers.
                concurrent_trials=population.size if population else concurrent_trials,
                stopper=stopper,
                callbacks=[log, stopper, pool_watch, interrupt, metrics],
            ).fit()
        except Exception as error:  # Tune writes to the study's folder too
            if not isinstance(error, StorageError) and (fault := storage_fault(error, place=str(folder.path))):
                raise StorageError(fault) from error
            if error.__cause__ and is_node_out_of_memory(error.__cause__):  # of an actor of Tune's, which gives up
                remedy = "lower resources.concurrent_trials or the batches, or end what else runs there"
                got = "the study's own processes killed by Ray for it"
                fault = Fault("the memory of a node", "be enough for the study", got, f"{remedy}{GO_ON}")
                raise ClusterError(fault) from error
            raise
        finally:
            with suppress(StorageError):  # no more is lost than if the driver were killed
                stopper.save_run_time()
    return stopper.ending


def _tuner(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    store: StudyStore,
    broker: ActorHandle[Broker],
    unfinished: list[Proposal],
    records: Sequence[TrialRecord],
    concurrent_trials: int,
    stopper: StudyStopper,
    callbacks: list[Any],
) -> Tuner:
    import ray
    from ray import tune
    from ray.util import get_node_ip_address

    from tutti.orchestration.driver.relay import RelayedTrial
    from tutti.orchestration.driver.schedulers import make_scheduler
    from tutti.orchestration.driver.searcher import StoreSearcher

    new = max(0, study.search.trials - len(records))
    # The trainable only relays reports. If it requested a CPU, trials that need all CPUs would hang; Tune requires some
    # request. The relays are kept on this node, since a lost node would end those of other nodes' trials. Nodes that
    # share a machine have the same address.
    this_node = tune.PlacementGroupFactory(
        [{f"node:{get_node_ip_address()}": 0.001}],
        bundle_label_selector=[{NODE_ID: ray.get_runtime_context().get_node_id()}],
    )
    return tune.Tuner(
        tune.with_resources(tune.with_parameters(RelayedTrial, broker=broker), this_node),
        tune_config=tune.TuneConfig(
            search_alg=StoreSearcher(store, unfinished=unfinished, new=new, reached=stopper.reached),
            scheduler=make_scheduler(study, records),
            num_samples=len(unfinished) + new,
            max_concurrent_trials=concurrent_trials,
            reuse_actors=True,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.ray),
            stop=stopper,
            callbacks=callbacks,
            # The workers save a trial's states. If a save by Tune itself failed, it would train a finished trial again.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=study.search.retries),
            verbose=0,
        ),
    )


def _population(study: StudyConfig, *, size: int) -> Population | None:
    if study.search.scheduler != "pbt":
        return None
    from tutti.orchestration.broker.population import Population

    search = study.search
    return Population(study.search_space.root, size=size, every=search.exchange_epochs, seed=search.seed)


def _record_exchanges(folder: StudyFolder, store: StudyStore) -> None:
    """Stores exchanges that a driver carried out but did not store before it died."""
    from tutti.training.loop.exchange import exchange_of

    for proposal in store.unfinished():
        mirror.pull(folder.trial(proposal.key).path)
        if exchange := exchange_of(folder.trial(proposal.key).resume):
            store.keep(proposal.key, proposal.resumption.exchanged(exchange))


def _trial_name(trial: Trial) -> str:
    return str(trial.config["key"])
