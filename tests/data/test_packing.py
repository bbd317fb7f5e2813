"""Packed sequences: each row once in each epoch, other rows together, and one shape for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.data.batches import BatchPlan, BatchRows, TaskBatchSampler
from tutti.data.packing import Packing

LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=300).map(lambda found: np.array(found, dtype=np.int32))


@given(LENGTHS, st.integers(8, 600), st.sampled_from([1, 8]), st.integers(1, 3), st.integers(0, 3))
def test_each_epoch_has_each_row_once_and_every_sequence_fits(lengths, max_tokens, multiple, world, epoch):
    packing = Packing.of(lengths, rows=4, max_tokens=max_tokens, multiple=multiple, world=world)
    drawn = packing.divide(np.random.default_rng(epoch))
    assert sorted(np.concatenate(drawn)) == [*range(len(lengths))]
    assert len(drawn) == packing.sequences
    assert packing.sequences % world == 0
    assert max(int(lengths[rows].sum()) for rows in drawn) <= packing.tokens <= max(max_tokens, int(lengths.max()))
    assert max(map(len, drawn)) <= packing.rows
    assert packing.width == lengths.max()


@given(LENGTHS, st.integers(1, 32))
def test_a_sequence_has_as_many_rows_as_a_padded_batch_on_average_unless_the_longest_row_is_longer(lengths, rows):
    packing = Packing.of(lengths, rows=rows, max_tokens=None)
    assert packing.tokens <= max(lengths.mean() * rows, lengths.max())


def test_sequences_are_nearly_full_and_have_about_as_many_rows_each() -> None:
    lengths = np.random.default_rng(0).geometric(0.03, 5000).clip(4, 128)
    packing = Packing.of(lengths, rows=0, max_tokens=2048)
    assert lengths.sum() / (packing.sequences * packing.tokens) > 0.96
    assert packing.rows < 1.1 * len(lengths) / packing.sequences


def test_rows_meet_others_in_the_next_epoch_and_the_same_ones_in_the_same_epoch_again() -> None:
    packing = Packing.of(np.random.default_rng(0).integers(5, 60, 400), rows=0, max_tokens=512)
    first, again, second = (packing.divide(np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert np.mean([len(np.intersect1d(first[0], rows)) for rows in second]) < 0.2 * len(first[0])


@pytest.mark.parametrize("world", [1, 2])
def test_all_ranks_have_all_rows_together_and_as_many_batches(world: int) -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 101)
    rows = {"mood": BatchRows(lengths, np.ones(101, dtype=np.float32))}
    plan = BatchPlan(per_device_batch=8, packed=True)
    samplers = [TaskBatchSampler(rows, plan=plan, seed=0, stage=0, rank=rank, world=world) for rank in range(world)]
    batches = [[*sampler] for sampler in samplers]
    assert {len(own) for own in batches} == {len(samplers[0])} == {plan.batches(lengths, world)}
    assert sorted(row for own in batches for batch in own for row in batch.rows) == [*range(101)]
    assert sum(batch.weight_sum for batch in batches[0]) == pytest.approx(101)
