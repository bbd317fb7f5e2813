"""Trains the points of trials once more, on all labelled rows, for the evaluations that validation found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas import concat

from tutti import mirror
from tutti.bank.bank import Bank
from tutti.config.backbones import backbone_of
from tutti.config.folder import TrialFolder
from tutti.config.stages import overlay
from tutti.config.training import limit_of
from tutti.data.prepared import Prepared, write_rows
from tutti.orchestration.after.inference import Slots, check_one_node, worker_faults
from tutti.records import Scalar

if TYPE_CHECKING:
    from tutti.config.study import StudyConfig
    from tutti.training import EpochReport

_LOOKED_AT = 256  # rows of each task that a run evaluates on, which it trains on too: its scores say nothing


@dataclass(frozen=True)
class Refit:
    """A training to be done.

    Attributes:
        trial: the key of the trial whose point it is.
        name: of its folder and of its entry in the bank.
        number: of the trial.
        parameters: the point.
        seed: that takes the place of the trial's.
        until: the evaluation with which it ends.
    """

    trial: str
    name: str
    number: int
    parameters: Mapping[str, Scalar]
    seed: int
    until: int


def best_evaluation(trial: TrialFolder, *, folds: int | None, known: int) -> int:
    """The evaluation that a trial's weights are from; with folds the mean over them, rounded.

    Args:
        known: that of a trial without folds.

    Raises:
        StorageError: if a fold's checkpoint is damaged, or was removed.
    """
    from tutti.modeling.checkpoint import read_metadata

    if not folds:
        return known
    mirror.pull(trial.path)
    return max(round(sum(read_metadata(trial.fold(fold).best).epoch for fold in range(folds)) / folds), 1)


def whole(prepared: Prepared, folder: Path) -> Prepared:
    """The study's data with all labelled rows for training, written to ``folder``; other parts stay where they are.

    Its validation rows are some of those that are trained on.
    """
    parts = {task: dict(own) for task, own in prepared.parts.items()}
    for task in parts:
        train, held_out = prepared.rows(task, "train"), prepared.rows(task, "validation")
        if "fold" in train:  # it has all rows
            copies = np.where(train["fold"] < -1, train["fold"].max() + 1, 1)  # the same rows with each fold's labels
            train = train.assign(weight=(train["weight"] / copies).astype("float32")).drop(columns="fold")
        else:
            train = concat([train, held_out.drop(columns="group", errors="ignore").assign(weight=1.0)])
            train = train.astype({"weight": "float32"})
        few = held_out.sample(min(len(held_out), _LOOKED_AT), random_state=0)
        parts[task]["train"] = write_rows(train, folder, task, "train")
        parts[task]["validation"] = write_rows(few, folder, task, "validation")
    return replace(prepared, folder=folder, parts=parts)


def refit(
    study: StudyConfig,
    prepared: Prepared,
    jobs: Sequence[Refit],
    *,
    place: Path,
    cache: Path,
    slots: Slots,
    done: Callable[[Refit, list[EpochReport]], None],
) -> None:
    """Trains on the Ray that this process is connected to, as many at a time as there are slots.

    A worker that dies is started again, and its training goes on from its last state.

    Args:
        prepared: as of ``whole``.
        place: for a folder of each training, and the bank of their predictions.
        cache: for encoded rows.
        done: called as each training ends.

    Raises:
        TrialError: if a loss is not finite, or memory does not suffice.
        StorageError, BackboneError: as ``fine_tune`` does.
        ClusterError: if workers die repeatedly.
    """
    import ray

    check_one_node(place)

    def train(job: Refit) -> list[EpochReport]:
        return _train(study, prepared, job, place=place, cache=cache, threads=slots.cpus)

    remote = ray.remote(train).options(num_cpus=slots.cpus, num_gpus=slots.gpus, max_retries=2)
    waiting = list(jobs)
    running: dict[Any, Refit] = {}
    with worker_faults():
        while waiting or running:
            while waiting and len(running) < slots.workers:
                job = waiting.pop(0)
                running[remote.remote(job)] = job
            for result in ray.wait(list(running))[0]:
                done(running.pop(result), ray.get(result))


def _train(
    study: StudyConfig, prepared: Prepared, job: Refit, *, place: Path, cache: Path, threads: int
) -> list[EpochReport]:
    import torch

    from tutti.data.encode import load_parts
    from tutti.training import fine_tune

    torch.set_num_threads(threads)
    training = {**overlay(study.training, job.parameters), "seed": job.seed}
    backbone = backbone_of(study, job.parameters)
    parts: Any = load_parts(prepared, tokenizer=backbone, limit=limit_of(training), cache=cache)
    reports: list[EpochReport] = []
    result = fine_tune(
        backbone=backbone,
        tasks=prepared.tasks,
        parts=parts,
        training=training,
        folder=place / job.name,
        on_epoch=reports.append,
        key=job.name,
        number=job.number,
        until=job.until,
    )
    predictions = {
        task: {part: each for part, each in own.items() if part != "validation"}
        for task, own in result.predictions.items()
    }
    Bank(place / "bank").put(result.checkpoint, predictions)
    return reports
