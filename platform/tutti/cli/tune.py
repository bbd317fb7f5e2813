"""``tutti tune``: runs a study."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutti.cli import stores, tracking_metadata
from tutti.cli.console import best_effort_console, console, program
from tutti.cli.preparation import check_no_trials, check_place, forget_failed, prepare_study, with_folds
from tutti.cluster.ending import EXIT_CODE
from tutti.cluster.shipped import SUBMITTED
from tutti.config.address import without_password
from tutti.config.folder import StudyFolder, studies_folder
from tutti.config.study import StudyConfig
from tutti.errors import ClaimLostError, StorageError, TrialError, counted
from tutti.records import TrialRecord, TrialState, best_trial
from tutti.tasks.predictions import Predictions

if TYPE_CHECKING:
    from tutti.data.prepared import Prepared
    from tutti.orchestration.driver.study import StudyOutcome
    from tutti.tasks.task import Task

Trials = Annotated[
    str | None, typer.Option(metavar="N|+N", help="How many trials the study shall have, or how many more.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the study, or start it if there is none yet.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated.")
]


def tune(
    study_file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.")],
    trials: Trials = None,
    overrides: Overrides = None,
    resume: Resume = False,
) -> None:
    """Runs a study: trials on Ray, searched by Optuna, logged to MLflow.

    Runs on the cluster that RAY_ADDRESS names, otherwise on a Ray of its own on this machine.

    Example: `tutti tune examples/glue_trio.yaml --trials 12 --set training.max_length=96`
    """
    settings = overrides or []
    count = None if trials is None else _budget(trials, study_file, overrides=settings)
    budget = [] if count is None else [f"search.trials={count}"]
    study, folder = stores.read_study_file(study_file, overrides=[*settings, *budget])
    again = partial(command_to_go_on, study_file, trials=count, overrides=settings)
    run(stores.with_stores(study, folder), folder, resume=resume, again=again)


def parse_trials(trials: str) -> tuple[int, bool]:
    """The number in ``--trials``, as in ``12``, and whether it is ``+12``: so many more than the study has."""
    if not re.fullmatch(r"\+?0*[1-9]\d*", trials):
        hint = "Must be a whole number of at least 1, as in 12, or +12 for so many more than the study has"
        raise typer.BadParameter(f"{hint}; got {trials!r}.", param_hint="'--trials'")
    return int(trials), trials.startswith("+")


def _budget(trials: str, study_file: Path, *, overrides: list[str]) -> int:
    """The total number of trials that ``--trials`` asks for."""
    count, is_more = parse_trials(trials)
    if not is_more:
        return count
    # The total is not known yet, so validation must not compare it with the search space or the population size.
    unknown_total = ["search.trials=1", "search.scheduler=none"]
    study, folder = stores.read_study_file(study_file, overrides=[*overrides, *unknown_total])
    return count + stores.count_trials(stores.with_stores(study, folder), folder)


def command_to_go_on(
    study_file: Path, *, trials: int | None = None, overrides: Sequence[str] = (), but: str = ""
) -> str:
    """The command that resumes a study as it was started, without any override of the key ``but``.

    In a job of ``tutti submit``, that command, since the job's own study file is out of its user's reach.
    """
    command = f"{program()} tune {shlex.quote(str(study_file))}"
    if submitted := os.environ.get(SUBMITTED):
        command, overrides = json.loads(submitted)
    settings = [text for text in overrides_without_passwords(overrides) if text.partition("=")[0].strip() != but]
    options = [*(["--trials", str(trials)] if trials else [])]
    options += [word for setting in settings for word in ("--set", setting)]
    return f"{command} {shlex.join(['--resume', *options])}"


def overrides_without_passwords(overrides: Sequence[str]) -> list[str]:
    """The texts of ``--set``, in which no address has its password."""
    return [
        key + equals + (without_password(value) if "://" in value else value)
        for key, equals, value in (text.partition("=") for text in overrides)
    ]


def run(study: StudyConfig, folder: StudyFolder, *, resume: bool, again: Callable[..., str]) -> list[TrialRecord]:
    """Prepares a study's data, runs its trials, and prints what to do next; exits with 130 when interrupted.

    Args:
        again: returns the command that resumes the study; takes ``but`` as ``command_to_go_on`` does.
    """
    try:
        return _run(study, folder, resume=resume, again=again)
    except KeyboardInterrupt:
        console.print(f"Interrupted; go on with `{again()}`.")
        sys.exit(EXIT_CODE)


def _run(study: StudyConfig, folder: StudyFolder, *, resume: bool, again: Callable[..., str]) -> list[TrialRecord]:
    from tutti.cli.progress import cut_off
    from tutti.cluster.connect import check_cluster, connected, gpus_of_cluster
    from tutti.orchestration.driver.study import clear_ended
    from tutti.orchestration.upkeep.lock import study_lock

    began = time.monotonic()
    check_place(folder)
    stores.check_stores(study, folder)
    with study_lock(folder):
        if folder.begun:
            forget_failed(study, folder, resume=resume)
        if not folder.begun:
            check_no_trials(study, folder)
            if resume:
                console.print(f"There is no {study.study} in {folder.path.parent} yet: starting it")
            for older, count in stores.fitting_trials(study, folder).items():
                console.print(f"Warm start with {counted(count, 'trial')} of the study {older}")
        is_over = _is_over(study, folder)  # before study.json names a database in which the study is not
        if not is_over:
            check_cluster()
        prepared = prepare_study(study, folder, resume=resume)
        if study.split.fold_column is not None:
            study = with_folds(study, prepared.settings["split"]["folds"])
        tracking_metadata.write_split(prepared, folder)
        resources = study.resources
        if is_over:  # nothing to run; delivering queued reports to the tracker needs no Ray
            outcome = _run_trials(study, folder, prepared, concurrent=0)
        else:
            console.print("Starting Ray")
            # Connect before the stores are opened, so that a study that does not fit the cluster does not begin.
            with connected(
                workers=resources.workers,
                cpus_per_worker=resources.cpus_per_worker,
                gpus_per_worker=resources.gpus_per_worker,
                concurrent_trials=resources.concurrent_trials,
            ) as concurrent:
                if not resources.gpus_per_worker and (gpus := gpus_of_cluster()):
                    console.print(f"Training on CPUs; to use the {counted(gpus, 'GPU')}, set resources.gpus_per_worker")
                outcome = _run_trials(study, folder, prepared, concurrent=concurrent)
            clear_ended(folder, outcome.trials)  # Ray is disconnected, so no worker is left that writes
    records = cut_off(outcome.trials)
    _show_outcome(study, folder, outcome, records, seconds=time.monotonic() - began, again=again)
    return records


def _show_outcome(
    study: StudyConfig,
    folder: StudyFolder,
    outcome: StudyOutcome,
    records: Sequence[TrialRecord],
    *,
    seconds: float,
    again: Callable[..., str],
) -> None:
    """Prints the trials, why the study ended and what to do next; exits with 130 if trials were interrupted."""
    from tutti.cli.progress import failures, summary, trials_table
    from tutti.outputs.formatting import duration, number
    from tutti.search.objectives import pareto_front

    best, objectives = best_trial(outcome.trials), study.search.objectives
    table = trials_table(
        records,
        tasks=[*study.tasks],
        best=best,
        title=f"Study {study.study}",
        objectives=objectives,
        front=pareto_front(records, objectives),
    )
    console.print(table)
    for line in failures(records):
        console.print(line)
    console.print(f"{summary(records, total=study.search.trials, best=best)}, in {duration(seconds)}")
    if len(records) > study.search.trials:
        console.print(f"It has more trials than the {study.search.trials} asked for, so no new one was begun.")
    if outcome.ending:
        limit = f"search.{outcome.ending.limit}"
        go_on = f"raise or remove {limit} and run `{again(but=limit)}`"
        console.print(f"Ended early: {outcome.ending.reason}. To go on, {go_on}.")
    elif not outcome.complete:
        console.print(f"Interrupted: {_left(outcome, study.search.trials)}; go on with `{again()}`.")
        sys.exit(EXIT_CODE)
    if best:
        console.print(f"Best: {best.key}, score {number(best.score)}. Next:")
        console.print(f"  {program()} ensemble {_study_argument(folder)} --recipe {shlex.quote(study.ensemble.recipe)}")
        console.print(f"  {program()} ui {_study_argument(folder)}")
    elif outcome.complete:
        more = "loosen or remove search.scheduler in a new study"
        more += "" if study.search.sampler == "grid" else ", or add trials: --resume --trials +4"
        console.print(f"No trial finished, and only finished trials can vote: {more}.")


def _left(outcome: StudyOutcome, total: int) -> str:
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


def _run_trials(study: StudyConfig, folder: StudyFolder, prepared: Prepared, *, concurrent: int) -> StudyOutcome:
    """Runs the study's trials on the connected Ray, with its store, its tracker and a live table.

    Args:
        concurrent: number of trials at a time; 0 if the study is over and no Ray is connected.
    """
    from tutti.cli.progress import Progress, cut_off
    from tutti.orchestration.driver.study import run_study
    from tutti.tracking.protocol import BEST_SCORE

    shown = best_effort_console()  # an error raised in Tune's callbacks would end the study
    store = stores.open_store(study, folder)
    try:
        tracker = stores.open_tracker(study, folder)
    except BaseException:  # on a database server, the study would otherwise stay claimed
        store.close()
        raise
    flush_seconds = 60.0
    try:
        tracker.start_study(
            parameters=tracking_metadata.study_parameters(study, prepared),
            tags=tracking_metadata.study_tags(prepared),
            files=[folder.study_file, *sorted(folder.data.glob("*.json"))],
            columns=tracking_metadata.study_columns(study),
        )
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
                picture=partial(picture, {task.name: task for task in prepared.tasks}),
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
    from tutti.outputs.report.pictures import predictions_png
    from tutti.tasks.scorer import Scorer

    assert predictions.labels is not None
    decision = Scorer.of(tasks[name]).alone(predictions.labels, predictions.outputs)
    decided = predictions.kind.decide(predictions.outputs, decision)
    return predictions_png(predictions.kind, predictions.labels, decided, predictions.names, name)


def _study_argument(folder: StudyFolder) -> str:
    """The study as a command-line argument: its name if the default folder holds it, otherwise its quoted path."""
    return folder.name if folder.path.parent == studies_folder() else shlex.quote(str(folder.path))
