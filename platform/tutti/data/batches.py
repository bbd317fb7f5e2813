"""Batches of one task each, drawn so that all ranks step together, padded to their own longest row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset, Sampler

from tutti.data.encode import EncodedPart


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """One rank's share of a global batch.

    Attributes:
        rows: ``(rows,)`` indices into the task's part; the same count on every rank.
        fillers: how many rows at the end are there only to make the shares equal; they weigh nothing.
        weight_sum: weights of all rows of the global batch, over all ranks.
    """

    task: str
    rows: np.ndarray
    fillers: int
    weight_sum: float


class TaskBatchSampler(Sampler[TaskBatch]):
    """Every row of every task once an epoch, shuffled; the order is a function of (seed, epoch) alone.

    A global batch has ``per_device_batch * world`` rows of one task. Its composition depends on that product only, so
    one worker with batch 2b and two workers with batch b see the same global batches.

    Args:
        weights: task to ``(rows,)`` weights in the loss.
    """

    def __init__(
        self, weights: Mapping[str, np.ndarray], *, per_device_batch: int, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        self._weights = dict(weights)
        self._global_batch = per_device_batch * world
        self._seed = seed
        self._rank = rank
        self._world = world
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, counted from 0, that the next iteration draws."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Global batches, and so steps of every rank, in one epoch."""
        return sum(-(-len(weights) // self._global_batch) for weights in self._weights.values())

    def __iter__(self) -> Iterator[TaskBatch]:
        generator = np.random.default_rng([self._seed, self._epoch])
        batches: list[tuple[str, np.ndarray]] = []
        for task, weights in self._weights.items():
            order = generator.permutation(len(weights))
            batches += [(task, order[i : i + self._global_batch]) for i in range(0, len(order), self._global_batch)]
        for index in generator.permutation(len(batches)):
            yield self._share(*batches[index])

    def _share(self, task: str, rows: np.ndarray) -> TaskBatch:
        mine = rows[self._rank :: self._world]
        fillers = -(-len(rows) // self._world) - len(mine)
        weight_sum = float(self._weights[task][rows].sum(dtype=np.float64))
        return TaskBatch(task, np.concatenate([mine, rows[:fillers]]), fillers, weight_sum)


class TokenRows:
    """The token ids of one part as two flat arrays, read from its Arrow table once."""

    def __init__(self, part: EncodedPart) -> None:
        table = part.encoded.with_format("arrow")[:]
        self._pad = part.pad_token_id
        self._ids, self._starts = _flatten(table.column("input_ids"))
        self._types = _flatten(table.column("token_type_ids"))[0] if "token_type_ids" in table.column_names else None

    def pad(self, rows: np.ndarray, *, multiple: int = 1) -> dict[str, torch.Tensor]:
        """``input_ids``, ``attention_mask`` and, where the tokenizer gives them, ``token_type_ids``.

        Each is ``(rows, width)`` int64; the width is the longest of these rows, rounded up to ``multiple``.
        """
        starts = self._starts[rows]
        lengths = self._starts[rows + 1] - starts
        width = -(-int(lengths.max()) // multiple) * multiple
        places = np.arange(width)
        mask = places < lengths[:, None]
        flat = (starts[:, None] + places)[mask]
        batch = {"input_ids": np.full(mask.shape, self._pad, dtype=np.int64), "attention_mask": mask.astype(np.int64)}
        batch["input_ids"][mask] = self._ids[flat]
        if self._types is not None:
            batch["token_type_ids"] = np.zeros(mask.shape, dtype=np.int64)
            batch["token_type_ids"][mask] = self._types[flat]
        return {name: torch.from_numpy(array) for name, array in batch.items()}


class TaskRows(Dataset):
    """The labelled rows of all tasks; a TaskBatch fetches a whole batch.

    Args:
        multiple: what batch widths are rounded up to: 8 on a GPU, 1 elsewhere.
    """

    def __init__(self, parts: Mapping[str, EncodedPart], *, multiple: int = 1) -> None:
        self._parts = dict(parts)
        self._tokens = {task: TokenRows(part) for task, part in parts.items()}
        self._multiple = multiple

    def __len__(self) -> int:
        return sum(len(part.ids) for part in self._parts.values())

    def __getitem__(self, batch: TaskBatch) -> dict[str, Any]:
        """The model's inputs as TokenRows pads them, and what the loss needs.

        ``task`` (str), ``labels`` ``(rows,)`` int64, ``weights`` ``(rows,)`` float32 with 0 for fillers, and
        ``weight_sum`` (float), the weight of the global batch that losses are normalised by.
        """
        part = self._parts[batch.task]
        assert part.labels is not None
        weights = part.weights[batch.rows].astype(np.float32)
        weights[len(weights) - batch.fillers :] = 0
        return {
            "task": batch.task,
            **self._tokens[batch.task].pad(batch.rows, multiple=self._multiple),
            "labels": torch.from_numpy(part.labels[batch.rows].astype(np.int64)),
            "weights": torch.from_numpy(weights),
            "weight_sum": batch.weight_sum,
        }

    def __getitems__(self, batch: TaskBatch) -> dict[str, Any]:
        """What a DataLoader calls with whatever its batch sampler yields."""
        return self[batch]


def _flatten(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """All values of a list column, ``(values,)``, and where each row starts, ``(rows + 1,)`` int64."""
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    lengths = [chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    starts = np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
    return np.concatenate([np.empty(0, dtype=np.int32), *values]), starts
