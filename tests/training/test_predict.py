from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.data.batches import BatchPlan, BatchRows, TaskBatchSampler, TokenRows
from tutti.data.encode import EncodedPart
from tutti.modeling.heads import HeadOptions
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.tasks.task import Task
from tutti.training.predict import predict

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(backbone: Path) -> MultiTaskModel:
    torch.manual_seed(1)
    tasks = [
        Task(name="t", names=("a", "b", "c"), pair=False, metric="accuracy", submission="csv"),
        Task(name="value", names=(), pair=False, metric="pearson", submission="csv"),
    ]
    return MultiTaskModel(encoder=load_encoder(str(backbone)), tasks=tasks, heads=HeadOptions(dropout=0.5))


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(0, 40),
    seed=st.integers(0, 9),
    batch_size=st.integers(1, 17),
    max_tokens=st.none() | st.integers(1, 400),
)
def test_rows_come_back_in_input_order_for_any_size_of_batch(model, make_part, rows, seed, batch_size, max_tokens):
    part = make_part(rows, classes=3, seed=seed)
    together = predict(model, part, task="t", batch_size=batch_size, device=CPU, max_tokens=max_tokens)
    assert together.shape == (rows, 3)
    assert together.dtype == np.float32
    model.eval()
    for row, tokens in enumerate(part.encoded["input_ids"]):
        ids = torch.tensor([tokens])
        with torch.no_grad():
            alone = model("t", ids, torch.ones_like(ids)).softmax(dim=1)
        np.testing.assert_allclose(together[row], alone[0].numpy(), atol=1e-5)


def test_however_many_rows_parts_have_their_batches_come_in_few_shapes_within_the_budget(model, make_part):
    shapes = set()
    seen = model.encoder.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.add(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    for rows in range(1, 120):
        predict(model, make_part(rows, classes=3, seed=rows), task="t", batch_size=1, device=CPU, max_tokens=256)
    seen.remove()
    assert all(rows * length <= 256 or rows == 1 for rows, length in shapes)
    by_length = [[rows for rows, other in shapes if other == length] for _, length in shapes]
    assert max(map(len, by_length)) <= 8


def test_a_regression_gives_one_value_for_each_row(model, make_part):
    part = make_part(7, classes=3, seed=0)
    model.eval()
    head = model.head("value")
    plain = predict(model, part, task="value", batch_size=3, device=CPU)
    assert plain.shape == (7,)
    head.fit_labels(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 1.0]))
    try:
        np.testing.assert_allclose(
            predict(model, part, task="value", batch_size=3, device=CPU), plain * 2 + 3, rtol=1e-5
        )
    finally:
        head.fit_labels(torch.tensor([-1.0, 1.0]), torch.tensor([1.0, 1.0]))


def test_token_types_of_single_texts_change_nothing_where_they_are_left_out(model, make_part):
    part = make_part(9, classes=3, seed=0)
    types = [[0] * length for length in part.lengths]
    single = replace(part, encoded=part.encoded.add_column("token_type_ids", types))
    ids = torch.tensor([part.encoded["input_ids"][0]])
    model.eval()
    with torch.no_grad():
        zeros = model("t", ids, torch.ones_like(ids), torch.zeros_like(ids)).softmax(dim=1)
    outputs = predict(model, single, task="t", batch_size=1, device=CPU)
    np.testing.assert_array_equal(outputs[:1], zeros.numpy())


@pytest.mark.parametrize("training", [True, False])
def test_a_model_stays_in_the_mode_that_it_was_in(model, make_part, training):
    model.train(training)
    part = make_part(5, classes=3, seed=0)
    first = predict(model, part, task="t", batch_size=2, device=CPU)
    assert {module.training for module in model.modules()} == {training}
    np.testing.assert_array_equal(first, predict(model, part, task="t", batch_size=2, device=CPU))


def test_pairs_that_are_encoded_apart_keep_within_the_budget_in_training_and_in_prediction(backbone, make_part):
    whole = make_part(60, classes=2, seed=3)
    types = [[int(position > 2) for position in range(len(row))] for row in whole.encoded["input_ids"]]
    part = replace(whole, encoded=whole.encoded.add_column("token_type_ids", types))
    task = Task(name="p", names=("a", "b"), pair=True, metric="accuracy", submission="csv")
    model = MultiTaskModel(
        encoder=load_encoder(str(backbone)), tasks=[task], heads=HeadOptions(pooling="bi_encoder", dropout=0.0)
    )
    shapes: list[torch.Size] = []
    model.encoder.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    predict(model, part, task="p", batch_size=1, device=CPU, max_tokens=90)
    lengths = part.batch_lengths(apart=True)
    plan = BatchPlan(per_device_batch=1, max_tokens=90)
    sampler = TaskBatchSampler({"p": BatchRows(lengths, part.weights)}, plan=plan, seed=0, stage=0, rank=0, world=1)
    tokens = TokenRows(part)
    for batch in sampler:
        model("p", **tokens.pad(batch.rows))
    assert max(shape.numel() for shape in shapes) <= 90


def _windowed(part: EncodedPart, counts: list[int]) -> EncodedPart:
    """A part whose rows are so many consecutive ones of another part's, all of one length, as windows."""
    tokens = [[2, *range(4 + row, 12 + row), 3] for row in range(sum(counts))]
    ends = np.cumsum(counts)
    rows = [list(chain(*tokens[end - count : end])) for end, count in zip(ends, counts, strict=True)]
    columns = {"input_ids": rows, "windows": [[10] * count for count in counts], "length": list(map(len, rows))}
    encoded = datasets.Dataset.from_dict(columns)
    return replace(part, ids=part.ids[: len(counts)], encoded=encoded, lengths=np.array(columns["length"]))


@pytest.mark.parametrize(("batch_size", "max_tokens"), [(1, None), (4, None), (64, None), (1, 35), (1, 1000)])
def test_windows_of_a_row_make_one_prediction_within_a_batch_s_size(model, make_part, batch_size, max_tokens):
    part, counts = make_part(6, classes=3, seed=0), [1, 3, 1, 2, 4, 1]
    sizes = []
    seen = model.encoder.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    together = predict(
        model, _windowed(part, counts), task="t", batch_size=batch_size, device=CPU, max_tokens=max_tokens
    )
    seen.remove()
    assert max(sizes) <= max(4, batch_size if max_tokens is None else max_tokens // 10)  # four are of one row
    model.eval()
    for row, end in enumerate(np.cumsum(counts)):
        ids = torch.tensor([[2, *range(4 + each, 12 + each), 3] for each in range(end - counts[row], end)])
        with torch.no_grad():
            alone = model("t", ids, torch.ones_like(ids), windows=torch.tensor([counts[row]])).softmax(dim=1)
        np.testing.assert_allclose(together[row], alone[0].numpy(), atol=1e-5)
