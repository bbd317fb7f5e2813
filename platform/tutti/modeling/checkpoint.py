"""A checkpoint: a folder that from_pretrained loads; complete only once tutti.json, written last, exists."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tutti.errors import Fault, StorageError, first_line
from tutti.files import sha256_of, storage_faults, whole_folder
from tutti.modeling import int8
from tutti.modeling.adapters import Adapter, Base, encoder_name, load_adapter_state
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, below, check_backbone_folder, load_encoder, no_progress_bars
from tutti.records import TextLimit
from tutti.tasks.task import Task

METADATA = "tutti.json"
FORMAT = 2  # of METADATA
HEADS = "heads.safetensors"
ADAPTER = "adapter_model.safetensors"
_CONFIG = "config.json"
_HELD = re.compile("(?<=/)(backbones/[0-9a-f]{16}/[^/]+)$")  # of a backbone, in a study's folder
# Of config.json. The classes of transformers for sequences or tokens would put a new head of random weights on the
# encoder, and only warn. One of no labels answers nothing, and the pipelines for texts end with this sentence.
_NO_CLASSIFIER: Mapping[str, object] = {
    "id2label": {},
    "label2id": {},
    "problem_type": None,
    "function_to_apply": "none: this folder is an encoder, and its heads, in heads.safetensors, are no class of "
    "transformers; predict with `tutti predict STUDY --checkpoint` or tutti.modeling.checkpoint.load_checkpoint",
}


@dataclass(frozen=True)
class CheckpointMetadata:
    """The content of tutti.json.

    Attributes:
        epoch: the evaluation, counted from 1, at which the weights were saved.
        score: the study's: the mean of ``task_scores``, weighted as the tasks are.
        task_scores: per task, its metric on the validation rows.
        files: every other file of the folder, to its SHA-256.
        adapter: the adapter trained instead of the encoder's weights; None if the weights were trained.
        base: the backbone under the adapter; None without an adapter.
        limit: of the tokens of a training row; in the file under the keys of ``TextLimit``.
        decisions: per task that is scored at decisions fitted to the validation rows, their parameters: of several
            labels the least probability of each. It decides at them alone, see ``Kind.tuned_alone``.
        global_attention: as in ``MultiTaskModel``.
    """

    tasks: tuple[Task, ...]
    heads: HeadOptions
    key: str
    number: int
    epoch: int
    score: float
    task_scores: Mapping[str, float]
    files: Mapping[str, str]
    limit: TextLimit
    adapter: Adapter | None
    base: Base | None
    global_attention: bool
    decisions: Mapping[str, Sequence[float]] = field(default_factory=dict)


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
    limit: TextLimit,
    decisions: Mapping[str, Sequence[float]] = MappingProxyType({}),
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes ``folder`` atomically, replacing its previous content.

    Encoder and tokenizer are saved for ``AutoModel`` and ``AutoTokenizer``, the heads in heads.safetensors, and the
    rest in tutti.json. With an adapter, only adapter_config.json and adapter_model.safetensors are saved of the
    encoder: ``AutoModel`` applies them to the backbone named in adapter_config.json. A pipeline of transformers, which
    knows none of the heads, ends with an error on either folder.

    Args:
        weights: of a sharded model, its gathered ``trained_state``.

    Raises:
        StorageError: if the file system refuses; ``folder`` is then unchanged.
    """
    with tensor_faults(folder), no_progress_bars(), whole_folder(folder) as temporary:
        model.encoder.save_pretrained(temporary, state_dict=None if weights is None else below("encoder.", weights))
        if (config := temporary / _CONFIG).is_file():  # an adapter leaves it to its backbone
            content = json.loads(config.read_text(encoding="utf-8"))
            config.write_text(json.dumps({**content, **_NO_CLASSIFIER}, indent=2), encoding="utf-8")
        tokenizer.save_pretrained(temporary)
        heads = model.heads.state_dict() if weights is None else below("heads.", weights)
        save_file({name: t.contiguous() for name, t in heads.items()}, temporary / HEADS)
        metadata = {
            "format": FORMAT,
            "tasks": [task.to_dict(folder) for task in tasks],
            "heads": asdict(model.head_options),
            "key": key,
            "number": number,
            "epoch": epoch,
            "score": score,
            "task_scores": dict(task_scores),
            "decisions": dict(decisions),
            "files": {file.name: sha256_of(file) for file in sorted(temporary.iterdir())},
            "adapter": None if model.adapter is None else asdict(model.adapter),
            "base": None if model.base is None else asdict(model.base),
            **asdict(limit),
            "global_attention": model.global_attention,
        }
        (temporary / METADATA).write_text(json.dumps(metadata, ensure_ascii=False, indent=1), encoding="utf-8")


def load_checkpoint(
    folder: Path, *, device: torch.device | None = None, attn_implementation: str | None = None
) -> tuple[MultiTaskModel, CheckpointMetadata]:
    """The model, in evaluation mode, and its metadata, after every file was verified against its SHA-256.

    Args:
        device: the device of quantised weights, the CPU by default. All other weights are on the CPU.
        attn_implementation: see ``load_encoder``.

    Raises:
        StorageError: if a file of the checkpoint or of a required backbone is missing or modified, naming the file.
        BackboneError: if a required backbone does not exist.
    """
    metadata = check_checkpoint(folder)
    base = metadata.base
    if base is not None:
        check_backbone_folder(base.backbone)
        for name, expected in base.files.items():
            remedy = "put back the backbone that the adapter was trained on"
            check_file(Path(base.backbone).expanduser() / name, expected, remedy=remedy)
    shape: dict[str, Any] = {
        "attn_implementation": attn_implementation,
        "pooler": metadata.heads.pooling == "pooler",
    }
    if (folder / int8.FILE).is_file():
        encoder = int8.load_int8(folder, **shape)
    else:
        encoder = load_encoder(
            str(folder) if base is None else base.backbone,
            adapter=metadata.adapter,
            device=device,
            revision=None if base is None else base.revision,
            **shape,
        )
    model = MultiTaskModel(
        encoder=encoder,
        tasks=metadata.tasks,
        heads=metadata.heads,
        adapter=metadata.adapter,
        base=base,
        global_attention=metadata.global_attention,
    )
    if metadata.adapter is not None:
        load_adapter_state(encoder, {encoder_name(key): value for key, value in load_file(folder / ADAPTER).items()})
    model.heads.load_state_dict(load_file(folder / HEADS))
    return model.eval(), metadata


def check_checkpoint(folder: Path) -> CheckpointMetadata:
    """The checkpoint's metadata, after every file was verified against its SHA-256.

    Raises:
        StorageError: if a file is missing or modified, naming the file.
    """
    metadata = read_metadata(folder)
    for name, expected in metadata.files.items():
        check_file(folder / name, expected)
    return metadata


def read_metadata(folder: Path) -> CheckpointMetadata:
    """The content of tutti.json, without checking the other files.

    Raises:
        StorageError: if tutti.json is missing or unreadable, so that the checkpoint is incomplete; or if it was pruned.
    """
    file = folder / METADATA
    if not file.is_file() and is_pruned(folder):
        got = "one whose weights were pruned to keep within storage.max_gigabytes"
        remedy = "use its predictions, which the bank has, or train with a higher limit"
        raise StorageError(Fault(str(folder), "hold a checkpoint", got, remedy))
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if (version := content.pop("format")) != FORMAT:
            remedy = "read it with the version of Tutti that wrote it, or train the trial again"
            raise StorageError(Fault(str(file), f"be of format {FORMAT}", repr(version), remedy))
        tasks = tuple(Task.from_dict(task, folder) for task in content.pop("tasks"))
        heads = HeadOptions(**content.pop("heads"))
        adapter, base = content.pop("adapter"), content.pop("base")
        # Checkpoints of earlier versions lack later keys.
        limit = TextLimit(**{key.name: content.pop(key.name) for key in fields(TextLimit) if key.name in content})
        return CheckpointMetadata(
            tasks=tasks,
            heads=heads,
            limit=limit,
            adapter=None if adapter is None else Adapter(**adapter),
            base=None if base is None else _moved(Base(**base), folder),
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


def _moved(base: Base, checkpoint: Path) -> Base:
    """The base where it is now, if it is one that the study of a checkpoint holds and its folder has moved."""
    held = _HELD.search(base.backbone)
    study = next((each for each in checkpoint.parents if (each / "study.json").is_file()), None)
    if not held or not study or Path(base.backbone).is_dir():
        return base
    return replace(base, backbone=str(study / held[1]))


def prune_checkpoint(folder: Path) -> None:
    """Removes a checkpoint, after moving its metadata, which takes no space, to ``best.pruned.json`` beside it.

    Raises:
        StorageError: if the file system refuses.
    """
    with storage_faults(folder):
        if (folder / METADATA).is_file():
            (folder / METADATA).replace(_pruned_metadata(folder))
        shutil.rmtree(folder)


def is_pruned(folder: Path) -> bool:
    """Whether ``prune_checkpoint`` has removed, or started to remove, the checkpoint in this folder."""
    return _pruned_metadata(folder).is_file() and not (folder / METADATA).is_file()


def _pruned_metadata(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.pruned.json")


def check_file(file: Path, expected: str, *, remedy: str = "train the trial again") -> None:
    """Verifies a file against its SHA-256.

    Raises:
        StorageError: if the file is missing, unreadable or modified.
    """
    try:
        unchanged = sha256_of(file) == expected
    except OSError as error:
        got = error.strerror or str(error)
        raise StorageError(Fault(str(file), "be there in a complete checkpoint", got, remedy)) from error
    if not unchanged:
        raise StorageError(Fault(str(file), "be what it was", "changed content", remedy))


@contextmanager
def tensor_faults(path: Path) -> Iterator[None]:
    """Converts errors of a full disk that are no OSError, from safetensors, torch and tokenizers, to a StorageError."""
    try:
        yield
    except Exception as error:
        # torch's messages contain the name of its zip writer or of the C++ stream, but not the system's reason.
        marks = ["inline_container", "PytorchStreamWriter", "basic_ios"] if isinstance(error, RuntimeError) else []
        if type(error) is Exception:  # as tokenizers raises
            marks = ["os error"]
        if not isinstance(error, SafetensorError) and not any(mark in str(error) for mark in marks):
            raise
        got = f"a write that failed ({first_line(error)})"
        remedy = "free some space or name another folder"
        raise StorageError(Fault(str(path), "be written whole", got, remedy)) from error
