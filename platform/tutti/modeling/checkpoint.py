"""A checkpoint: a folder that from_pretrained loads; complete only when tutti.json, written last, is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase

from tutti.errors import Fault, StorageError
from tutti.files import sha256_of, whole_folder
from tutti.modeling.model import MultiTaskModel, load_encoder, no_progress_bars
from tutti.tasks.task import Task

METADATA = "tutti.json"
HEADS = "heads.safetensors"


@dataclass(frozen=True)
class CheckpointMetadata:
    """What tutti.json says.

    Attributes:
        epoch: the epoch, counted from 1, after which the weights were saved.
        score: the mean of ``task_scores``.
        task_scores: per task, its metric on the validation rows.
        files: every other file of the folder to its SHA-256.
    """

    tasks: tuple[Task, ...]
    pooling: str
    head_dropout: float
    key: str
    number: int
    epoch: int
    score: float
    task_scores: Mapping[str, float]
    files: Mapping[str, str]


def save_checkpoint(
    folder: Path,
    *,
    model: MultiTaskModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[Task],
    key: str,
    number: int,
    epoch: int,
    score: float,
    task_scores: Mapping[str, float],
) -> None:
    """Writes ``folder`` whole, in the place of what was there.

    The encoder and the tokenizer lie there as ``AutoModel`` and ``AutoTokenizer`` expect them, the heads in
    heads.safetensors, and the rest in tutti.json.

    Raises:
        StorageError: where the file system refuses; ``folder`` is then as it was before.
    """
    with tensor_faults(folder), no_progress_bars(), whole_folder(folder) as temporary:
        model.encoder.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        save_file({name: t.contiguous() for name, t in model.heads.state_dict().items()}, temporary / HEADS)
        metadata = {
            "format": 1,
            "tasks": [task.to_dict() for task in tasks],
            "pooling": model.pooling,
            "head_dropout": model.head_dropout,
            "key": key,
            "number": number,
            "epoch": epoch,
            "score": score,
            "task_scores": dict(task_scores),
            "files": {file.name: sha256_of(file) for file in sorted(temporary.iterdir())},
        }
        (temporary / METADATA).write_text(json.dumps(metadata, ensure_ascii=False, indent=1), encoding="utf-8")


def load_checkpoint(folder: Path) -> tuple[MultiTaskModel, CheckpointMetadata]:
    """The model, in evaluation mode on the CPU, and its metadata, after every file was compared with its SHA-256.

    Raises:
        StorageError: where a file is missing or not what was written, naming it.
    """
    metadata = read_metadata(folder)
    for name, expected in metadata.files.items():
        check_file(folder / name, expected)
    model = MultiTaskModel(
        encoder=load_encoder(str(folder)),
        classes={task.name: len(task.class_names) for task in metadata.tasks},
        pooling=metadata.pooling,
        head_dropout=metadata.head_dropout,
    )
    model.heads.load_state_dict(load_file(folder / HEADS))
    return model.eval(), metadata


def read_metadata(folder: Path) -> CheckpointMetadata:
    """What tutti.json says, without a look at the other files.

    Raises:
        StorageError: where it is missing or unreadable: the checkpoint is then not complete.
    """
    file = folder / METADATA
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        content.pop("format")
        tasks = tuple(Task.from_dict(task) for task in content.pop("tasks"))
        return CheckpointMetadata(tasks=tasks, **content)
    except OSError as error:
        got = error.strerror or str(error)
        raise StorageError(
            Fault(str(file), "be there in a complete checkpoint", got, "train the trial again")
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            Fault(str(file), "be what was written", "something else", "train the trial again")
        ) from error


def check_file(file: Path, expected: str) -> None:
    """Compares a file with its SHA-256.

    Raises:
        StorageError: where the file is missing, cannot be read, or is another.
    """
    try:
        same = sha256_of(file) == expected
    except OSError as error:
        got = error.strerror or str(error)
        raise StorageError(
            Fault(str(file), "be there in a complete checkpoint", got, "train the trial again")
        ) from error
    if not same:
        raise StorageError(Fault(str(file), "be what was written", "changed content", "train the trial again"))


@contextmanager
def tensor_faults(path: Path) -> Iterator[None]:
    """Turns what safetensors and torch raise when a disk is full, no OSError, into a StorageError."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        # torch's zip writer names itself, or the C++ stream it writes to, and never the system's reason.
        marks = ("inline_container", "PytorchStreamWriter", "basic_ios")
        if not isinstance(error, SafetensorError) and not any(mark in str(error) for mark in marks):
            raise
        got = f"a write that failed ({str(error).splitlines()[0]})"
        remedy = "free some space or name another folder"
        raise StorageError(Fault(str(path), "be written whole", got, remedy)) from error
