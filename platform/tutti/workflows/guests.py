"""Guests: predictions of models that are no trials of the study, which vote beside its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tutti.errors import Fault, StudyError, TaskFileError, TrackingError
from tutti.files import is_plain, sha256_of, storage_faults, write_whole
from tutti.records import TRIAL_KEY
from tutti.workflows import stores
from tutti.workflows.base import StudyBase

if TYPE_CHECKING:
    import numpy as np

    from tutti.records import CheckpointRecord
    from tutti.tasks.task import Task

_FIRST = 10**6  # number of the first guest, so that trials come before guests


def guests(study: StudyBase) -> list[CheckpointRecord]:
    """The study's guests, each with its score and where its predictions come from."""
    return [record for record in study.stored.bank.records() if record.source is not None]


def sources_of(record: CheckpointRecord) -> dict[str, str]:
    """By task, where a guest's predictions come from; empty for a trial."""
    if record.source is None:
        return {}
    begins = "|".join(re.escape(task) for task in record.task_scores)  # file names may have any character
    found = re.split(rf"(?:^|; )({begins}): ", record.source)
    return dict(zip(found[1::2], found[2::2], strict=True))


def import_predictions(
    study: StudyBase,
    name: str,
    *,
    validation: Path | str,
    test: Path | str | Mapping[str, Path | str] | None = None,
    unlabeled: Path | str | None = None,
    task: str | None = None,
) -> CheckpointRecord:
    """Lets predictions of any other model vote as a guest, in one of the study's tasks.

    Files have the ids of the study's rows and a column for each output, as ``export_predictions`` writes them. A guest
    of this name that there is gets the task beside those that it has.

    Args:
        name: of the guest.
        validation: for the validation rows, with folds for all training rows, each by a model that has not learnt it.
        test: for the test file, or by name of several test sets.
        unlabeled: for the unlabelled rows, which pseudo-labels need.
        task: which task, where the study has several.

    Returns:
        Its record in the bank, with its score.

    Raises:
        StudyError: if the name is a trial's, or a test set has no predictions.
        TaskFileError: if rows are missing or surplus, or outputs are not those of the task.

    Example:
        >>> study.import_predictions("lgbm", validation="oof.csv", test="test.csv")
    """
    from tutti.bank.exchange import read_outputs
    from tutti.workflows.predict import task_named

    _check_name(name)
    study = study.stored
    own = task_named(study, task)
    files = {"validation": Path(validation)}
    sets = test if isinstance(test, Mapping) else {} if test is None else {"": test}
    files |= {f"test-{key}" if key else "test": Path(file) for key, file in sets.items()}
    files |= {} if unlabeled is None else {"unlabeled": Path(unlabeled)}
    _check_parts(study, own, files)
    outputs: dict[str, np.ndarray] = {}
    faults: list[Fault] = []
    for part, file in files.items():
        try:
            outputs[part] = read_outputs(str(file), own, study.prepared.ids(own.name, part).tolist())
        except TaskFileError as error:
            faults += error.faults
    if faults:
        raise TaskFileError(*dict.fromkeys(faults))
    hashes = {part: sha256_of(file) for part, file in files.items()}
    source = ", ".join(f"{file.name} ({hashes[part][:12]})" for part, file in files.items())
    parameters = {f"{part}_sha256": digest for part, digest in hashes.items()}
    return put_guest(study, name, own, outputs, source=source, parameters={"source": source, **parameters})


def put_guest(
    study: StudyBase,
    name: str,
    task: Task,
    outputs: Mapping[str, np.ndarray],
    *,
    source: str,
    parameters: Mapping[str, str],
    log_probabilities: Mapping[str, np.ndarray] | None = None,
    writer: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> CheckpointRecord:
    """Puts a guest's outputs by part into the bank, and a run of its name with its scores into MLflow.

    Args:
        source: in words, where the predictions come from.
        parameters: of its run.
        log_probabilities: by part, of outputs that are texts.
        writer, settings: as of its record.

    Raises:
        StudyError: if the name is a trial's, or not plain.
    """
    from filelock import FileLock

    from tutti.records import CheckpointRecord
    from tutti.tasks.objective import study_score
    from tutti.tasks.predictions import Predictions
    from tutti.tasks.scorer import Scorer

    _check_name(name)
    prepared, bank = study.prepared, study.bank
    labels = prepared.labels(task.name, "validation")
    given = {
        part: Predictions.of(
            task,
            ids=prepared.ids(task.name, part),
            outputs=values,
            labels=labels if part == "validation" else None,
            log_probabilities=(log_probabilities or {}).get(part),
        )
        for part, values in outputs.items()
    }
    predictions = {task.name: given}
    scores = {task.name: Scorer.of(task.as_voted).score(labels, outputs["validation"])}
    sources = {task.name: source}
    file = study.folder.path / "guests.lock"
    with storage_faults(file), FileLock(file):  # two imports of one guest, of a task each, both stay
        known = {record.key: record for record in bank.records()}
        if name in known:
            sources = sources_of(known[name]) | sources
            scores = {**known[name].task_scores, **scores}
            for other, parts in bank.parts(name).items():
                if other != task.name:
                    predictions[other] = {part: bank.predictions(name, other, part) for part in parts}
        numbers = [record.number for record in known.values() if record.source is not None]
        number = known[name].number if name in known else max(numbers, default=_FIRST - 1) + 1
        objective = study_score(scores, [each for each in prepared.tasks if each.name in scores])
        described = "; ".join(f"{of_task}: {each}" for of_task, each in sources.items())
        written = {**settings}
        record = CheckpointRecord(
            name, number, 0, objective, scores, None, source=described, writer=writer, settings=written
        )
        bank.put(record, predictions)
    _track(study, record, {f"{task.name}/{key}": value for key, value in parameters.items()})
    return record


def export_predictions(study: StudyBase, key: str, out: Path | str, *, task: str | None = None) -> tuple[Path, ...]:
    """Writes the predictions of a trial or guest as tables that ``import_predictions`` reads: one for each part.

    Args:
        key: of the trial, such as ``t0003``, or a guest's name.
        out: a folder, which gets ``validation.csv``, ``test.csv`` and so on.
        task: which task, where the study has several.

    Raises:
        StudyError: if there are no such predictions, if a row of the task has no fixed number of outputs, or if a file
            of other content is there.

    Example:
        >>> study.export_predictions("t0003", "for_the_team")
    """
    from tutti.bank.exchange import output_columns, to_csv
    from tutti.workflows.predict import task_named

    study, out = study.stored, Path(out)
    own = task_named(study, task)
    output_columns(own)
    if key not in (held := [record.key for record in study.bank.records()]):
        rule = f"be one that has predictions: {', '.join(held) or 'none has yet'}"
        remedy = "name one, or wait for a trial"
        raise StudyError(Fault("--trial", rule, repr(key), remedy))
    parts = study.bank.parts(key).get(own.name, ())
    tables = {out / f"{part}.csv": to_csv(study.bank.predictions(key, own.name, part), own) for part in parts}
    for file, table in tables.items():  # the folder may have a competition's own test.csv
        if file.exists() and (not file.is_file() or file.read_bytes() != table.encode()):
            rule, remedy = "not be there yet, to be written", "name another folder with --out, or move it away"
            raise StudyError(Fault(str(file), rule, "a file of other content", remedy))
    for file, table in tables.items():
        write_whole(file, table)
    return tuple(tables)


def _check_name(name: str) -> None:
    if not is_plain(name) or TRIAL_KEY.fullmatch(name):
        rule, remedy = "be a plain name that no trial may have", "name the guest otherwise, such as lgbm"
        raise StudyError(Fault("--name", rule, repr(name), remedy))


def _check_parts(study: StudyBase, task: Task, files: Mapping[str, Path]) -> None:
    needed = [part for part in study.prepared.parts[task.name] if part == "test" or part.startswith("test-")]
    faults = []
    for part in files:
        if part not in study.prepared.parts[task.name]:
            listed = ", ".join([*needed, "validation"])
            rule = f"be of a part that the task {task.name} has: {listed}"
            faults.append(Fault(f"the predictions of {part}", rule, str(files[part]), "take the file out"))
    for part in needed:
        if part not in files:
            option = "--test FILE" if part == "test" else f"--test {part.removeprefix('test-')}=FILE"
            rule, remedy = f"have predictions of {part}, on which it votes", f"add {option}"
            faults.append(Fault(f"the guest in {task.name}", rule, "none", remedy))
    if faults:
        raise StudyError(*faults)


def _track(study: StudyBase, record: CheckpointRecord, parameters: Mapping[str, str]) -> None:
    """Keeps the guest as a run of the study in MLflow, if the study has one there."""
    if not stores.is_tracked(study.config, study.folder):
        return
    from tutti.records import TrialState
    from tutti.tracking.protocol import SCORE

    try:
        tracker = stores.direct_tracker(study.config, study.folder)
        tracker.start_trial(record.key, number=record.number, parameters=parameters, tags={"tutti.guest": "true"})
        scores = {SCORE: record.score, **{f"{SCORE}/{task}": score for task, score in record.task_scores.items()}}
        tracker.end_trial(record.key, state=TrialState.FINISHED, reason=None, metrics=scores, tags={})
    except TrackingError as error:  # the bank has it already
        study.console.print(f"Not stored in MLflow: {error}")
