"""What is done before a study's first trial: it checks the study's folder and prepares its data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.config.backbones import by_backbone, map_backbones
from tutti.config.folder import StudyFolder, check_inside
from tutti.config.load import dump_study, parse_study
from tutti.config.objective_weights import proportional
from tutti.config.paths import map_task_paths
from tutti.config.study import StudyConfig
from tutti.copies import address_of
from tutti.errors import Fault, StudyError
from tutti.files import hashes, sha256_of, whole_folder, write_whole
from tutti.records import TrialState
from tutti.workflows import stores, tracking_metadata
from tutti.workflows.base import StudyBase

if TYPE_CHECKING:
    from tutti.data.prepared import Prepared

_MENTIONED_SHARE = 0.01  # of a task's rows that reach max_length
_LONGER = {  # what becomes of them, by truncation
    "longest_first": "are cut",
    "only_first": "have their first text cut",
    "only_second": "have their second text cut",
    "tail": "keep their last tokens",
    "head_tail": "keep their first and last tokens",
    "windows": "are read in windows",
}


def prepare_study(opened: StudyBase, *, resume: bool) -> Prepared:
    """Reads, cleans, splits and encodes the study's data into its folder, and writes the study file there.

    Raises:
        StudyError: if the study has begun and ``resume`` is false, or its settings or backbone have changed.
        BackboneError: if the backbone or its tokenizer cannot be used.
        ConfigError, TaskFileError: with the faults of all tasks, or if ``max_length`` exceeds the backbone's.
        StorageError: if the folder cannot be written.
    """
    from tutti.orchestration.before.abilities import abilities_of, check_backbone
    from tutti.orchestration.before.kept_backbone import keep_backbone
    from tutti.orchestration.before.rows import encode_study, prepare_rows
    from tutti.training.keys.idle import idle_notices, incomparable_notices

    study, folder, console = opened.config, opened.folder, opened.console
    begun = folder.begun
    if begun and not resume:
        got, remedy = "an existing one", "add --resume to go on with it, or give `study:` another name"
        raise StudyError(Fault(f"the study {study.study!r}", f"be new in {folder.path.parent}", got, remedy))
    if begun:
        stored = parse_study(folder.study_file)
        if study.split.fold_column is not None and study.split.folds is None:  # no file has to be read for it again
            study = with_folds(study, stored.split.folds)
        _check_unchanged(study, stored)
    abilities = {backbone: abilities_of(backbone, begun=begun) for backbone in by_backbone(study)}
    for backbone, alone in by_backbone(study).items():
        check_backbone(alone, abilities[backbone], begun=begun)
    if not begun:  # data that a failed start left behind may come from other files and settings
        shutil.rmtree(folder.data, ignore_errors=True)
    console.print("Reading the tasks")
    prepared = prepare_rows(study, folder)
    if study.split.fold_column is not None:
        study = with_folds(study, prepared.settings["split"]["folds"])
    keep_backbone(study, folder)
    for task in prepared.tasks:
        rows = ", ".join(f"{part} {info.rows:,}" for part, info in prepared.parts[task.name].items())
        folds = f", validated in {study.split.folds} folds" if study.split.folds else ""
        console.print(f"  {task.name}: {task.kind.describe(task.names)}; rows: {rows}{folds}")
    for notice in (*prepared.notices, *idle_notices(study), *incomparable_notices(study)):
        console.print(f"  {notice}", markup=False)
    console.print("Encoding the texts")
    for backbone, alone in by_backbone(study).items():
        limits, shares = encode_study(alone, folder, prepared, abilities[backbone])
        becomes = " or ".join(dict.fromkeys(_LONGER[limit.truncation] for limit in limits))
        of = f" of {Path(backbone).name}" if len(abilities) > 1 else ""
        for (name, key), share in shares.items():
            if share >= _MENTIONED_SHARE:
                reached = f"{share:.0%} of the rows reach {key}, {getattr(limits[-1], key)} tokens{of}"
                own = next(task.kind for task in prepared.tasks if task.name == name)
                cut = "have their contexts cut" if own.exchangeable else becomes
                cut = _LONGER["windows"] if own.sequential else cut
                cut = cut if key == "max_length" else "are cut, and their end is not learnt"
                console.print(f"  {name}: {reached}; longer ones {cut}", markup=False)
    write_whole(folder.study_file, dump_study(stores.without_passwords(study)))
    return prepared


def with_folds(study: StudyConfig, folds: int | None) -> StudyConfig:
    """The study with the number of folds that its fold column has."""
    return study.model_copy(update={"split": study.split.model_copy(update={"folds": folds})})


def keep_files(study: StudyConfig, folder: StudyFolder) -> StudyConfig:
    """A study on object storage, with copies in its folder of the files that other machines need too.

    These are backbones, samples of submissions, and the recipe: in folders that their content names.
    """
    if not address_of(folder.path):
        return study

    def kept(text: str, into: Path) -> str:
        path = Path(text)
        if not path.is_absolute() or not path.exists() or path.is_relative_to(folder.path):
            return text
        named = hashes(path) if path.is_dir() else {path.name: sha256_of(path)}
        copy = into / sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16] / path.name
        if not copy.exists():
            with whole_folder(copy.parent) as temporary:
                copied = shutil.copytree if path.is_dir() else shutil.copyfile
                copied(path, temporary / path.name)
        return str(copy)

    document = map_backbones(study.model_dump(mode="json"), lambda _, path: kept(path, folder.backbones))
    for name, task in document["tasks"].items():
        document["tasks"][name] = map_task_paths(
            task, lambda key, path: kept(path, folder.shipped) if key == "submission.like" else path
        )
    document["ensemble"]["recipe"] = kept(document["ensemble"]["recipe"], folder.shipped)
    return StudyConfig.model_validate(document)


def check_place(folder: StudyFolder) -> None:
    """Checks before anything is read that the study's folder is not below a file and does not link elsewhere."""
    nearest = next(path for path in (folder.path, *folder.path.parents) if path.exists())
    if not nearest.is_dir():
        remedy = "set `storage.path:` of the study file to a folder, or move the file away"
        raise StudyError(Fault(str(nearest), "be a folder, to hold studies", "a file", remedy))
    check_inside(folder)


def forget_failed(opened: StudyBase, *, resume: bool) -> None:
    """Lets a study that has begun be started anew, with other settings too, if nothing is lost by it.

    That is so if all of its trials failed, of which none can vote. With ``resume``, it goes on if it may have more.

    Raises:
        StudyError: if the database server that held the study no longer has it.
        StorageError: if something cannot be read or removed.
    """
    study, folder = opened.config, opened.folder
    store, records = stores.load_begun_store(study, folder), []
    if store is not None:
        with closing(store):
            records = store.records()
    if any(record.state is not TrialState.FAILED for record in records):
        return
    if resume and len(records) < study.search.trials:
        return
    stores.forget(study, folder)
    opened.console.print(
        f"The study {study.study} has failed trials alone: starting it anew"
        if records
        else "No trial has begun: starting anew"
    )


def check_no_trials(study: StudyConfig, folder: StudyFolder) -> None:
    """Refuses a study that has lost its database but not its trials: new trials would go on from those of their key."""
    if folder.has_trials:
        lost = "study.json" if not folder.study_file.is_file() else "optuna.db or database.json"
        rule, got = f"have {lost} beside its trials", "trials without it"
        remedy = f"restore it from a copy, move {folder.path} away, or give `study:` another name"
        raise StudyError(Fault(f"the study {study.study!r}", rule, got, remedy))


def _check_unchanged(study: StudyConfig, stored: StudyConfig) -> None:
    rule = "stay as it was when the study is resumed"
    remedy = "put it back, with --set if it was given so, or give `study:` another name"
    faults = [
        Fault(f"{key} of the study {study.study!r}", rule, f"{new!r} where it was {old!r}", remedy)
        for key, (old, new) in changed_keys(stored, study).items()
    ]
    if faults:
        raise StudyError(*faults)


# Keys that may change when a study is resumed.
FREE: Mapping[str, set[str] | bool] = {
    "search": {"trials", "max_hours", "target_score", "patience", "max_trial_hours", "retries"},
    "resources": {"cpus_per_worker", "gpus_per_worker", "concurrent_trials", "isolation"},
    "storage": True,
    "tracking": True,
    "ensemble": True,
}


def changed_keys(old: StudyConfig, new: StudyConfig) -> dict[str, tuple[object, object]]:
    """Keys that define a study's results and differ, with both values.

    Only names of files are compared, so that files may move; ``prepare`` and ``keep_backbone`` compare hashes. Test
    sets may be added: `tutti predict` makes the predictions of trials that have ended.
    """

    def defining(study: StudyConfig) -> dict[str, object]:
        document = study.model_dump(mode="json", exclude=FREE)
        for name, config in document["tasks"].items():
            task = map_task_paths(config, lambda _, path: Path(path).name)
            test = {"test": task["test"]} if isinstance(task["test"], str) else task["test"] or {}
            known = old.tasks[name].test_sets() if name in old.tasks else {}
            own = {each: file for each, file in test.items() if {each, f"test-{each}"} & known.keys()}
            document["tasks"][name] = {key: value for key, value in task.items() if key != "test"} | {"test": own}
        document["objective_weights"] = old.weights if proportional(study.weights, old.weights) else study.weights
        document["search"]["warm_start"] = [Path(older).name for older in document["search"]["warm_start"]]
        document = map_backbones(document, lambda _, path: Path(path).name if Path(path).is_absolute() else path)
        return tracking_metadata.flat(document)

    before, after = defining(old), defining(new)
    return {
        key: (before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }
