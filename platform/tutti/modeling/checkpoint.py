"""A checkpoint: a folder that from_pretrained loads; complete only when tutti.json, written last, is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tutti.errors import Fault, StorageError
from tutti.files import sha256_of, storage_faults, whole_folder
from tutti.modeling.adapters import Adapter, Base, load_adapter_state, own_name
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, below, check_backbone_folder, load_encoder, no_progress_bars
from tutti.tasks.task import Task

METADATA = "tutti.json"
HEADS = "heads.safetensors"
ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True)
class CheckpointMetadata:
    """What tutti.json says.

    Attributes:
        epoch: the epoch or evaluation, counted from 1, after which the weights were saved.
        score: the mean of ``task_scores``.
        task_scores: per task, its metric on the validation rows.
        files: every other file of the folder to its SHA-256.
        adapter: what was trained in the place of the encoder's weights; none where those were.
        base: what the adapter lies on; none without one.
        max_length: most tokens of a row that it was trained on.
    """

    tasks: tuple[Task, ...]
    heads: HeadOptions
    key: str
    number: int
    epoch: int
    score: float
    task_scores: Mapping[str, float]
    files: Mapping[str, str]
    max_length: int
    adapter: Adapter | None = None
    base: Base | None = None


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
    max_length: int,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes ``folder`` whole, in the place of what was there.

    The encoder and the tokenizer lie there as ``AutoModel`` and ``AutoTokenizer`` expect them, the heads in
    heads.safetensors, and the rest in tutti.json. With an adapter the encoder is adapter_config.json and
    adapter_model.safetensors, which ``AutoModel`` lays over the backbone that the first names: no other weight is kept.

    Args:
        weights: of a model that holds shards of its own, its ``trained_state`` put together.

    Raises:
        StorageError: where the file system refuses; ``folder`` is then as it was before.
    """
    with tensor_faults(folder), no_progress_bars(), whole_folder(folder) as temporary:
        model.encoder.save_pretrained(temporary, state_dict=None if weights is None else below("encoder.", weights))
        tokenizer.save_pretrained(temporary)
        heads = model.heads.state_dict() if weights is None else below("heads.", weights)
        save_file({name: t.contiguous() for name, t in heads.items()}, temporary / HEADS)
        metadata = {
            "format": 1,
            "tasks": [task.to_dict() for task in tasks],
            "heads": asdict(model.head_options),
            "key": key,
            "number": number,
            "epoch": epoch,
            "score": score,
            "task_scores": dict(task_scores),
            "files": {file.name: sha256_of(file) for file in sorted(temporary.iterdir())},
            "adapter": None if model.adapter is None else asdict(model.adapter),
            "base": None if model.base is None else asdict(model.base),
            "max_length": max_length,
        }
        (temporary / METADATA).write_text(json.dumps(metadata, ensure_ascii=False, indent=1), encoding="utf-8")


def load_checkpoint(
    folder: Path, *, device: torch.device | None = None, attn_implementation: str | None = None
) -> tuple[MultiTaskModel, CheckpointMetadata]:
    """The model, in evaluation mode, and its metadata, after every file was compared with its SHA-256.

    Args:
        device: where quantised weights are made, and stay; the CPU by default. All others are on the CPU.
        attn_implementation: as load_encoder takes it.

    Raises:
        StorageError: where a file, of the backbone too if it is needed, is missing or not what it was, naming it.
        BackboneError: where a backbone that is needed is not there.
    """
    metadata = check_checkpoint(folder)
    base = metadata.base
    if base is not None:
        check_backbone_folder(base.backbone)
        for name, expected in base.files.items():
            remedy = "put back the backbone that the adapter was trained on"
            check_file(Path(base.backbone).expanduser() / name, expected, remedy=remedy)
    encoder = load_encoder(
        str(folder) if base is None else base.backbone,
        adapter=metadata.adapter,
        device=device,
        revision=None if base is None else base.revision,
        attn_implementation=attn_implementation,
    )
    model = MultiTaskModel(
        encoder=encoder, tasks=metadata.tasks, heads=metadata.heads, adapter=metadata.adapter, base=base
    )
    if metadata.adapter is not None:
        load_adapter_state(encoder, {own_name(key): value for key, value in load_file(folder / ADAPTER).items()})
    model.heads.load_state_dict(load_file(folder / HEADS))
    return model.eval(), metadata


def check_checkpoint(folder: Path) -> CheckpointMetadata:
    """Its metadata, after every file was compared with its SHA-256.

    Raises:
        StorageError: where a file is missing or not what it was, naming it.
    """
    metadata = read_metadata(folder)
    for name, expected in metadata.files.items():
        check_file(folder / name, expected)
    return metadata


def read_metadata(folder: Path) -> CheckpointMetadata:
    """What tutti.json says, without a look at the other files.

    Raises:
        StorageError: where it is missing or unreadable: the checkpoint is then not complete; or where it was pruned.
    """
    file = folder / METADATA
    if not file.is_file() and is_pruned(folder):
        got = "one whose weights were pruned to keep within storage.max_gigabytes"
        remedy = "use its predictions, which the bank has, or train with a higher limit"
        raise StorageError(Fault(str(folder), "hold a checkpoint", got, remedy))
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        content.pop("format")
        tasks = tuple(Task.from_dict(task) for task in content.pop("tasks"))
        heads = HeadOptions(**content.pop("heads"))
        adapter, base = content.pop("adapter", None), content.pop("base", None)
        return CheckpointMetadata(
            tasks=tasks,
            heads=heads,
            adapter=None if adapter is None else Adapter(**adapter),
            base=None if base is None else Base(**base),
            **content,
        )
    except OSError as error:
        got = error.strerror or str(error)
        raise StorageError(
            Fault(str(file), "be there in a complete checkpoint", got, "train the trial again")
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(
            Fault(str(file), "be what was written", "something else", "train the trial again")
        ) from error


def prune_checkpoint(folder: Path) -> None:
    """Removes a checkpoint. Its metadata goes first, to the file ``best.pruned.json`` beside it: it takes no space.

    Raises:
        StorageError: where the file system refuses.
    """
    with storage_faults(folder):
        if (folder / METADATA).is_file():
            (folder / METADATA).replace(_note(folder))
        shutil.rmtree(folder)


def is_pruned(folder: Path) -> bool:
    """Whether a checkpoint was here that ``prune_checkpoint`` has removed, or begun to."""
    return _note(folder).is_file() and not (folder / METADATA).is_file()


def _note(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.pruned.json")


def check_file(file: Path, expected: str, *, remedy: str = "train the trial again") -> None:
    """Compares a file with its SHA-256.

    Raises:
        StorageError: where the file is missing, cannot be read, or is another.
    """
    try:
        same = sha256_of(file) == expected
    except OSError as error:
        got = error.strerror or str(error)
        raise StorageError(Fault(str(file), "be there in a complete checkpoint", got, remedy)) from error
    if not same:
        raise StorageError(Fault(str(file), "be what it was", "changed content", remedy))


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
