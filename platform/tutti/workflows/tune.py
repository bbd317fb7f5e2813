"""Runs the trials of a study."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti import mirror
from tutti.config.folder import StudyFolder
from tutti.copies import address_of
from tutti.errors import ClaimLostError, Fault, StorageError, StudyError, TrialError, counted
from tutti.records import TrialRecord, TrialState, best_trial
from tutti.tasks.predictions import Predictions
from tutti.workflows import stores, tracking_metadata
from tutti.workflows.base import StudyBase
from tutti.workflows.console import best_effort_console, show_next, study_argument
from tutti.workflows.preparation import (
    check_no_trials,
    check_place,
    forget_failed,
    keep_files,
    prepare_study,
    with_folds,
)
from tutti.workflows.progress import Progress, cut_off, failures, summary
from tutti.workflows.trials_table import outcome_table, ranked

if TYPE_CHECKING:
    from rich.console import Console

    from tutti.config.study import StudyConfig
    from tutti.orchestration.driver.study import StudyOutcome
    from tutti.search.study_store import StudyStore
    from tutti.tasks.task import Task


class InterruptedStudy(KeyboardInterrupt):
    """A study was interrupted in order: its trials go on when it is run again. Its text says what is left to do."""


@dataclass(frozen=True)
class Tuned:
    """The result of a run of a study.

    Attributes:
        trials: every trial of the study, those of earlier runs too.
        best: the finished trial with the best score; none if no trial has finished.
        ended_early: why, if a limit of ``search`` ended the study before it had all its trials.
    """

    trials: tuple[TrialRecord, ...]
    best: TrialRecord | None
    ended_early: str | None


def parse_trials(trials: int | str) -> tuple[int, bool]:
    """The number of trials, as in ``12``, and whether it is ``+12``: so many more than the study has.

    Raises:
        StudyError: if it is neither.
    """
    if not re.fullmatch(r"\+?0*[1-9]\d*", str(trials)):
        rule = "be a whole number of at least 1, as in 12, or +12 for so many more than the study has"
        raise StudyError(Fault("trials", rule, repr(trials), "correct it"))
    return int(trials), str(trials).startswith("+")


def budget(trials: int | str, study_file: Path | Mapping[str, Any], *, overrides: Sequence[str]) -> int:
    """The total number of trials that ``trials`` asks for; raises StudyError as ``parse_trials`` does."""
    count, is_more = parse_trials(trials)
    if not is_more:
        return count
    # The total is not known yet, so validation must not compare it with the search space or the population size.
    unknown_total = ["search.trials=1", "search.scheduler=none"]
    study, folder = stores.read_study_file(study_file, overrides=[*overrides, *unknown_total])
    return count + stores.count_trials(stores.with_stores(study, folder), folder)


def run(opened: StudyBase, *, resume: bool) -> Tuned:
    """Prepares a study's data, runs its trials, and prints what to do next.

    Raises:
        InterruptedStudy: if trials were cut off; a plain KeyboardInterrupt if none had begun.
    """
    from tutti.cluster.connect import check_cluster, connected, gpus_of_cluster
    from tutti.orchestration.driver.study import clear_ended
    from tutti.orchestration.upkeep.lock import study_lock

    began = time.monotonic()
    study, folder, console = opened.config, opened.folder, opened.console
    check_place(folder)
    stores.check_stores(study, folder)
    mirror.pull(folder.path)
    with study_lock(folder):
        if folder.begun and address_of(folder.path):  # the lock is one of this machine alone
            stores.load_store(study, folder, mend=True).close()  # raises where another one runs the study
        if folder.begun:
            forget_failed(opened, resume=resume)
        if not folder.begun:
            check_no_trials(study, folder)
            if resume:
                console.print(f"There is no {study.study} in {folder.path.parent} yet: starting it")
            for older, count in stores.fitting_trials(study, folder).items():
                console.print(f"Warm start with {counted(count, 'trial')} of the study {older}")
        study = keep_files(study, folder)
        opened = opened.with_config(study)
        is_over = _is_over(study, folder)  # before study.json names a database in which the study is not
        if not is_over:
            check_cluster()
        prepared = prepare_study(opened, resume=resume)
        if study.split.fold_column is not None:
            study = with_folds(study, prepared.settings["split"]["folds"])
            opened = opened.with_config(study)
        opened.prepared = prepared
        tracking_metadata.write_split(prepared, folder)
        mirror.push(folder.path)
        mirror.push(folder.backbones)
        resources = study.resources
        if is_over:  # nothing to run; delivering queued reports to the tracker needs no Ray
            outcome = _run_trials(opened, concurrent=0)
        else:
            # Connect before the stores are opened, so that a study that does not fit the cluster does not begin.
            with connected(resources, tell=console.print) as concurrent:
                if not resources.gpus_per_worker and (gpus := gpus_of_cluster()):
                    console.print(f"Training on CPUs; to use the {counted(gpus, 'GPU')}, set resources.gpus_per_worker")
                outcome = _run_trials(opened, concurrent=concurrent)
            clear_ended(folder, outcome.trials)  # Ray is disconnected, so no worker is left that writes
        mirror.push(folder.path)
    records = cut_off(outcome.trials)
    _show_outcome(opened, outcome, records, seconds=time.monotonic() - began)
    return Tuned(tuple(records), best_trial(outcome.trials), outcome.ending.reason if outcome.ending else None)


def _show_outcome(opened: StudyBase, outcome: StudyOutcome, records: Sequence[TrialRecord], *, seconds: float) -> None:
    """Prints the trials, why the study ended and what to do next; raises InterruptedStudy if trials were cut off."""
    from tutti.outputs.formatting import duration, number

    study, folder, console = opened.config, opened.folder, opened.console
    best = best_trial(outcome.trials)
    console.print(outcome_table(study, ranked(records, tasks=[*study.tasks]), best=best, width=console.width))
    for line in failures(records):
        console.print(line)
    console.print(f"{summary(records, total=study.search.trials, best=best)}, in {duration(seconds)}")
    if len(records) > study.search.trials:
        console.print(f"It has more trials than the {study.search.trials} asked for, so no new one was begun.")
    if outcome.ending:
        limit = f"search.{outcome.ending.limit}"
        go_on = f"raise or remove {limit} and run `{opened.again(but=limit) if opened.again else 'study.tune()'}`"
        console.print(f"Ended early: {outcome.ending.reason}. To go on, {go_on}.")
    elif not outcome.complete:
        raise InterruptedStudy(left_to_do(outcome, study.search.trials))
    if best:
        console.print(f"Best: {best.key}, score {number(best.score)} on the rows that chose its epoch.")
        name, recipe = study_argument(folder), shlex.quote(study.ensemble.recipe)
        show_next(console, f"ensemble {name} --recipe {recipe}", f"report {name}", f"ui {name}")
    elif outcome.complete:
        more = "loosen or remove search.scheduler in a new study"
        more += "" if study.search.sampler == "grid" else ", or add trials: --resume --trials +4"
        console.print(f"No trial finished, and only finished trials can vote: {more}.")


def left_to_do(outcome: StudyOutcome, total: int) -> str:
    """What an interrupted study has left to do: ``1 trial cut off, 2 not begun``."""
    cut_off = counted(len(outcome.interrupted), "trial") if outcome.interrupted else "no trial"
    others = total - len(outcome.trials)
    return f"{cut_off} cut off" + (f", {others} not begun" if others > 0 else "")


def _is_over(study: StudyConfig, folder: StudyFolder) -> bool:
    """Whether nothing is left to run: all trials have ended, or the study has reached a limit."""
    from tutti.search.limits import is_over

    store = stores.load_begun_store(study, folder)
    if store is None:
        return False
    with closing(store):
        return is_over(study.search, store.records(), seconds=store.run_seconds())


def _run_trials(opened: StudyBase, *, concurrent: int) -> StudyOutcome:
    from tutti.orchestration.worker.trial import train_trial

    study, folder = opened.config, opened.folder
    start = {
        "parameters": tracking_metadata.study_parameters(study, opened.prepared),
        "tags": tracking_metadata.study_tags(opened.prepared),
        "files": [folder.study_file, *sorted(folder.data.glob("*.json"))],
        "columns": tracking_metadata.study_columns(study),
    }
    pictured = partial(picture, {task.name: task for task in opened.prepared.tasks})
    return run_trials(
        study,
        folder,
        store=stores.open_store(study, folder),
        console=opened.console,
        start=start,
        concurrent=concurrent,
        picture=pictured,
        train=train_trial,
    )


def run_trials(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    store: StudyStore,
    console: Console,
    start: Mapping[str, Any],
    concurrent: int,
    picture: Callable[[str, Predictions], bytes] | None,
    train: Callable[..., None],
) -> StudyOutcome:
    """Runs a study's trials on the connected Ray, with its store, its tracker and a live table; closes both.

    Args:
        start: of ``Tracker.start_study``.
        concurrent: number of trials at a time; 0 if the study is over and no Ray is connected.
        picture, train: of ``run_study``.
    """
    from tutti.orchestration.driver.study import run_study
    from tutti.tracking.protocol import BEST_SCORE

    # An error raised in Tune's callbacks would end the study.
    shown = console if console.quiet else best_effort_console()
    try:
        tracker = stores.open_tracker(study, folder)
    except BaseException:  # on a database server, the study would otherwise stay claimed
        store.close()
        raise
    flush_seconds = 60.0
    try:
        tracker.start_study(**start)
        with Progress(
            shown,
            store.records if concurrent else lambda: cut_off(store.records()),
            total=study.search.trials,
            tasks=[*study.tasks],
            folds=study.split.folds,
            evals_per_epoch=study.evals_per_epoch,
            objectives=study.search.objectives,
        ) as progress:
            outcome = run_study(
                stores.without_passwords(study),  # Ray's dashboard shows arguments, and workers need no password
                folder,
                store=store,
                tracker=tracker,
                concurrent_trials=concurrent,
                tags=tracking_metadata.run_tags(),
                watch=progress,
                notify=lambda text: shown.print(text),
                picture=picture,
                train=train,
                backlogs={"tracker": tracker.pending},
            )
        best = best_trial(outcome.trials)
        tracker.end_study(
            state=TrialState.FINISHED if outcome.complete or outcome.ending else TrialState.INTERRUPTED,
            metrics={BEST_SCORE: best.score} if best and best.score is not None else {},
        )
    except BaseException as error:
        if isinstance(error, StorageError):  # the tracker's storage most likely fails too
            flush_seconds = 5.0
        if not isinstance(error, ClaimLostError):  # otherwise the run belongs to another driver
            failed = isinstance(error, TrialError)  # every trial, and a resume would change nothing
            tracker.end_study(state=TrialState.FAILED if failed else TrialState.INTERRUPTED, metrics={})
        raise
    finally:
        store.close()  # makes SQLite merge its write-ahead log, so that copying the one file is enough
        undelivered = tracker.close(timeout=flush_seconds)
        if undelivered:
            events, they_are = counted(undelivered, "event"), "it is" if undelivered == 1 else "they are"
            shown.print(
                f"{events} did not reach the tracking store; {they_are} kept in {folder.path} and delivered by the "
                "next `tutti tune --resume`."
            )
    return outcome


def picture(tasks: Mapping[str, Task], name: str, predictions: Predictions) -> bytes:
    """A PNG of a trial's validation predictions, as they were scored."""
    from tutti.outputs.pictures import predictions_png
    from tutti.tasks.scorer import Scorer

    assert predictions.labels is not None
    decision = Scorer.of(tasks[name].as_voted).alone(predictions.labels, predictions.outputs)
    decided = predictions.kind.decide(predictions.outputs, decision)
    return predictions_png(predictions.kind, predictions.labels, decided, predictions.names, name)
