from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.data.batches import BatchPlan, BatchRows, TaskBatch, TaskBatchSampler, TaskRows, TokenRows
from tutti.data.encode import EncodedPart
from tutti.training.loop.losses import step_weights

SIZES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 40), min_size=1)


def _rows(sizes: dict[str, int]) -> dict[str, BatchRows]:
    generator = np.random.default_rng(7)
    return {
        task: BatchRows(
            lengths=generator.integers(3, 60, rows).astype(np.int32),
            weights=np.linspace(0.5, 1, rows, dtype=np.float32),
        )
        for task, rows in sizes.items()
    }


def _sampler(
    sizes: dict[str, int], *, batch: int, seed: int = 0, rank: int = 0, world: int = 1, **plan: Any
) -> TaskBatchSampler:
    batch_plan = BatchPlan(per_device_batch=batch, **plan)
    return TaskBatchSampler(_rows(sizes), plan=batch_plan, seed=seed, stage=0, rank=rank, world=world)


def _real_rows(batch: TaskBatch) -> list[int]:
    return batch.rows[: len(batch.rows) - batch.fillers].tolist()


def test_no_two_epochs_of_any_two_stages_have_the_same_order() -> None:
    seen = set()
    for stage in range(3):
        sampler = TaskBatchSampler(
            _rows({"t": 50}), plan=BatchPlan(per_device_batch=4), seed=0, stage=stage, rank=0, world=1
        )
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen.add(tuple(row for batch in sampler for row in batch.rows.tolist()))
    assert len(seen) == 9


PLANS = st.fixed_dictionaries(
    {"group_by_length": st.booleans(), "max_tokens": st.none() | st.integers(10, 300), "multiple": st.integers(1, 8)}
)  # 10 tokens: most rows are longer


@settings(deadline=None)
@given(sizes=SIZES, batch=st.integers(1, 9), world=st.integers(1, 4), seed=st.integers(0, 99), plan=PLANS)
def test_every_row_of_every_task_comes_once_an_epoch_over_all_ranks(sizes, batch, world, seed, plan):
    seen: Counter[tuple[str, int]] = Counter()
    for rank in range(world):
        for step in _sampler(sizes, batch=batch, seed=seed, rank=rank, world=world, **plan):
            seen.update((step.task, row) for row in _real_rows(step))
    assert seen == Counter({(task, row): 1 for task, rows in sizes.items() for row in range(rows)})


@settings(deadline=None)
@given(sizes=SIZES, batch=st.integers(1, 9), world=st.integers(2, 4), seed=st.integers(0, 99), plan=PLANS)
def test_all_ranks_step_together_on_one_task_with_as_many_rows(sizes, batch, world, seed, plan):
    samplers = [_sampler(sizes, batch=batch, seed=seed, rank=rank, world=world, **plan) for rank in range(world)]
    steps = list(zip(*samplers, strict=True))
    assert len(steps) == len(samplers[0])
    for step in steps:
        assert len({(share.task, len(share.rows), share.weight_sum) for share in step}) == 1
        assert plan["max_tokens"] or len(step[0].rows) <= batch
        assert all(share.fillers <= 1 for share in step)


@settings(deadline=None)
@given(sizes=SIZES, batch=st.integers(1, 9), world=st.integers(2, 4), grouped=st.booleans())
def test_global_batches_are_those_of_one_worker_with_a_larger_batch(sizes, batch, world, grouped):
    alone = list(_sampler(sizes, batch=batch * world, group_by_length=grouped))
    ranks = [_sampler(sizes, batch=batch, rank=rank, world=world, group_by_length=grouped) for rank in range(world)]
    shared = list(zip(*ranks, strict=True))
    assert [(one.task, sorted(one.rows.tolist()), one.weight_sum) for one in alone] == [
        (step[0].task, sorted(row for share in step for row in _real_rows(share)), step[0].weight_sum)
        for step in shared
    ]


def test_a_token_budget_is_each_rank_s_own_so_that_global_batches_depend_on_the_number_of_ranks() -> None:
    rows = {"t": BatchRows(np.full(6, 4), weights=np.ones(6, dtype=np.float32))}
    sizes = {}
    for world in (1, 2):
        plan = BatchPlan(per_device_batch=1, max_tokens=12 // world)
        ranks = [TaskBatchSampler(rows, plan=plan, seed=0, stage=0, rank=rank, world=world) for rank in range(world)]
        steps = zip(*ranks, strict=True)
        sizes[world] = [sum(len(_real_rows(share)) for share in step) for step in steps]
    assert sizes == {1: [3, 3], 2: [2, 2, 2]}  # a third row would give one rank 8 of its 6 tokens


@settings(deadline=None)
@given(weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=40), batch=st.integers(1, 9), world=st.integers(1, 3))
def test_a_row_weighs_the_same_in_the_loss_whatever_rows_it_comes_with(weights, batch, world):
    row_weights = np.array(weights)
    rows = {"t": BatchRows(lengths=np.full(len(weights), 5), weights=row_weights)}
    ranks = [
        TaskBatchSampler(rows, plan=BatchPlan(per_device_batch=batch), seed=0, stage=0, rank=rank, world=world)
        for rank in range(world)
    ]
    for shares in zip(*ranks, strict=True):
        drawn = [row for share in shares for row in _real_rows(share)]
        in_the_mean = row_weights[drawn] / shares[0].weight_sum * len(drawn)
        assert in_the_mean == pytest.approx(row_weights[drawn] / row_weights.mean())


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("world", [1, 2])
def test_no_row_is_in_a_much_smaller_batch_than_others_where_it_would_weigh_more(grouped: bool, world: int) -> None:
    lengths = np.arange(3, 68)
    rows = {"t": BatchRows(lengths=lengths, weights=np.ones(65))}
    plan = BatchPlan(per_device_batch=16 // world, group_by_length=grouped)
    sizes = [len(batch.rows) for batch in TaskBatchSampler(rows, plan=plan, seed=0, stage=0, rank=0, world=world)]
    assert len(sizes) == 5
    assert set(sizes) == ({13} if world == 1 else {7})


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 128), min_size=1, max_size=99), world=st.integers(1, 3), grouped=st.booleans())
def test_a_token_budget_lets_long_rows_weigh_as_much_as_short_ones(lengths, world, grouped):
    row_weights = np.random.default_rng(len(lengths)).uniform(0.1, 2, len(lengths))
    rows = {"t": BatchRows(lengths=np.array(lengths), weights=row_weights)}
    plan = BatchPlan(per_device_batch=4, group_by_length=grouped, max_tokens=200)
    sampler = TaskBatchSampler(rows, plan=plan, seed=0, stage=0, rank=0, world=world)
    (weight_sum,) = {batch.weight_sum for batch in sampler}
    assert weight_sum * len(sampler) == pytest.approx(row_weights.sum())  # a mean over batches is one over rows


def test_the_loss_of_accumulated_batches_is_the_mean_of_their_tasks_losses_by_batches() -> None:
    batches = [{"task": "long", "weight_sum": 2.0}, {"task": "short", "weight_sum": 9.0}]
    assert step_weights(batches[:1]) == {"long": 2.0}
    # Of three batches, two are of the short task: two thirds of the loss are the mean over its 9 + 3 rows.
    assert step_weights([*batches, {"task": "short", "weight_sum": 3.0}]) == {"long": 2 * 3, "short": (9 + 3) * 3 / 2}


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 128), min_size=1, max_size=300),
    max_tokens=st.integers(8, 600),
    world=st.integers(1, 3),
    grouped=st.booleans(),
    epoch=st.integers(0, 3),
    multiple=st.sampled_from([1, 8]),
)
def test_a_token_budget_is_kept_in_every_epoch(lengths, max_tokens, world, grouped, epoch, multiple):
    own = BatchRows(lengths=np.array(lengths), weights=np.ones(len(lengths)))
    plan = BatchPlan(per_device_batch=4, group_by_length=grouped, max_tokens=max_tokens, multiple=multiple)
    sampler = TaskBatchSampler({"t": own}, plan=plan, seed=1, stage=0, rank=0, world=world)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    for batch in batches:
        width = -(-own.lengths[batch.rows].max() // multiple) * multiple
        assert len(batch.rows) * width <= max_tokens or len(batch.rows) == 1


def test_a_token_budget_is_used_up_by_grouped_rows() -> None:
    own = _rows({"t": 4000})["t"]
    batches = list(
        TaskBatchSampler(
            {"t": own}, plan=BatchPlan(per_device_batch=1, max_tokens=1000), seed=0, stage=0, rank=0, world=1
        )
    )
    used = [len(batch.rows) * own.lengths[batch.rows].max() for batch in batches]
    assert np.mean(used) > 850


@pytest.mark.parametrize("plan", [{}, {"max_tokens": 1500}])
def test_little_is_padded_where_rows_are_grouped_and_much_where_not(plan: dict[str, Any]) -> None:
    def padded(grouped: bool) -> float:
        lengths = np.random.default_rng(0).gamma(4, 8, 5000).astype(int).clip(3, 128)
        own = BatchRows(lengths=lengths, weights=np.ones(5000))
        batches = list(
            TaskBatchSampler(
                {"t": own},
                plan=BatchPlan(per_device_batch=32, group_by_length=grouped, **plan),
                seed=0,
                stage=0,
                rank=0,
                world=1,
            )
        )
        padded = sum(len(batch.rows) * lengths[batch.rows].max() for batch in batches)
        return 1 - lengths.sum() / padded

    assert padded(grouped=True) < 0.05
    assert padded(grouped=False) > 0.3


def test_grouped_rows_of_different_lengths_meet_others_too() -> None:
    rows = {"t": BatchRows(lengths=np.arange(100, 500), weights=np.ones(400))}
    sampler = TaskBatchSampler(rows, plan=BatchPlan(per_device_batch=8), seed=0, stage=0, rank=0, world=1)
    first = {frozenset(batch.rows.tolist()) for batch in sampler}
    sampler.set_epoch(1)
    assert len(first & {frozenset(batch.rows.tolist()) for batch in sampler}) <= 2


def test_a_task_drawn_less_often_than_it_has_batches_shows_its_long_rows_as_often() -> None:
    rows = {task: BatchRows(np.arange(100, 100 + 5 * n), np.ones(5 * n)) for task, n in (("small", 20), ("large", 100))}
    plan = BatchPlan(per_device_batch=5, sampling="uniform")
    sampler = TaskBatchSampler(rows, plan=plan, seed=0, stage=0, rank=0, world=1)
    drawn = np.concatenate([batch.rows for batch in sampler if batch.task == "large"])
    assert len(drawn) == 300
    assert drawn.mean() == pytest.approx(250, abs=40)


@pytest.mark.parametrize(
    ("plan", "shares"),
    [
        ({"sampling": "proportional"}, {"a": 64, "b": 16, "c": 1}),
        ({"sampling": "temperature", "temperature": 2.0}, {"a": 50, "b": 25, "c": 6}),
        ({"sampling": "uniform"}, {"a": 27, "b": 27, "c": 27}),
        ({"sampling": "weights", "weights": {"a": 1, "b": 2}}, {"a": 20, "b": 41, "c": 20}),
        (
            {"sampling": "weights", "weights": {"a": 500, "b": 500}},
            {"a": 40, "b": 40, "c": 1},
        ),  # every task gets a batch
    ],
    ids=lambda value: value.get("sampling", ""),
)
def test_tasks_come_as_often_as_their_sampling_says(plan: dict[str, Any], shares: dict[str, int]) -> None:
    sampler = _sampler({"a": 256, "b": 64, "c": 2}, batch=4, **plan)
    assert Counter(batch.task for batch in sampler) == shares
    assert len(sampler) == 81


def test_a_task_drawn_more_often_than_it_has_rows_shows_each_as_often() -> None:
    seen = Counter(
        row
        for batch in _sampler({"a": 60, "b": 20}, batch=4, sampling="uniform")
        if batch.task == "b"
        for row in batch.rows.tolist()
    )
    assert set(seen.values()) == {2}


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


@pytest.mark.parametrize(("positions", "width"), [(None, 8), (512, 8), (8, 8), (6, 6), (5, 5)])
def test_the_width_is_rounded_up_where_asked_within_the_encoders_positions(part, positions, width):
    rows = TokenRows(part, multiple=8, positions=positions)
    assert rows.pad(np.array([2]))["input_ids"].shape == (1, width)
    tasks = TaskRows({"t": part}, multiple=8, positions=positions)
    assert tasks[TaskBatch("t", np.array([2]), 0, 1.0)]["input_ids"].shape == (1, width)


def test_a_part_is_read_from_its_table_once(part: EncodedPart, monkeypatch: pytest.MonkeyPatch) -> None:
    TokenRows(part)
    monkeypatch.setattr(datasets.Dataset, "with_format", None)
    assert TokenRows(part).pad(np.array([1]))["input_ids"].tolist() == [[2, 3]]


def test_token_types_that_are_all_0_are_left_out(part: EncodedPart) -> None:
    types = [[0] * length for length in part.lengths]
    single = replace(part, encoded=part.encoded.remove_columns("token_type_ids").add_column("token_type_ids", types))
    assert set(TokenRows(single).pad(np.array([0, 2]))) == {"input_ids", "attention_mask"}


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


def test_a_batch_of_a_task_with_soft_labels_holds_probabilities(part: EncodedPart) -> None:
    targets = np.array([[1, 0], [0.25, 0.75], [1, 0], [0, 1]], dtype=np.float32)
    batch = TaskRows({"t": replace(part, targets=targets)})[TaskBatch("t", np.array([1, 3]), 0, 0.75)]
    assert batch["labels"].dtype == torch.float32
    assert batch["labels"].tolist() == [[0.25, 0.75], [0, 1]]


def test_rows_of_one_length_use_up_the_token_budget() -> None:
    assert BatchPlan(per_device_batch=1, max_tokens=1000).boundaries(np.full(30, 100), 1).tolist() == [0, 10, 20, 30]
    wider = BatchPlan(per_device_batch=1, max_tokens=1000, multiple=8)  # 104
    assert wider.boundaries(np.full(30, 100), 1).tolist() == [0, 9, 18, 27, 30]
