"""Shared by the benchmarks of whole studies: runs a study in this process, on the connected Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shared import BACKBONE

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.orchestration.driver.study import run_study
from tutti.orchestration.worker.trial import train_trial
from tutti.search.study_store import StudyStore
from tutti.workflows import stores, tracking_metadata
from tutti.workflows.base import StudyBase
from tutti.workflows.preparation import prepare_study
from tutti.workflows.tune import picture


def sst2(data: Path, folder: Path, *, rows: int | None = None) -> dict[str, Any]:
    """The task SST-2 of a study file. With ``rows``, files with this number of rows are written to ``folder``."""
    files = {"train": data / "SST-2" / "train.tsv", "validation": data / "SST-2" / "dev.tsv"}
    if rows is not None:
        files = {part: _few(file, folder, rows) for part, file in files.items()}
    return {"layout": "glue", "metric": "accuracy", **{part: str(file) for part, file in files.items()}}


def _few(file: Path, folder: Path, rows: int) -> Path:
    few = folder / file.name
    few.write_text("\n".join(file.read_text(encoding="utf8").splitlines()[: rows + 1]) + "\n", encoding="utf8")
    return few


def run(
    document: Mapping[str, Any],
    *,
    concurrent_trials: int = 1,
    train: Callable[..., None] = train_trial,
    began: Callable[[StudyFolder], None] = lambda folder: None,
    watch: Callable[[StudyStore], None] = lambda store: None,
) -> StudyFolder:
    """Prepares and runs a classification study on MiniLM as ``tutti tune`` does.

    Args:
        document: the study file without its backbone.
        began: called once the data is prepared.
        watch: called with the study's store after every event.
    """
    study = StudyConfig.model_validate({"backbone": BACKBONE, **document})
    assert study.storage.path is not None
    place = StudyFolder(study.storage.path / study.study)
    prepared = prepare_study(StudyBase(study, place), resume=False)
    began(place)
    store, tracker = stores.open_store(study, place), stores.open_tracker(study, place)
    tracker.start_study(parameters={}, tags=tracking_metadata.study_tags(prepared), files=[])
    run_study(
        study,
        place,
        store=store,
        tracker=tracker,
        concurrent_trials=concurrent_trials,
        tags={},
        watch=lambda: watch(store),
        picture=partial(picture, {task.name: task for task in prepared.tasks}),
        notify=print,
        train=train,
    )
    tracker.close()
    store.close()
    return place
