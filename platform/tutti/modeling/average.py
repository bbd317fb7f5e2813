"""The mean of several checkpoints' weights, as a checkpoint of its own."""

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
    """What two checkpoints must have in common for the mean of their weights to be a model of their kind.

    Every file is compared with its SHA-256 first: a mean of damaged weights would load like any other.

    Raises:
        StorageError: where a file of the checkpoint is missing or not what it was, naming it.
    """
    metadata = check_checkpoint(folder)
    heads, adapter = metadata.heads, metadata.adapter
    with tensor_faults(folder):
        return {
            "tasks": metadata.tasks,
            "heads": (heads.pooling, heads.layers),  # dropout is off when a model predicts
            "adapter": None if adapter is None else replace(adapter, dropout=0.0),
            "base": metadata.base,
            "max_length": metadata.max_length,
            "weights": {file.name: dict(_slices(file)) for file in sorted(folder.glob(_WEIGHTS))},
        }


def _slices(file: Path) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    with safe_open(file, framework="pt") as tensors:
        for name in sorted(tensors.keys()):
            held = tensors.get_slice(name)
            yield name, (held.get_dtype(), tuple(held.get_shape()))


def write_mean(folder: Path, of: Sequence[Path], *, key: str) -> None:
    """Writes the mean of some checkpoints' weights to ``folder``, whole: a checkpoint without scores as yet.

    Means are taken in float64, one tensor at a time, so that memory does not grow with the number of checkpoints. All
    else is the first one's.

    Args:
        of: at least one, of one shape; see ``shape_of``.

    Raises:
        StorageError: where a file cannot be read or written.
    """
    with tensor_faults(folder), whole_folder(folder) as temporary:
        for file in sorted(of[0].iterdir()):
            if file.match(_WEIGHTS):
                _write_mean(temporary / file.name, [each / file.name for each in of])
            elif file.name != METADATA:
                shutil.copy2(file, temporary / file.name)
        own = {"key": key, "files": {file.name: sha256_of(file) for file in sorted(temporary.iterdir())}}
        (temporary / METADATA).write_text(_changed(of[0], own), encoding="utf-8")


def write_scores(folder: Path, *, score: float, task_scores: Mapping[str, float]) -> None:
    """Puts its scores into a checkpoint's metadata.

    Raises:
        StorageError: where the file system refuses.
    """
    write_whole(folder / METADATA, _changed(folder, {"score": score, "task_scores": dict(task_scores)}))


def _write_mean(file: Path, of: Sequence[Path]) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(each, framework="pt")) for each in of]
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


def _changed(folder: Path, own: Mapping[str, Any]) -> str:
    content = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    return json.dumps({**content, **own}, ensure_ascii=False, indent=1)
