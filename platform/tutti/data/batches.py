"""Single-task batches, sampled so that all ranks step together, and padded to the longest row of each, or packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler

from tutti.data.flat_rows import FlatRows
from tutti.data.packing import Packing
from tutti.tasks.kinds.entities import ABSENT

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """One rank's share of a global batch.

    Attributes:
        rows: ``(rows,)`` indices into the task's part; the same number on every rank, unless they are packed.
        fillers: number of rows at the end that only equalise the ranks' shares; their weight is 0.
        weight_sum: the sum of the batch's row losses, over all ranks, is divided by this: its number of rows, or with a
            token budget that of the task's average batch, times the mean weight of the task's rows.
    """

    task: str
    rows: np.ndarray
    fillers: int
    weight_sum: float


# Relative noise of the lengths that rows are sorted by. Lengths within a batch differ by about this share at most, and
# padding takes about half of it.
LENGTH_NOISE = 0.06
WIDTHS = {"cpu": 1, "cuda": 8}
"""A batch's width in tokens is a multiple of this, by the type of device."""


@dataclass(frozen=True, eq=False)
class BatchRows:
    """What the sampler must know about one task's rows.

    Attributes:
        lengths: ``(rows,)`` number of tokens of each row, of all of its windows.
        weights: ``(rows,)`` weight of each row in the loss.
    """

    lengths: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class BatchPlan:
    """How rows are divided into batches, and how often each task is sampled.

    Attributes:
        per_device_batch: most rows of a rank's batch; all batches of a task have as many, up to one.
        group_by_length: whether rows are sorted by length, with new noise in each epoch, before division.
        max_tokens: most tokens of a rank's batch, padding included; replaces ``per_device_batch`` if given. A longer
            row is a batch by itself.
        packed: whether a rank's batch is one sequence of rows laid end to end; of ``per_device_batch`` rows on average,
            or as many tokens as ``max_tokens`` or the longest row.
        multiple: a batch's width is rounded up to a multiple of this.
        sampling: ``proportional``, ``temperature``, ``uniform`` or ``weights``.
        temperature: for the sampling ``temperature``.
        weights: for the sampling ``weights``; the default for a task is 1.
    """

    per_device_batch: int
    group_by_length: bool = True
    max_tokens: int | None = None
    packed: bool = False
    multiple: int = 1
    sampling: str = "proportional"
    temperature: float = 1.0
    weights: Mapping[str, float] = field(default_factory=dict)

    def packing(self, lengths: np.ndarray, world: int) -> Packing | None:
        """How rows of these lengths are packed; None if they are padded."""
        if not self.packed:
            return None
        rows, multiple = self.per_device_batch, self.multiple
        return Packing.of(lengths, rows=rows, max_tokens=self.max_tokens, multiple=multiple, world=world)

    def batches(self, lengths: np.ndarray, world: int) -> int:
        """The number of batches in an epoch of rows of these lengths."""
        packing = self.packing(lengths, world)
        return len(self.boundaries(lengths, world)) - 1 if packing is None else packing.sequences // world

    def boundaries(self, lengths: np.ndarray, world: int) -> np.ndarray:
        """``(batches + 1,)`` int64: the start of each batch in an epoch's row order, and the end of the last one.

        They are the same in every epoch. Noise multiplies a length by at least 1 - LENGTH_NOISE, so the j-th row by
        noisy length is at most 1 / (1 - LENGTH_NOISE) times as long as the j-th row by length. Batches that satisfy
        max_tokens with these longer lengths satisfy it in every epoch.
        """
        if self.max_tokens is None:
            # Of equal size, up to a row: a short last batch would hold the longest rows, which would weigh more.
            count = -(-len(lengths) // (self.per_device_batch * world))
            return np.arange(count + 1) * len(lengths) // count
        if self.group_by_length:
            longest = np.minimum(np.sort(lengths) / (1 - LENGTH_NOISE), lengths.max())
        else:
            longest = np.full(len(lengths), lengths.max())
        longest = np.ceil(longest / self.multiple) * self.multiple
        starts = [0]
        while starts[-1] < len(lengths):
            # The last row of a batch is its longest: add rows while the batch fits into the budget.
            first = starts[-1]
            sizes = np.arange(1, min(len(lengths) - first, self.max_tokens * world) + 1)
            fits = -(-sizes // world) * longest[first : first + len(sizes)] <= self.max_tokens
            starts.append(first + max(int(fits.argmin()) if not fits.all() else len(sizes), 1))
        return np.array(starts)

    def counts(self, batches: Mapping[str, int]) -> dict[str, int]:
        """The number of batches of each task in an epoch, with the same total as ``batches``.

        Args:
            batches: task to the number of batches that contain each of its rows once.
        """
        match self.sampling:
            case "proportional":
                return dict(batches)
            case "temperature":
                rates = {task: count ** (1 / self.temperature) for task, count in batches.items()}
            case "uniform":
                rates = dict.fromkeys(batches, 1.0)
            case _:
                rates = {task: self.weights.get(task, 1.0) for task in batches}
        shares = np.array(list(rates.values())) / sum(rates.values())
        edges = np.rint(shares.cumsum() * sum(batches.values())).astype(int)
        counts = dict(zip(batches, np.diff(edges, prepend=0).tolist(), strict=True))
        for task in rates:  # each gets at least one batch
            if not counts[task]:
                counts[max(counts, key=counts.__getitem__)] -= 1
                counts[task] = 1
        return counts


class TaskBatchSampler(Sampler[TaskBatch]):
    """Single-task batches in shuffled order; the batches of an epoch depend only on (seed, epoch, stage).

    A global batch is split evenly over the ranks. Without ``max_tokens`` its composition depends only on the product
    of a rank's batch size and the number of ranks, so one worker with batch 2b and two workers with batch b see the
    same global batches. With it they do not: each rank's share must fit its own budget, so the same total of tokens
    is divided differently, often into a few more batches, when more ranks share it. Every epoch has the same number of
    batches.

    Args:
        rows: task to its rows.
        plan: how rows are divided into batches and how often each task is sampled.
        stage: counted from 0; each stage draws its epochs in a different order.
    """

    def __init__(
        self, rows: Mapping[str, BatchRows], *, plan: BatchPlan, seed: int, stage: int, rank: int, world: int
    ) -> None:
        self._rows = dict(rows)
        self._seed, self._stage = seed, stage
        self._rank = rank
        self._world = world
        self._epoch = 0
        # By a batch's own weights, rows would count the same in batches where all weigh little and where all do much.
        self._mean_weights = {task: float(rows.weights.mean(dtype=np.float64)) for task, rows in self._rows.items()}
        self._packings = {task: plan.packing(rows.lengths, world) for task, rows in self._rows.items()}
        self._boundaries = {
            task: plan.boundaries(rows.lengths, world)
            for task, rows in self._rows.items()
            if self._packings[task] is None
        }
        batches = {
            task: len(self._boundaries[task]) - 1 if packing is None else packing.sequences // world
            for task, packing in self._packings.items()
        }
        # A token budget makes batches of few long or many short rows. By a batch's own number of rows, long rows would
        # count more.
        own = plan.max_tokens is None and not plan.packed
        self._mean_rows = {
            task: None if own else len(rows.lengths) / batches[task] for task, rows in self._rows.items()
        }
        self._group_by_length = plan.group_by_length
        self._counts = plan.counts(batches)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, counted from 0, that the next iteration draws."""
        self._epoch = epoch

    def __len__(self) -> int:
        """The number of global batches per epoch, which is also the number of batches of every rank."""
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[TaskBatch]:
        generator = np.random.default_rng([self._seed, self._epoch, self._stage])
        batches: list[tuple[str, np.ndarray]] = []
        for task, count in self._counts.items():
            task_batches: list[np.ndarray] = []
            while len(task_batches) < count:  # an oversampled task repeats its rows, divided differently
                drawn = self._divide(task, generator)
                missing = count - len(task_batches)
                if missing < len(drawn):
                    drawn = [drawn[index] for index in generator.permutation(len(drawn))[:missing]]
                task_batches += drawn
            batches += [(task, rows) for rows in task_batches]
        for index in generator.permutation(len(batches)):
            yield self._rank_share(*batches[index])

    def _divide(self, task: str, generator: np.random.Generator) -> list[np.ndarray]:
        """All rows of a task, divided into global batches, or of packed ones this rank's shares."""
        if (packing := self._packings[task]) is not None:
            return packing.divide(generator)[self._rank :: self._world]
        lengths, boundaries = self._rows[task].lengths, self._boundaries[task]
        order = generator.permutation(len(lengths))
        if self._group_by_length:
            noisy_lengths = lengths[order] * generator.uniform(1 - LENGTH_NOISE, 1, len(lengths))
            order = order[np.argsort(noisy_lengths, kind="stable")]
        return np.split(order, boundaries[1:-1])

    def _rank_share(self, task: str, rows: np.ndarray) -> TaskBatch:
        """This rank's share of a global batch."""
        weight_sum = (self._mean_rows[task] or len(rows)) * self._mean_weights[task]
        if self._packings[task] is not None:
            some = rows if len(rows) else np.zeros(1, dtype=np.int64)
            return TaskBatch(task, some, 1 - len(rows[:1]), weight_sum)
        own_rows = rows[self._rank :: self._world]
        fillers = -(-len(rows) // self._world) - len(own_rows)
        return TaskBatch(task, np.concatenate([own_rows, rows[:fillers]]), fillers, weight_sum)


class TaskLoader(DataLoader):
    """Loads the batches of a ``TaskBatchSampler``, in an order of its own for each epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer at the start of each epoch, counted from 0."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class TokenRows:
    """The token ids of one part; pads any of its rows to a batch.

    Args:
        multiple: widths are rounded up to a multiple of this: 8 on a GPU, for faster matrix products, else 1.
        positions: the encoder's longest input, which padding never exceeds; None for no limit.
    """

    def __init__(self, part: FlatRows, *, multiple: int = 1, positions: int | None = None) -> None:
        self._pad = part.pad_token_id
        self._ids, self._starts, self._types = part.flat
        self._windows = part.windows
        self._first_windows = None if part.windows is None else part.windows.cumsum() - part.windows
        self._units, self._candidates = part.units, part.candidates
        self._multiple, self._positions = multiple, positions

    def pad(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """``input_ids``, ``attention_mask`` and, unless they are all 0 in the part, ``token_type_ids``.

        Each is ``(inputs, width)`` int64, where the width is the length of the longest of these inputs, rounded up. An
        input is a row, or if one of these rows has several, a window; then ``windows``, ``(rows,)`` int64, says how
        many of the inputs belong to each row. Of rows with tags, ``units``, ``(rows, units, 3)`` int64, has for each
        unit what ``PLACES`` says, and -1 for units that a row does not have. Of candidates by letters, ``candidates``,
        ``(rows,)`` int64, says how many.
        """
        counts = None if self._windows is None else self._windows[rows]
        if counts is None or self._first_windows is None:
            inputs = rows
        else:  # the first window of each row, plus 0, 1, ... up to the number of its windows
            inputs = np.repeat(self._first_windows[rows] - (counts.cumsum() - counts), counts) + np.arange(counts.sum())
        batch = self._pad_inputs(inputs)
        if counts is not None and (counts > 1).any():
            batch["windows"] = counts
        if self._units is not None:
            batch["units"] = self._units_of(rows)
        if self._candidates is not None:
            batch["candidates"] = self._candidates[rows].astype(np.int64)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def pack(self, rows: np.ndarray, packing: Packing) -> dict[str, torch.Tensor]:
        """These rows, none of which has windows, end to end: ``input_ids``, ``attention_mask`` and, unless they are all
        0 in the part, ``token_type_ids``, each ``(1, packing.tokens)`` int64; and ``row_mask``, ``(1, packing.rows,
        packing.width)`` bool, what the attention mask of the padded rows would be. Rows of no token fill it up.
        """
        starts = self._starts[rows]
        lengths = self._starts[rows + 1] - starts
        row_mask = np.zeros((1, packing.rows, packing.width), dtype=np.bool_)
        row_mask[0, : len(rows)] = np.arange(packing.width) < lengths[:, None]
        used = int(lengths.sum())
        places = np.repeat(starts - (lengths.cumsum() - lengths), lengths) + np.arange(used)
        values = {"input_ids": (self._ids, self._pad)}
        if self._types is not None:
            values["token_type_ids"] = (self._types, 0)
        batch = {"row_mask": row_mask, "attention_mask": (np.arange(packing.tokens) < used).astype(np.int64)[None]}
        for name, (flat, filler) in values.items():
            batch[name] = np.full((1, packing.tokens), filler, dtype=np.int64)
            batch[name][0, :used] = flat[places]
        if self._units is not None:
            units = self._units_of(rows, int(np.diff(self._units[1]).max(initial=1)))
            batch["units"] = np.pad(units, ((0, packing.rows - len(rows)), (0, 0), (0, 0)), constant_values=-1)
        if self._candidates is not None:
            own = self._candidates[rows].astype(np.int64)
            batch["candidates"] = np.pad(own, (0, packing.rows - len(rows)), constant_values=1)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def _units_of(self, rows: np.ndarray, width: int | None = None) -> np.ndarray:
        assert self._units is not None
        places, starts = self._units
        counts = starts[rows + 1] - starts[rows]
        columns = np.arange(width or max(int(counts.max(initial=0)), 1))
        mask = columns < counts[:, None]
        units = np.full((*mask.shape, places.shape[1]), -1, dtype=np.int64)
        units[mask] = places[(starts[rows][:, None] + columns)[mask]]
        return units

    def _pad_inputs(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        starts = self._starts[inputs]
        lengths = self._starts[inputs + 1] - starts
        longest = int(lengths.max())
        width = -(-longest // self._multiple) * self._multiple
        if self._positions is not None:
            width = max(longest, min(width, self._positions))
        columns = np.arange(width)
        mask = columns < lengths[:, None]
        positions = (starts[:, None] + columns)[mask]
        batch = {"input_ids": np.full(mask.shape, self._pad, dtype=np.int64), "attention_mask": mask.astype(np.int64)}
        batch["input_ids"][mask] = self._ids[positions]
        if self._types is not None:
            batch["token_type_ids"] = np.zeros(mask.shape, dtype=np.int64)
            batch["token_type_ids"][mask] = self._types[positions]
        return batch


class TaskRows(Dataset):
    """The labelled rows of all tasks, indexed by TaskBatch.

    Args:
        multiple, positions: see TokenRows.
        packings: how the rows of each task are packed; without one they are padded.
    """

    def __init__(
        self,
        parts: Mapping[str, EncodedPart],
        *,
        multiple: int = 1,
        positions: int | None = None,
        packings: Mapping[str, Packing | None] | None = None,
    ) -> None:
        self._packings = dict(packings or {})
        labels = {task: part.labels if part.targets is None else part.targets for task, part in parts.items()}
        self._labels = {task: torch.from_numpy(own) for task, own in labels.items()}
        self._tokens = {task: TokenRows(part, multiple=multiple, positions=positions) for task, part in parts.items()}
        self._weights = {task: part.weights for task, part in parts.items()}

    def __len__(self) -> int:
        return sum(map(len, self._labels.values()))

    def __getitem__(self, batch: TaskBatch) -> dict[str, Any]:
        """The model's inputs, padded or packed by TokenRows, and the inputs of the loss.

        The latter are ``task`` (str); ``labels``, ``(rows,)`` int64 class indices or float32 values, or
        ``(rows, classes)`` float32 probabilities in a task with soft labels, or ``(rows, units)`` tags; ``weights``,
        ``(rows,)`` float32 with 0 for fillers; and ``weight_sum`` (float), the batch's weight on average, by which the
        loss is normalised. Packed rows are followed by as many fillers as make them ``Packing.rows``.
        """
        rows, fillers, packing = batch.rows, batch.fillers, self._packings.get(batch.task)
        if packing is None:
            inputs = self._tokens[batch.task].pad(rows)
        else:
            inputs = self._tokens[batch.task].pack(rows, packing)
            fillers += packing.rows - len(rows)
            rows = np.pad(rows, (0, packing.rows - len(rows)), mode="edge")
        labels = self._labels[batch.task][torch.from_numpy(rows)]
        if "units" in inputs:  # no more of them than the longest row has
            width = inputs["units"].shape[1]
            labels = functional.pad(labels[:, :width], (0, max(width - labels.shape[1], 0)), value=ABSENT)
        weights = self._weights[batch.task][rows]
        weights[len(weights) - fillers :] = 0
        return {
            "task": batch.task,
            **inputs,
            "labels": labels,
            "weights": torch.from_numpy(weights),
            "weight_sum": batch.weight_sum,
        }

    def __getitems__(self, batch: TaskBatch) -> dict[str, Any]:
        """Called by a DataLoader with each item that its batch sampler yields."""
        return self[batch]
