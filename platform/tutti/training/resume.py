"""States that a run can go on from: one folder per epoch, complete only when its manifest, written last, is there."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file, save_model
from transformers.trainer import TRAINER_STATE_NAME

from tutti.errors import StorageError
from tutti.files import sha256_of, whole_folder
from tutti.modeling.checkpoint import check_file, tensor_faults
from tutti.training.ranks import from_rank_zero, gathered
from tutti.training.trainer import MultiTaskTrainer

MANIFEST = "manifest.json"
AVERAGE = "average.safetensors"
KEPT = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResumeState:
    """A whole state on disk.

    Attributes:
        folder: what ``Trainer.train(resume_from_checkpoint=...)`` takes.
        epoch: the last epoch it holds, counted from 1.
        best_score: the best score up to then.
        done: whether no epoch is left.
    """

    folder: Path
    epoch: int
    best_score: float
    done: bool


def save_state(folder: Path, trainer: MultiTaskTrainer, *, epoch: int, best_score: float, done: bool) -> None:
    """Writes ``folder/epoch-N`` whole from rank 0, and removes all but the newest two. Every rank must call it.

    Model, weight average, optimizer, scheduler, loss scaler, trainer state and the random states of every rank.

    Raises:
        StorageError: on every rank, where the file system refuses.
    """
    random_states: dict[str, bytes] = {}
    for states in gathered(_own_random_states(trainer)):
        random_states |= states
    facts = {"format": 1, "epoch": epoch, "best_score": best_score, "done": done}
    from_rank_zero(lambda: _write(folder, trainer, random_states, facts))


def newest_state(folder: Path) -> ResumeState | None:
    """The newest whole state, or none. One that is half-written or changed is passed over with a warning."""
    return from_rank_zero(lambda: _newest(folder))


def load_average(state: ResumeState, trainer: MultiTaskTrainer) -> None:
    """Puts the saved weight average into the trainer; all else is loaded by the Trainer itself."""
    if trainer.average is not None:
        trainer.average.load_state_dict(load_file(state.folder / AVERAGE))


def _own_random_states(trainer: MultiTaskTrainer) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        trainer._save_rng_state(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _write(
    folder: Path, trainer: MultiTaskTrainer, random_states: Mapping[str, bytes], facts: Mapping[str, Any]
) -> None:
    path = folder / f"epoch-{facts['epoch']}"
    with tensor_faults(path), whole_folder(path) as temporary:
        save_model(trainer.model, str(temporary / "model.safetensors"))
        trainer._save_optimizer_and_scheduler(str(temporary))
        trainer._save_scaler(str(temporary))
        trainer.state.save_to_json(str(temporary / TRAINER_STATE_NAME))
        if trainer.average is not None:
            save_file(trainer.average.state_dict(), temporary / AVERAGE)
        for name, content in random_states.items():
            (temporary / name).write_bytes(content)
        manifest = {**facts, "files": {file.name: sha256_of(file) for file in sorted(temporary.iterdir())}}
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for old in _states(folder)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _states(folder: Path) -> list[Path]:
    """Folders of states, newest first."""
    found = [path for path in folder.glob("epoch-*") if path.name.removeprefix("epoch-").isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("epoch-")), reverse=True)


def _newest(folder: Path) -> ResumeState | None:
    for path in _states(folder):
        try:
            return _checked(path)
        except StorageError as error:
            logger.warning("The state %s is passed over: %s", path, error)
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("The state %s is passed over: its manifest cannot be read: %s", path, error)
    return None


def _checked(path: Path) -> ResumeState:
    manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    for name, expected in manifest["files"].items():
        check_file(path / name, expected)
    return ResumeState(path, int(manifest["epoch"]), float(manifest["best_score"]), bool(manifest["done"]))
