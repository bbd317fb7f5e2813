"""Batches of one task each, drawn so that all ranks step together, padded to their own longest row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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


# Rows of a batch differ in length by no more than this share, but for the edges; what is padded is about half of it.
BLUR = 0.06


@dataclass(frozen=True, eq=False)
class BatchRows:
    """The rows of one task, as batches are cut from them.

    Attributes:
        lengths: ``(rows,)`` tokens of each.
        weights: ``(rows,)`` of each in the loss.
    """

    lengths: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class BatchPlan:
    """How batches are cut and how often each task's come.

    Attributes:
        per_device_batch: rows of a rank's batch.
        group_by_length: sort rows by length, blurred anew in each epoch, before they are cut.
        max_tokens: of a rank's batch, padding included; it then decides how many rows a batch has. A row that is longer
            is a batch of its own.
        multiple: what a batch's width is rounded up to.
        sampling: ``proportional``, ``temperature``, ``uniform`` or ``weights``.
        temperature: of ``temperature``.
        weights: of ``weights``; a task that is not named has 1.
    """

    per_device_batch: int
    group_by_length: bool = True
    max_tokens: int | None = None
    multiple: int = 1
    sampling: str = "proportional"
    temperature: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)

    def slots(self, lengths: np.ndarray, world: int) -> np.ndarray:
        """``(batches + 1,)`` int64: where the batches of any epoch begin in its order of rows, and where the last ends.

        Blurring divides a length by at most 1 - BLUR, and the j-th of the blurred lengths is at most the j-th length.
        So batches that keep within max_tokens with every length that much larger keep within it in every epoch.
        """
        if self.max_tokens is None:
            return np.append(np.arange(0, len(lengths), self.per_device_batch * world), len(lengths))
        if self.group_by_length:
            longest = np.minimum(np.sort(lengths) / (1 - BLUR), lengths.max())
        else:
            longest = np.full(len(lengths), lengths.max())
        longest = np.ceil(longest / self.multiple) * self.multiple
        starts = [0]
        while starts[-1] < len(lengths):
            # The longest row of a batch is its last: take as many as keep within the budget.
            first = starts[-1]
            rows = np.arange(1, min(len(lengths) - first, self.max_tokens * world) + 1)
            fits = -(-rows // world) * longest[first : first + len(rows)] <= self.max_tokens
            starts.append(first + max(int(fits.argmin()) if not fits.all() else len(rows), 1))
        return np.array(starts)

    def counts(self, batches: Mapping[str, int]) -> dict[str, int]:
        """Batches of each task in an epoch, given how many hold all of its rows once. Their sum stays."""
        match self.sampling:
            case "proportional":
                return dict(batches)
            case "temperature":
                wanted = {task: count ** (1 / self.temperature) for task, count in batches.items()}
            case "uniform":
                wanted = dict.fromkeys(batches, 1.0)
            case "weights":
                wanted = {task: self.weights.get(task, 1.0) for task in batches}
            case other:
                raise ValueError(f"unknown sampling {other!r}")
        shares = np.array(list(wanted.values())) / sum(wanted.values())
        edges = np.rint(shares.cumsum() * sum(batches.values())).astype(int)
        counts = dict(zip(batches, np.diff(edges, prepend=0).tolist(), strict=True))
        for task, share in wanted.items():  # none that is asked for goes without a single batch
            if share > 0 and not counts[task]:
                counts[max(counts, key=counts.__getitem__)] -= 1
                counts[task] = 1
        return counts


class TaskBatchSampler(Sampler[TaskBatch]):
    """Batches of one task each in shuffled order; what an epoch holds is a function of (seed, epoch, stage) alone.

    A global batch is cut into equal shares for the ranks. Its composition depends on the product of a rank's batch and
    the number of ranks only, so one worker with batch 2b and two workers with batch b see the same global batches.
    Every epoch has the same number of batches.

    Args:
        rows: what is drawn from, by task.
        plan: how batches are cut and how often each task's come.
        stage: counted from 0; the epochs of each are drawn in orders of their own.
    """

    def __init__(
        self,
        rows: Mapping[str, BatchRows],
        *,
        plan: BatchPlan,
        seed: int,
        stage: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._rows = dict(rows)
        self._seed, self._stage = seed, stage
        self._rank = rank
        self._world = world
        self._epoch = 0
        self._slots = {task: plan.slots(own.lengths, world) for task, own in self._rows.items()}
        self._shuffled_by_length = plan.group_by_length
        self._counts = plan.counts({task: len(slots) - 1 for task, slots in self._slots.items()})

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch, counted from 0, that the next iteration draws."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Global batches, and so steps of every rank, in one epoch."""
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[TaskBatch]:
        generator = np.random.default_rng([self._seed, self._epoch, self._stage])  # zeros at the end say nothing
        batches: list[tuple[str, np.ndarray]] = []
        for task, count in self._counts.items():
            own: list[np.ndarray] = []
            while len(own) < count:  # more batches than the task has: its rows come again, cut anew
                drawn = self._cut(task, generator)
                if count - len(own) < len(drawn):
                    drawn = [drawn[index] for index in generator.permutation(len(drawn))[: count - len(own)]]
                own += drawn
            batches += [(task, rows) for rows in own]
        for index in generator.permutation(len(batches)):
            yield self._share(*batches[index])

    def _cut(self, task: str, generator: np.random.Generator) -> list[np.ndarray]:
        """All rows of a task, cut into batches."""
        lengths, slots = self._rows[task].lengths, self._slots[task]
        order = generator.permutation(len(lengths))
        if self._shuffled_by_length:
            blurred = lengths[order] * generator.uniform(1 - BLUR, 1, len(lengths))
            order = order[np.argsort(blurred, kind="stable")]
        return np.split(order, slots[1:-1])

    def _share(self, task: str, rows: np.ndarray) -> TaskBatch:
        mine = rows[self._rank :: self._world]
        fillers = -(-len(rows) // self._world) - len(mine)
        weight_sum = float(self._rows[task].weights[rows].sum(dtype=np.float64))
        return TaskBatch(task, np.concatenate([mine, rows[:fillers]]), fillers, weight_sum)


class TokenRows:
    """The token ids of one part, of which any rows are padded to a batch.

    Args:
        multiple: what widths are rounded up to: 8 on a GPU, where products of such widths are faster; 1 elsewhere.
        positions: the encoder's, which no row is padded beyond; none for any number.
    """

    def __init__(self, part: EncodedPart, *, multiple: int = 1, positions: int | None = None) -> None:
        self._pad = part.pad_token_id
        self._ids, self._starts, self._types = part.flat
        self._multiple, self._positions = multiple, positions

    def pad(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """``input_ids``, ``attention_mask`` and, where any of the part is not 0, ``token_type_ids``.

        Each is ``(rows, width)`` int64; the width is the longest of these rows, rounded up.
        """
        starts = self._starts[rows]
        lengths = self._starts[rows + 1] - starts
        longest = int(lengths.max())
        width = -(-longest // self._multiple) * self._multiple
        if self._positions is not None:
            width = max(longest, min(width, self._positions))
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
        weights: task to ``(rows,)`` weights in the loss, in the place of the parts' own.
        multiple, positions: as TokenRows takes them.
    """

    def __init__(
        self,
        parts: Mapping[str, EncodedPart],
        *,
        weights: Mapping[str, np.ndarray],
        multiple: int = 1,
        positions: int | None = None,
    ) -> None:
        self._labels = {task: _label_tensor(part) for task, part in parts.items()}
        self._tokens = {task: TokenRows(part, multiple=multiple, positions=positions) for task, part in parts.items()}
        self._weights = {task: own.astype(np.float32) for task, own in weights.items()}

    def __len__(self) -> int:
        return sum(map(len, self._labels.values()))

    def __getitem__(self, batch: TaskBatch) -> dict[str, Any]:
        """The model's inputs as TokenRows pads them, and what the loss needs.

        ``task`` (str), ``labels`` ``(rows,)`` int64 class indices or float32 values, or ``(rows, classes)`` float32
        probabilities in a task with soft labels, ``weights`` ``(rows,)`` float32 with 0 for fillers, and
        ``weight_sum`` (float), the weight of the global batch that losses are normalised by.
        """
        weights = self._weights[batch.task][batch.rows]
        weights[len(weights) - batch.fillers :] = 0
        return {
            "task": batch.task,
            **self._tokens[batch.task].pad(batch.rows),
            "labels": self._labels[batch.task][torch.from_numpy(batch.rows)],
            "weights": torch.from_numpy(weights),
            "weight_sum": batch.weight_sum,
        }

    def __getitems__(self, batch: TaskBatch) -> dict[str, Any]:
        """What a DataLoader calls with whatever its batch sampler yields."""
        return self[batch]


def _label_tensor(part: EncodedPart) -> torch.Tensor:
    if part.targets is not None:
        return torch.from_numpy(part.targets)
    assert part.labels is not None
    return torch.from_numpy(part.labels.astype(np.float32 if part.labels.dtype.kind == "f" else np.int64))
