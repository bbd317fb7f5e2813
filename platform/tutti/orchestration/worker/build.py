"""Builds a training from a study's config: single runs and trials of a study go through the same function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tutti import mirror
from tutti.bank.bank import Bank
from tutti.config.backbones import backbone_of
from tutti.config.folder import StudyFolder
from tutti.config.stages import overlay
from tutti.config.study import StudyConfig
from tutti.config.training import limit_of
from tutti.data.prepared import load_prepared
from tutti.files import check_no_link
from tutti.orchestration.worker.folds import fine_tune_folds
from tutti.orchestration.worker.memory import with_smaller_batches
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.records import CheckpointRecord, Scalar


def fine_tune_once(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    key: str,
    number: int,
    parameters: Mapping[str, Scalar],
    listener: TrialListener,
    main: bool,
    smaller_batches: bool,
) -> CheckpointRecord:
    """Fine-tunes on the study's prepared data and puts the best checkpoint's predictions into the bank.

    Needs no Ray. In an initialized ``torch.distributed`` group every rank calls it. With folds it fine-tunes once per
    fold, and puts out-of-fold predictions of all training rows into the bank.

    Args:
        main: whether this process is rank 0.
        smaller_batches: train with less memory per step, see ``with_smaller_batches``.

    Raises:
        TrialError: if a loss or a prediction is not finite, on every rank.
        TrialMemoryError: if the batches cannot be made smaller.
        StorageError: if a file cannot be written or read.
        BackboneError: if the backbone does not load.
    """
    from tutti.data.encode import load_parts
    from tutti.training import fine_tune

    trial = folder.trial(key).path
    for path in (trial, *trial.glob("*"), *trial.glob("fold-*/*")):
        check_no_link(path)
    training = overlay(study.training, parameters)
    prepared = load_prepared(folder.data)
    backbone = backbone_of(study, parameters)
    parts = load_parts(prepared, tokenizer=backbone, limit=limit_of(training), cache=folder.encoded)
    if smaller_batches:
        apart = training.get("pooling") == "bi_encoder"
        lengths = [parts[task.name]["train"].batch_lengths(apart=apart and task.pair) for task in prepared.tasks]
        training = with_smaller_batches(training, lengths=lengths)
    settings: dict[str, Any] = {
        "backbone": backbone,
        "tasks": prepared.tasks,
        "parts": parts,
        "training": training,
        "folder": trial,
        "key": key,
        "number": number,
        "on_notice": listener.on_notice,
        "on_step": listener.on_step,
        # A population's states are copied as soon as they are reported.
        "on_saved": partial(mirror.push, trial, wait=study.search.scheduler == "pbt"),
    }
    if study.split.folds:
        folds = {task: prepared.folds(task) for task in parts}
        result = fine_tune_folds(**settings, folds=folds, on_epoch=listener.on_fold_epoch, on_fold=listener.on_fold)
    else:
        result = fine_tune(**settings, on_epoch=listener.on_epoch)
    if main:
        Bank(folder.bank).put(result.checkpoint, result.predictions)
        mirror.push(trial)
        mirror.push(folder.bank / key)
    return result.checkpoint
