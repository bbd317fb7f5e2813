"""The mean of several checkpoints' weights, saved as a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tutti.files import sha256_of, whole_folder, write_whole
from tutti.modeling.checkpoint import METADATA, check_checkpoint, tensor_faults

_WEIGHTS = "*.safetensors"


def shape_of(folder: Path) -> dict[str, Any]:
    """The properties that checkpoints must share for the mean of their weights to be a valid model.

    Of an adapter the mean is that of its factors, whose product is not the mean of the products.

    Every file is verified against its SHA-256 first, because a mean of damaged weights would load without error.

    Raises:
        StorageError: if a file of the checkpoint is missing or modified, naming the file.
    """
    metadata = check_checkpoint(folder)
    heads, adapter = metadata.heads, metadata.adapter
    with tensor_faults(folder):
        return {
            "tasks": metadata.tasks,
            "heads": (heads.pooling, heads.layers),  # dropout does not affect predictions
            "adapter": None if adapter is None else replace(adapter, dropout=0.0),
            "base": metadata.base,
            "limits": [task.limit(metadata.limit) for task in metadata.tasks],
            "tokenizer": metadata.files.get("tokenizer.json"),
            "weights": {file.name: dict(_slices(file)) for file in sorted(folder.glob(_WEIGHTS))},
        }


def _slices(file: Path) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    with safe_open(file, framework="pt") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_slice(name)
            yield name, (tensor.get_dtype(), tuple(tensor.get_shape()))


def write_mean(folder: Path, checkpoints: Sequence[Path], *, key: str) -> None:
    """Writes the mean of checkpoints' weights to ``folder``, atomically, as a checkpoint without scores yet.

    Means are computed in float64, one tensor at a time, so that memory does not grow with the number of checkpoints.
    Everything else is copied from the first checkpoint.

    Args:
        checkpoints: at least one, all with the same ``shape_of``.

    Raises:
        StorageError: if a file cannot be read or written.
    """
    first = checkpoints[0]
    with tensor_faults(folder), whole_folder(folder) as temporary:
        for file in sorted(first.iterdir()):
            if file.match(_WEIGHTS):
                _write_mean(temporary / file.name, [checkpoint / file.name for checkpoint in checkpoints])
            elif file.name != METADATA:
                shutil.copy2(file, temporary / file.name)
        changes = {
            "key": key,
            "decisions": {},
            "files": {file.name: sha256_of(file) for file in sorted(temporary.iterdir())},
        }
        (temporary / METADATA).write_text(_updated_metadata(first, changes), encoding="utf-8")


def write_scores(
    folder: Path, *, score: float, task_scores: Mapping[str, float], decisions: Mapping[str, Sequence[float]]
) -> None:
    """Writes the scores, and the decisions that were scored, into a checkpoint's metadata.

    Raises:
        StorageError: if the file system refuses.
    """
    changes = {"score": score, "task_scores": dict(task_scores), "decisions": dict(decisions)}
    write_whole(folder / METADATA, _updated_metadata(folder, changes))


def _write_mean(file: Path, sources: Sequence[Path]) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(source, framework="pt")) for source in sources]
        means = {name: _mean(tensors.get_tensor(name) for tensors in opened) for name in sorted(opened[0].keys())}
        save_file(means, file, metadata=opened[0].metadata())


def _mean(tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    first = next(tensors)
    if not first.is_floating_point():  # counts and indices, which training does not change
        return first
    total, count = first.to(torch.float64), 1
    for tensor in tensors:
        total += tensor
        count += 1
    return (total / count).to(first.dtype)


def _updated_metadata(folder: Path, changes: Mapping[str, Any]) -> str:
    content = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    return json.dumps({**content, **changes}, ensure_ascii=False, indent=1)
