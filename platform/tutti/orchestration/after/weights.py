"""Finds the checkpoints of trials, and checks that they predict what they are asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tutti import mirror
from tutti.config.folder import StudyFolder, TrialFolder
from tutti.copies import address_of
from tutti.errors import Fault, StudyError
from tutti.tasks.task import Task

_MISSING_WEIGHTS_REMEDY = (
    "name a recipe whose members have theirs (a smaller `members: {top: }` takes the best), or train it again"
)
REFIT_PLAN = "plan.json"
_SHOWN = 10  # classes in a message


def weights_of(
    folder: StudyFolder, keys: Sequence[str], *, folds: int | None, tasks: Sequence[Task]
) -> dict[str, list[Path]]:
    """The checkpoints of each trial: one, or one per fold. A trial's prediction is the mean over its folds.

    Raises:
        StudyError: if weights are missing, with a fault for each trial.
        StorageError: if a checkpoint is damaged.
    """
    checkpoints: dict[str, list[Path]] = {}
    faults: list[Fault] = []
    for key in keys:
        trial = folder.trial(key)
        checkpoints[key] = [trial.fold(fold).best for fold in range(folds)] if folds else [trial.best]
        try:
            for checkpoint in checkpoints[key]:
                check_predicts(checkpoint, tasks, what=f"trial {key}", remedy=_MISSING_WEIGHTS_REMEDY)
        except StudyError as error:
            faults += error.faults
    if faults:
        raise StudyError(*faults)
    return checkpoints


def refit_weights(folder: StudyFolder, recipe: str, key: str) -> list[Path]:
    """The checkpoints of a trial that was trained again on all rows, for a recipe.

    Raises:
        StudyError: if there are none.
    """
    place = folder.refits / recipe
    mirror.pull(place)
    weights = [TrialFolder(place / job["name"]).best for job in read_plan(place) or () if job["trial"] == key]
    if not weights or not all((each / "tutti.json").is_file() for each in weights):
        what, rule = f"trial {key}", f"have weights that were trained on all rows, in {place}"
        raise StudyError(Fault(what, rule, "none", f"run `tutti refit {folder.name} --recipe {recipe}` first"))
    return weights


def read_plan(place: Path) -> list[dict[str, Any]] | None:
    """What is, or was, to be trained in a folder of ``tutti refit``; None where nothing was begun."""
    try:
        return list(json.loads((place / REFIT_PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def bring(checkpoint: Path) -> None:
    """Brings a checkpoint of a study on object storage to this machine, with the backbone below its adapter."""
    from tutti.modeling.checkpoint import METADATA, read_metadata

    mirror.pull(checkpoint)
    if address_of(checkpoint) and (checkpoint / METADATA).is_file():
        base = read_metadata(checkpoint).base
        mirror.pull(Path(base.backbone if base else checkpoint))


def check_predicts(folder: Path, tasks: Sequence[Task], *, what: str, remedy: str) -> None:
    """Checks that a checkpoint exists and was trained on the tasks.

    Args:
        what: names the checkpoint in messages.
        remedy: shown if it does not exist.

    Raises:
        StudyError: if it does not exist, or was not trained on one of the tasks.
        StorageError: if its metadata cannot be read.
    """
    from tutti.modeling.checkpoint import METADATA, is_pruned, read_metadata

    rule = f"have weights, in {folder}, to predict with"
    bring(folder)
    try:
        exists = (folder / METADATA).is_file()
        got = "ones that were pruned to keep within storage.max_gigabytes" if is_pruned(folder) else "none"
    except OSError as error:  # no permission, or a path that is too long
        raise StudyError(Fault(what, rule, error.strerror or str(error), remedy)) from error
    if not exists:
        raise StudyError(Fault(what, rule, got, remedy))
    trained_tasks = read_metadata(folder).tasks
    for task in tasks:
        if _predicted(task) not in map(_predicted, trained_tasks):
            rule = f"predict the task {task.name} as the study has it, with {_shape(task)}"
            got = ", ".join(f"{each.name} with {_shape(each)}" for each in trained_tasks)
            raise StudyError(Fault(what, rule, got, "name a checkpoint of this study"))


def _predicted(task: Task) -> tuple[str, bool, str, tuple[str, ...]]:
    """What of a task its predictions depend on: neither the metric nor the submission."""
    return task.name, task.pair, task.kind_name, task.names


def _shape(task: Task) -> str:
    return f"{'two texts' if task.pair else 'one text'} and {task.kind.describe(task.names, most=_SHOWN)}"
