"""Every training row is validated in exactly one fold, and rows of other files in none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from task_rows import MakeSpec

from tutti.data.encode import load_parts, take
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared, load_prepared
from tutti.data.split import fold_numbers
from tutti.errors import StorageError, StudyError, TaskFileError
from tutti.records import TextLimit
from tutti.tasks.build import TaskSpec

TRAIN = [
    (f"r{n}", f"row {n} " + " ".join(f"w{k}" for k in range(n % 7 + 1)), "yes" if n % 3 else "no") for n in range(31)
]
NONE = np.empty(0, dtype=np.int64)


def numbers(
    labels: Any, groups: Any = None, *, folds: int = 5, seed: int = 0, task: str = "A", extra: Any = NONE
) -> np.ndarray:
    labels = np.asarray(labels)
    names = [] if labels.dtype.kind == "f" else [f"c{n}" for n in range(int(labels.max()) + 1)]
    groups = np.arange(len(labels)) if groups is None else np.asarray(groups)
    return fold_numbers(labels, groups, extra=np.asarray(extra), names=names, folds=folds, seed=seed, task=task)


@given(
    counts=st.lists(st.integers(2, 30), min_size=1, max_size=6),
    folds=st.integers(2, 8),
    seed=st.integers(0, 2**32),
)
def test_folds_are_even_in_all_and_in_each_class_and_each_trains_on_every_class(counts, folds, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    if len(labels) < folds:
        return
    assigned = numbers(labels, folds=folds, seed=seed)
    assert assigned.dtype == np.int32
    assert assigned.tolist() == numbers(labels, folds=folds, seed=seed).tolist()
    for rows in (np.ones(len(labels), dtype=bool), *(labels == label for label in range(len(counts)))):
        sizes = np.bincount(assigned[rows], minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    for fold in range(folds):
        assert (assigned == fold).any()
        assert set(labels[assigned != fold]) == set(labels)


def test_rows_are_shuffled_and_seed_and_task_each_change_the_folds() -> None:
    labels = np.zeros(40, dtype=np.int64)
    assigned = {tuple(numbers(labels, seed=seed, task=task)) for seed, task in ((0, "A"), (1, "A"), (0, "B"))}
    assert len({*assigned, tuple(np.arange(40) % 5), tuple(np.arange(40) // 8)}) == 5


@pytest.mark.parametrize("rows", [20, 23])
def test_each_fold_of_a_regression_gets_one_of_each_run_of_neighbouring_values(rows: int) -> None:
    values = np.random.default_rng(0).permutation(np.arange(rows) ** 2).astype(np.float32)
    assigned = numbers(values)
    by_value = assigned[np.argsort(values)]
    for start in range(0, rows, 5):
        assert len(set(by_value[start : start + 5])) == len(by_value[start : start + 5])
    assert by_value[:20].tolist() != (np.arange(20) % 5).tolist()
    assert len(set(numbers(np.zeros(5, dtype=np.float32)).tolist())) == 5


def test_a_class_of_one_row_is_refused_by_name_unless_other_files_have_it() -> None:
    labels = [0] * 20 + [1] + [2] * 2
    rule = "task A must have training rows of each class outside each fold; got all rows of 'c1' in one fold; add rows"
    with pytest.raises(TaskFileError, match=rule):
        numbers(labels)
    assert len(numbers(labels, extra=[0, 1])) == 23


def test_rows_of_one_text_are_validated_in_one_fold_and_need_another_text_of_their_class() -> None:
    groups = [*range(10), *range(10), 3, 3]
    assigned = numbers([0] * 22, groups)
    assert len(set(zip(groups, assigned.tolist(), strict=True))) == 10
    assert np.bincount(assigned[:10]).tolist() == [2] * 5
    with pytest.raises(TaskFileError, match="got all rows of 'c1' in one fold"):
        numbers([0] * 10 + [1] * 2, [*range(10), 10, 10])


def prepared_in(folder: Path, *specs: TaskSpec, folds: int | None = 5, **settings: Any) -> Prepared:
    return prepare(specs, folder=folder, **{"validation": None if folds else 0.2, "folds": folds, "seed": 0} | settings)


def test_train_keeps_all_rows_with_their_fold_and_validation_has_those_of_the_task_s_own_file(make_spec, tmp_path):
    extra = [([(f"r{n}", f"more {n}", "yes") for n in range(9)], 0.5)]
    prepared = prepared_in(tmp_path / "data", make_spec(train=TRAIN, extra=extra, test=[("0", "a")]))
    train, held_out, folds = prepared.rows("A", "train"), prepared.rows("A", "validation"), prepared.folds("A")
    assert train["id"].tolist() == [row[0] for row in TRAIN] + [f"extra0/r{n}" for n in range(9)]
    assert train["fold"].dtype == folds.dtype == np.int32
    assert train["fold"].tolist() == folds.tolist()
    assert folds[31:].tolist() == [-1] * 9
    assert sorted(Counter(folds[:31].tolist()).items()) == [(0, 7), (1, 6), (2, 6), (3, 6), (4, 6)]
    assert list(held_out) == ["id", "text", "label"]
    assert held_out.to_numpy().tolist() == train[["id", "text", "label"]][:31].to_numpy().tolist()
    assert "fold" not in prepared.rows("A", "test")
    assert load_prepared(prepared.folder) == prepared


def test_folds_do_not_depend_on_tasks_with_other_texts_or_on_rows_of_other_files(make_spec, tmp_path):
    other = [(row[0], f"other {row[1]}", row[2]) for row in TRAIN[:20]]
    together = prepared_in(tmp_path / "one", make_spec("A", train=other), make_spec("B", train=TRAIN))
    alone = prepared_in(tmp_path / "two", make_spec("B", train=TRAIN, extra=[([("0", "a", "no")], 1.0)]))
    assert together.folds("B").tolist() == alone.folds("B").tolist()[:31]


def test_other_folds_are_refused_and_named(make_spec: MakeSpec, tmp_path: Path) -> None:
    spec = make_spec(train=TRAIN)
    prepared_in(tmp_path / "data", spec)
    for changed, keys in (
        ({"folds": 4}, ["folds"]),
        ({"folds": None}, ["folds", "validation"]),
        ({"seed": 1}, ["seed"]),
    ):
        with pytest.raises(StudyError) as caught:
            prepared_in(tmp_path / "data", spec, **changed)  # type: ignore[arg-type]
        assert [fault.what for fault in caught.value.faults] == [f"split: {key}" for key in keys]


def test_a_study_without_folds_has_none_to_give(make_spec: MakeSpec, tmp_path: Path) -> None:
    prepared = prepared_in(tmp_path / "data", make_spec(train=TRAIN), folds=None)
    with pytest.raises(StorageError, match=r"train\.parquet must be as preparation wrote it"):
        prepared.folds("A")


def test_a_row_that_is_taken_from_a_part_is_the_same_row_everywhere(make_spec, tokenizer_folder, tmp_path):
    pairs = [(name, text, f"w5{n % 10} w1", label) for n, (name, text, label) in enumerate(TRAIN)]
    spec = make_spec(pair=True, train=pairs, extra=[([("x", "w9", "w8", "no")], 0.25)], test=[("0", "w1", "w2")])
    prepared = prepared_in(tmp_path / "data", spec)
    parts = load_parts(prepared, tokenizer=tokenizer_folder, limit=TextLimit(16), cache=tmp_path / "cache")["A"]
    whole = parts["train"]
    rows = np.array([31, 4, 30, 4, 0])
    for part, expected in ((take(whole, rows), rows), (take(take(whole, rows), np.array([2, 0])), rows[[2, 0]])):
        assert part.ids.tolist() == whole.ids[expected].tolist()
        for name in whole.encoded.column_names:
            assert part.encoded[name][:] == [whole.encoded[int(row)][name] for row in expected]
        assert part.encoded.features == whole.encoded.features
        assert part.lengths.tolist() == [len(tokens) for tokens in part.encoded["input_ids"]]
        assert part.labels is not None
        assert whole.labels is not None
        assert part.labels.tolist() == whole.labels[expected].tolist()
        assert part.weights.tolist() == whole.weights[expected].tolist()
        assert part.pad_token_id == whole.pad_token_id
    test = take(parts["test"], np.array([0, 0]))
    assert test.labels is None
    none = take(whole, np.empty(0, dtype=np.int64))
    assert (len(none.ids), len(none.encoded), none.encoded.column_names) == (0, 0, whole.encoded.column_names)
