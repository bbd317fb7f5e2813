"""Training states to resume from: one folder each, complete only once its manifest, written last, exists."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.constants import OPTIMIZER_NAME
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME

from tutti.errors import Fault, StorageError
from tutti.files import sha256_of, whole_folder
from tutti.modeling.checkpoint import check_checkpoint, check_file, tensor_faults
from tutti.records import Usage
from tutti.training.loop.report import EpochReport
from tutti.training.loop.trainer import MultiTaskTrainer
from tutti.training.machine.precision import name_of
from tutti.training.machine.ranks import from_rank_zero, gathered, rank, world_size
from tutti.training.machine.sharding import whole_optimizer_state, whole_state

MANIFEST = "manifest.json"
REPORT = "report"  # key of a manifest: the evaluation that the state was saved after
USAGE = "usage"  # likewise
FORMAT = 4  # of states; since 4 the optimizer state covers only the trained parameters
MODEL, AVERAGE, PROGRESS = "model.safetensors", "average.safetensors", "progress.json"
KEPT_STATES = 2
_NAME = re.compile(r"stage-(\d+)-step-(\d+)")
_START = re.compile(r"start-(\d+)")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """The progress of a run.

    Attributes:
        stage: counted from 0.
        step: optimizer steps of this stage.
        epoch: completed epochs, over all stages.
        epochs_before: epochs of the earlier stages.
        steps_before: optimizer steps of the earlier stages.
        best_score: the best score so far, by which the best checkpoint was kept; with ``best_by: loss`` the lowest loss
            with a minus.
        done: whether the stage has ended.
        waited: evaluations of this stage since the last one that was better, see ``early_stopping_patience``.
    """

    stage: int
    step: int
    epoch: int
    epochs_before: int
    steps_before: int
    best_score: float
    done: bool
    waited: int = 0


@dataclass(frozen=True)
class ResumeState:
    """A complete state on disk; ``folder`` is what ``Trainer.train(resume_from_checkpoint=...)`` takes.

    Attributes:
        report: of the evaluation that the state was saved after, if it was and is the run's own.
        usage: what the training steps up to here have taken.
    """

    folder: Path
    position: Position
    precision: str
    report: EpochReport | None = None
    usage: Usage = field(default_factory=Usage)


def save_state(
    folder: Path, trainer: MultiTaskTrainer, position: Position, report: EpochReport | None, usage: Usage
) -> None:
    """Writes ``folder/stage-S-step-N`` atomically from rank 0; removes all but the newest two. All ranks must call it.

    A state holds the model, weight average, optimizer, scheduler, loss scaler, loss balance, trainer state (which
    determines the sampler's position), and each rank's random states and loss sums of the current epoch; after an
    evaluation also its report, since the run may be killed before it sends it.

    Raises:
        StorageError: on every rank, if the file system refuses.
    """
    random_states: dict[str, bytes] = {}
    for rank_states in gathered(_random_states(trainer)):
        random_states |= rank_states
    progress = {"balance": trainer.balance.state(), "sums": gathered(trainer.loss_sums()), "logged": trainer.logged}
    tensors = {MODEL: whole_state(trainer.model.trained_state())}
    if trainer.average is not None:
        tensors[AVERAGE] = whole_state(trainer.average.state_dict())
    optimizer = whole_optimizer_state(trainer)
    manifest = {"format": FORMAT, "position": asdict(position), "workers": world_size()}
    manifest |= {"precision": name_of(trainer.args), REPORT: report and asdict(report), USAGE: asdict(usage)}
    path = folder / f"stage-{position.stage}-step-{position.step}"
    from_rank_zero(lambda: _write(path, trainer, tensors, optimizer, random_states, progress, manifest))


def newest_state(folder: Path, *, best: Path) -> tuple[ResumeState | None, list[str]]:
    """The newest usable state, or None, and a message for each newer state that is skipped, with the reason.

    No state is usable if a checkpoint that the run still needs is damaged: the best one so far, or the initial weights
    of its stage. An older state would not help, since a later stage may have replaced the best checkpoint since.

    Raises:
        StorageError: on every rank, if the file system refuses to read a file, which may pass.
    """
    return from_rank_zero(lambda: _newest(folder, best))


def stage_start(folder: Path, stage: int) -> Path:
    """The initial weights of a stage, a checkpoint."""
    return folder / f"start-{stage}"


def remove_later(folder: Path, state: ResumeState | None) -> None:
    """Removes what a run from ``state`` writes anew: later states, which were skipped, and later stages' weights.

    Later states would rank above the new ones, of which only the newest are kept.
    """
    stage, step = (0, -1) if state is None else (state.position.stage, state.position.step)
    later = [path for path in states(folder) if _place(path) > (stage, step)]
    begun = stage + 1 if state is not None and state.position.done else stage
    for path in folder.glob("start-*"):
        if (match := _START.fullmatch(path.name)) and int(match[1]) > begun:
            later.append(path)
    for path in later:
        shutil.rmtree(path, ignore_errors=True)


def load_state(state: ResumeState, trainer: MultiTaskTrainer) -> None:
    """Restores weights, weight average, loss balance and loss sums; the Trainer itself loads the rest of the state."""
    trainer.model.load_trained_state(load_file(state.folder / MODEL))
    if trainer.average is not None:
        trainer.average.load_state_dict(load_file(state.folder / AVERAGE))
    progress = json.loads((state.folder / PROGRESS).read_text(encoding="utf-8"))
    trainer.balance.load(progress["balance"])
    trainer.load_sums(progress["sums"][rank()])
    trainer.logged = [(step, values) for step, values in progress["logged"]]


def _random_states(trainer: MultiTaskTrainer) -> dict[str, bytes]:
    """This rank's random states: file name to content."""
    with tempfile.TemporaryDirectory() as folder:
        trainer._save_rng_state(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _write(
    path: Path,
    trainer: MultiTaskTrainer,
    tensors: Mapping[str, dict[str, Tensor]],
    optimizer: Mapping[str, Any] | None,
    random_states: Mapping[str, bytes],
    progress: Mapping[str, Any],
    manifest: Mapping[str, Any],
) -> None:
    with tensor_faults(path), whole_folder(path) as temporary:
        for name, state in tensors.items():
            save_file(state, temporary / name)
        if optimizer is None:
            trainer._save_optimizer_and_scheduler(str(temporary))
        else:
            torch.save(optimizer, temporary / f"{OPTIMIZER_NAME}.bin")
            torch.save(trainer.lr_scheduler.state_dict(), temporary / SCHEDULER_NAME)
        trainer._save_scaler(str(temporary))
        trainer.state.save_to_json(str(temporary / TRAINER_STATE_NAME))
        (temporary / PROGRESS).write_text(json.dumps(progress), encoding="utf-8")
        for name, content in random_states.items():
            (temporary / name).write_bytes(content)
        files = {file.name: sha256_of(file) for file in sorted(temporary.iterdir())}
        (temporary / MANIFEST).write_text(json.dumps({**manifest, "files": files}, indent=1), encoding="utf-8")
    for outdated in states(path.parent)[KEPT_STATES:]:
        shutil.rmtree(outdated, ignore_errors=True)


def states(folder: Path) -> list[Path]:
    """Folders of states, newest first."""
    return sorted((path for path in folder.glob("stage-*") if _NAME.fullmatch(path.name)), key=_place, reverse=True)


def _place(state: Path) -> tuple[int, int]:
    """Stage and step."""
    match = _NAME.fullmatch(state.name)
    assert match
    return int(match[1]), int(match[2])


def whole_manifest(path: Path) -> dict[str, Any]:
    """A state's manifest, after all files were compared with it.

    Raises:
        StorageError, OSError, ValueError, KeyError, TypeError: if the state is incomplete or modified.
    """
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except OSError as error:  # of the file system, which may pass: no reason to give the state up
        remedy = "see whether the disk or its server is well, and go on with --resume"
        raise StorageError(Fault(str(path / MANIFEST), "be readable", error.strerror or str(error), remedy)) from error
    manifest: dict[str, Any] = json.loads(text)
    for name, expected in manifest["files"].items():
        check_file(path / name, expected)
    return manifest


def _newest(folder: Path, best: Path) -> tuple[ResumeState | None, list[str]]:
    notices: list[str] = []
    for path in states(folder):
        try:
            state = _read_state(path)
            break
        except StorageError as error:
            check_readable(error)
            notices.append(f"the state {path} is passed over: {error}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            notices.append(f"the state {path} is passed over: its manifest does not serve: {error}")
        logger.warning(notices[-1])
    else:
        return None, notices
    try:
        _check_checkpoints(state, best)
    except StorageError as error:
        check_readable(error)
        notices.append(f"no state in {folder} is of use: {error}")
        logger.warning(notices[-1])
        return None, notices
    return state, notices


def _check_checkpoints(state: ResumeState, best: Path) -> None:
    """Raises a StorageError if a checkpoint that a run from this state needs is damaged, missing, or too new."""
    position, folder = state.position, state.folder.parent
    if position.best_score > -math.inf:
        check_checkpoint(best)
    own, following = (stage_start(folder, stage) for stage in (position.stage, position.stage + 1))
    if position.done:
        if following.exists():
            check_checkpoint(following)
        return
    if position.stage > 0:
        check_checkpoint(own)
    if following.exists():
        got, remedy = f"{following.name} beside it", "train the stage again"
        raise StorageError(Fault(str(state.folder), "be of the latest stage that has begun", got, remedy))


def check_readable(error: StorageError) -> None:
    """Raises the error if it may pass, so that no state is given up because of a fault of the file system."""
    if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
        raise error


def _read_state(path: Path) -> ResumeState:
    manifest = whole_manifest(path)
    if manifest["format"] != FORMAT:
        raise ValueError("it was made by another version of Tutti")
    if manifest["workers"] != world_size():
        raise ValueError(f"it was made by {manifest['workers']} workers, and {world_size()} are here")
    report, usage = None, Usage(**manifest.get(USAGE, {}))  # states of earlier versions have none
    if fields := manifest.get(REPORT):
        steps = tuple((step, values) for step, values in fields["steps"])
        report = EpochReport(**{**fields, "steps": steps, "repeated": True, "usage": usage})
    return ResumeState(path, Position(**manifest["position"]), manifest["precision"], report, usage)
