from __future__ import annotations

from collections import Counter

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.data.batches import TaskBatch, TaskBatchSampler, TaskRows, TokenRows
from tutti.data.encode import EncodedPart

SIZES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 40), min_size=1)


def _sampler(sizes: dict[str, int], *, batch: int, seed: int = 0, rank: int = 0, world: int = 1) -> TaskBatchSampler:
    weights = {task: np.linspace(0.5, 1, rows, dtype=np.float32) for task, rows in sizes.items()}
    return TaskBatchSampler(weights, per_device_batch=batch, seed=seed, rank=rank, world=world)


def _real_rows(batch: TaskBatch) -> list[int]:
    return batch.rows[: len(batch.rows) - batch.fillers].tolist()


@settings(deadline=None)
@given(sizes=SIZES, batch=st.integers(1, 9), world=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_row_of_every_task_comes_once_an_epoch_over_all_ranks(
    sizes: dict[str, int], batch: int, world: int, seed: int
) -> None:
    seen: Counter[tuple[str, int]] = Counter()
    for rank in range(world):
        for step in _sampler(sizes, batch=batch, seed=seed, rank=rank, world=world):
            seen.update((step.task, row) for row in _real_rows(step))
    assert seen == Counter({(task, row): 1 for task, rows in sizes.items() for row in range(rows)})


@settings(deadline=None)
@given(sizes=SIZES, batch=st.integers(1, 9), world=st.integers(2, 4), seed=st.integers(0, 99))
def test_all_ranks_step_together_on_one_task_with_as_many_rows(
    sizes: dict[str, int], batch: int, world: int, seed: int
) -> None:
    samplers = [_sampler(sizes, batch=batch, seed=seed, rank=rank, world=world) for rank in range(world)]
    steps = list(zip(*samplers, strict=True))
    assert len(steps) == len(samplers[0])
    for step in steps:
        assert len({(share.task, len(share.rows), share.weight_sum) for share in step}) == 1
        assert len(step[0].rows) <= batch
        assert all(share.fillers <= 1 for share in step)


@settings(deadline=None)
@given(sizes=SIZES, batch=st.integers(1, 9), world=st.integers(2, 4))
def test_global_batches_are_those_of_one_worker_with_a_larger_batch(
    sizes: dict[str, int], batch: int, world: int
) -> None:
    alone = list(_sampler(sizes, batch=batch * world))
    shared = list(zip(*(_sampler(sizes, batch=batch, rank=rank, world=world) for rank in range(world)), strict=True))
    assert [(one.task, sorted(one.rows.tolist()), one.weight_sum) for one in alone] == [
        (step[0].task, sorted(row for share in step for row in _real_rows(share)), step[0].weight_sum)
        for step in shared
    ]


def _order(sampler: TaskBatchSampler) -> list[tuple[str, list[int]]]:
    return [(batch.task, batch.rows.tolist()) for batch in sampler]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    first, second = (_sampler({"a": 30, "b": 20}, batch=4, seed=5) for _ in range(2))
    start = _order(first)
    assert start == _order(first) == _order(second)
    first.set_epoch(1)
    assert _order(first) != start
    assert _order(_sampler({"a": 30, "b": 20}, batch=4, seed=6)) != start
    first.set_epoch(0)
    assert _order(first) == start


def test_tasks_are_mixed_within_an_epoch() -> None:
    tasks = "".join(batch.task for batch in _sampler({"a": 40, "b": 40}, batch=2))
    assert tasks not in ("a" * 20 + "b" * 20, "b" * 20 + "a" * 20)


@pytest.fixture
def part() -> EncodedPart:
    tokens = [[2, 5, 3], [2, 3], [2, 6, 7, 8, 3], [2, 9, 3]]
    types = [[0] * len(row[:-1]) + [1] for row in tokens]
    return EncodedPart(
        ids=np.array(["a", "b", "c", "d"]),
        encoded=datasets.Dataset.from_dict({"input_ids": tokens, "token_type_ids": types, "length": [3, 2, 5, 3]}),
        lengths=np.array([3, 2, 5, 3], dtype=np.int32),
        labels=np.array([0, 1, 0, 1]),
        weights=np.array([1, 0.5, 1, 0.25], dtype=np.float32),
        pad_token_id=63,
    )


def test_rows_are_padded_to_the_longest_of_the_batch(part: EncodedPart) -> None:
    batch = TokenRows(part).pad(np.array([3, 1]))
    assert batch["input_ids"].tolist() == [[2, 9, 3], [2, 3, 63]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1], [0, 1, 0]]
    assert {values.dtype for values in batch.values()} == {torch.int64}


def test_the_width_is_rounded_up_where_asked(part: EncodedPart) -> None:
    assert TokenRows(part).pad(np.array([2]), multiple=8)["input_ids"].shape == (1, 8)


def test_rows_chosen_from_a_larger_table_are_read_as_chosen(part: EncodedPart) -> None:
    chosen = EncodedPart(
        ids=part.ids[[2, 0]],
        encoded=part.encoded.select([2, 0]),
        lengths=part.lengths[[2, 0]],
        labels=None,
        weights=part.weights[[2, 0]],
        pad_token_id=63,
    )
    assert TokenRows(chosen).pad(np.array([1, 0]))["input_ids"].tolist() == [[2, 5, 3, 63, 63], [2, 6, 7, 8, 3]]


def test_a_batch_holds_what_the_loss_needs_and_fillers_weigh_nothing(part: EncodedPart) -> None:
    batch = TaskRows({"t": part})[TaskBatch("t", np.array([1, 3, 0]), 1, 1.75)]
    assert batch["task"] == "t"
    assert batch["labels"].tolist() == [1, 1, 0]
    assert batch["weights"].tolist() == [0.5, 0.25, 0]
    assert batch["weight_sum"] == 1.75
    assert part.weights.tolist() == [1, 0.5, 1, 0.25]
