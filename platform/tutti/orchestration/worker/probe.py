"""Fine-tunes a backbone on a study with the study's own settings, to see what it is worth: no search, no Ray."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tutti.config.folder import StudyFolder
from tutti.config.space import SearchSpace
from tutti.config.study import StudyConfig
from tutti.files import storage_faults
from tutti.orchestration.before.abilities import abilities_of, check_backbone
from tutti.orchestration.before.rows import prepare_rows
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.records import CheckpointRecord

_NOT_SCORED: dict[str, Any] = {"test": None, "unlabeled": None, "report_sets": {}, "submission": None}


def fixed_study(study: StudyConfig) -> StudyConfig:
    """The study without a search, and without rows that are predicted but not scored."""
    tasks = {name: task.model_copy(update=_NOT_SCORED) for name, task in study.tasks.items()}
    return study.model_copy(update={"tasks": tasks, "search_space": SearchSpace()})


def definition(study: StudyConfig) -> dict[str, Any]:
    """What two fixed studies have to share for their scores to be comparable, as JSON has it."""
    return study.model_dump(mode="json", include={"tasks", "objective_weights", "split", "training"})


def probe(study: StudyConfig, folder: StudyFolder, *, backbone: Path, seed: int, key: str) -> CheckpointRecord:
    """Fine-tunes the backbone once, and keeps of it the scores alone. Called again, it goes on where it was cut off.

    In an initialized ``torch.distributed`` group every rank calls it, and the rows are prepared.

    Args:
        study: of ``fixed_study``.
        folder: where the study's rows are prepared, unless they are already.
        key: tells this fine-tuning from others in the folder.

    Raises:
        ConfigError, TaskFileError: with the faults of all tasks, or if the backbone cannot handle the settings.
        StudyError: if the folder was prepared from other files or with other settings.
        BackboneError: if the backbone does not load.
        TrialError: if a loss or a prediction is not finite.
        StorageError: if a file cannot be written.
    """
    from tutti.training.machine.ranks import from_rank_zero, rank

    study = study.model_copy(update={"backbone": str(backbone)})
    check_backbone(study, abilities_of(study.backbone), begun=False)
    prepare_rows(study, folder)
    parameters: Mapping[str, Any] = {"seed": seed}
    made = fine_tune_once(
        study,
        folder,
        key=key,
        number=0,
        parameters=parameters,
        listener=TrialListener(),
        main=rank() == 0,
        smaller_batches=False,
    )
    from_rank_zero(lambda: _forget(folder, key))
    return made


def _forget(folder: StudyFolder, key: str) -> None:
    with storage_faults(folder.path):
        for place in (folder.trial(key).path, folder.bank / key):
            shutil.rmtree(place)
