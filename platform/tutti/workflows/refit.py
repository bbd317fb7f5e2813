"""Trains an ensemble's members once more, on all labelled rows, and lets these vote."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tutti import mirror
from tutti.errors import Fault, StudyError, counted
from tutti.files import write_whole
from tutti.records import TrialState
from tutti.workflows import stores
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, election_of_trials
from tutti.workflows.vote import Vote, formats_of, recipe_keys, test_ids

if TYPE_CHECKING:
    from tutti.bank.bank import Bank
    from tutti.orchestration.after.refit import Refit
    from tutti.outputs.election.members import Election
    from tutti.tasks.predictions import Predictions
    from tutti.training import EpochReport


def refit(study: StudyBase, recipe: str | None = None, *, seeds: int = 1) -> Vote:
    """Trains an ensemble's members once more, on all labelled rows, and lets these vote with the weights found before.

    Each is trained for as many epochs, or evaluations, as validation found: with folds the mean over them. Weights,
    decisions and temperature are those of the recipe, fitted where rows were held out. Each training is a run below its
    trial's in MLflow. Interrupted, it goes on where it was when it is called again.

    Args:
        recipe: the name of a shipped recipe or the path of a file; by default the study's own.
        seeds: how often each member is trained; the mean of its predictions votes.

    Returns:
        The vote, which says what score is expected: it cannot be measured, as no labelled row is left.

    Raises:
        StudyError: if the recipe lets other studies vote, or an earlier refit with it had other members, seeds or
            test sets.
        TrialError: if a training fails.

    Example:
        >>> study.refit("auto", seeds=3).write()
    """
    from tutti.bank.bank import Bank
    from tutti.bank.electorate import WithParts
    from tutti.outputs.election.ensemble import vote

    study = study.stored
    config, prepared = study.config, study.prepared
    name, chosen = chosen_recipe(study, recipe)
    if chosen.members.studies:
        got, remedy = f"also {', '.join(chosen.members.studies)}", "take members.studies out of the recipe"
        raise StudyError(Fault(f"the recipe {name}", "let one study's trials vote, to train them again", got, remedy))
    poll, election, _ = election_of_trials({study.name: study}, chosen)
    place = study.folder.refits / name
    mirror.pull(place)
    jobs = _jobs(study, election, seeds=seeds)
    _check_plan(place, jobs)
    bank = Bank(place / "bank")  # of rows without labels
    known = {record.key for record in bank.records()}
    if left := [job for job in jobs if job.name not in known]:
        _train(study, left, place)
        mirror.push(place)
    means = _means(study, bank, jobs)
    if lacking := sorted(
        f"{task}/{part}"
        for task, parts in test_ids(config, prepared).items()
        for part in parts
        if any((job.trial, task, part) not in means for job in jobs)
    ):  # else the models from before would vote there
        rule, remedy = "have predictions of all test sets", f"remove {place} to train anew, with sets added since"
        raise StudyError(Fault(f"the refit in {place}", rule, f"none of {', '.join(lacking)}", remedy))
    voted = vote(
        replace(poll, bank=WithParts(poll.bank, means), recipe_name=f"{name}-refit", folded=False),
        test_ids=test_ids(config, prepared),
        submission=formats_of(config, prepared, chosen),
        notes=_notes(study, election, jobs),
        recipe_keys=recipe_keys(chosen, {study.name: study}),
    )
    return Vote({study.name: study}, f"{name}-refit", chosen, voted)


def _jobs(study: StudyBase, election: Election, *, seeds: int) -> list[Refit]:
    """A training for each seed of each trial whose vote has weight in some task."""
    from tutti.config.stages import overlay
    from tutti.orchestration.after.refit import Refit, best_evaluation

    folder, folds = study.folder, study.config.split.folds
    with closing(stores.load_store(study.config, folder)) as store:
        records = {record.key: record for record in store.records()}
    voting = {each.key for elected in election.tasks.values() for each in elected.members if each.weight}
    jobs = []
    for checkpoint in sorted(election.checkpoints, key=lambda each: each.number):
        if checkpoint.key not in voting:
            continue
        record = records[checkpoint.key]
        until = best_evaluation(folder.trial(record.key), folds=folds, known=checkpoint.epoch)
        first = int(overlay(study.config.training, record.best_parameters).get("seed", 0))
        jobs += [
            Refit(record.key, f"{record.key}-{seed}", record.number, record.best_parameters, first + seed, until)
            for seed in range(seeds)
        ]
    return jobs


def _check_plan(place: Path, jobs: Sequence[Refit]) -> None:
    """Writes what is to be trained, or checks that it is what an earlier call has begun."""
    from tutti.orchestration.after.weights import REFIT_PLAN, read_plan

    plan = json.loads(json.dumps([asdict(job) for job in jobs]))
    begun = read_plan(place)
    if begun not in (None, plan):
        got = "other members, seeds or epochs: trials may have been added since"
        remedy = f"remove {place} to train anew"
        raise StudyError(Fault(f"the refit in {place}", "go on as it was begun", got, remedy))
    write_whole(place / REFIT_PLAN, json.dumps(plan, indent=1) + "\n")


def _train(study: StudyBase, jobs: Sequence[Refit], place: Path) -> None:
    from tutti.orchestration.after.refit import refit, whole
    from tutti.workflows.predict import connected_slots

    console, began = study.console, time.monotonic()
    prepared = whole(study.prepared, place / "data")
    rows = ", ".join(f"{task} {parts['train'].rows:,}" for task, parts in prepared.parts.items())
    console.print(f"Training {counted(len(jobs), 'model')} on all rows: {rows}")
    tracker = stores.open_tracker(study.config, study.folder)

    def done(job: Refit, reports: list[EpochReport]) -> None:
        key = f"{job.trial}/refit-{job.name.rpartition('-')[2]}"
        parameters = {**job.parameters, "seed": job.seed, "until": job.until}
        tracker.start_trial(key, number=job.number, parameters=parameters, tags={"tutti.refit": place.name})
        for report in reports:
            losses = {name: value for name, value in report.metrics.items() if name.endswith("train_loss")}
            tracker.log_metrics(key, losses, step=report.epoch, at=report.at)
        tracker.end_trial(key, state=TrialState.FINISHED, reason=None, metrics={}, tags={})
        console.print(f"  {job.name}: {counted(job.until, 'epoch')}, after {time.monotonic() - began:.0f} s")

    try:
        with connected_slots(study, most=len(jobs)) as slots:
            refit(study.config, prepared, jobs, place=place, cache=study.folder.encoded, slots=slots, done=done)
    finally:
        tracker.close()


def _means(study: StudyBase, bank: Bank, jobs: Sequence[Refit]) -> dict[tuple[str, str, str], Predictions]:
    """By trial, task and part, the mean of its trainings' predictions."""
    import numpy as np

    from tutti.ensembling.methods.registry import plain_vote
    from tutti.tasks.predictions import Predictions

    by_trial: dict[str, list[str]] = {}
    for job in jobs:
        by_trial.setdefault(job.trial, []).append(job.name)
    means = {}
    for trial, names in by_trial.items():
        for task in study.prepared.tasks:
            for part in bank.parts(names[0]).get(task.name, ()):
                each = [bank.predictions(name, task.name, part) for name in names]
                outputs = (
                    plain_vote(task, np.stack([own.outputs for own in each])) if len(each) > 1 else each[0].outputs
                )
                means[trial, task.name, part] = Predictions.of(task, ids=each[0].ids, outputs=outputs, labels=None)
    return means


def _notes(study: StudyBase, election: Election, jobs: Sequence[Refit]) -> tuple[str, ...]:
    """What the card says of scores that nobody can measure."""
    epochs: Mapping[str, int] = {job.trial: job.until for job in jobs}
    listed = ", ".join(f"{trial} {until}" for trial, until in epochs.items())
    seeds = len(jobs) // max(len(epochs), 1)
    held_out = "folds" if study.config.split.folds else "the held-out rows"
    return (
        f"The members that vote on test rows were trained again on all labelled rows, {counted(seeds, 'time')} each, "
        f"for the epochs that {held_out} found ({listed}); weights, decisions and temperature are those found there.",
        "The scores are those of the models before. They are what is expected of these, or slightly less, since they "
        "have learnt from fewer rows. It cannot be measured: no labelled row is left that the new ones have not seen.",
    )
