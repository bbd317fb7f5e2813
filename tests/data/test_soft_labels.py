"""Probabilities in place of labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from task_rows import TRAIN, MakeSpec

from tutti.config.study import TaskConfig
from tutti.data.encode import load_parts, take
from tutti.data.prepare import prepare
from tutti.data.prepared import load_prepared
from tutti.errors import TaskFileError
from tutti.records import TextLimit
from tutti.tasks.build import task_specs
from tutti.tasks.layouts.soft import PROBABILITY, SoftLabels


def _soft(path: Path, names: tuple[str, ...], probabilities: list[list[float]]) -> Path:
    rows = pd.DataFrame(
        {"id": [str(n) for n in range(len(probabilities))], "text": [f"soft {n}" for n in range(len(probabilities))]}
    )
    values = np.array(probabilities, dtype=np.float32)
    SoftLabels().write(rows.assign(**{PROBABILITY + name: values[:, n] for n, name in enumerate(names)}), path)
    return path


def test_soft_labels_become_targets_in_the_order_of_the_classes(make_spec, run_preparation, tmp_path):
    file = _soft(tmp_path / "s.parquet", ("yes", "no"), [[0.75, 0.25], [0.0, 1.0]])
    prepared = run_preparation(make_spec(train=TRAIN, soft=[(file, 0.5)], extra=[([("0", "more", "yes")], 1.0)]))
    train = prepared.rows("A", "train").set_index("id")
    assert prepared.tasks[0].names == ("no", "yes")
    assert train["probabilities"]["extra1/0"].tolist() == [0.25, 0.75]
    assert (train["label"]["extra1/0"], train["label"]["extra1/1"]) == (1, 0)
    assert train["weight"]["extra1/0"] == 0.5
    assert train["probabilities"].notna().sum() == 2
    assert list(prepared.rows("A", "validation")) == ["id", "text", "label"]
    again = load_prepared(prepared.folder)
    assert again.parts["A"]["train"].soft
    assert not again.parts["A"]["validation"].soft


def test_soft_labels_stand_beside_one_for_each_other_row(make_spec, run_preparation, tmp_path, tokenizer_folder):
    file = _soft(tmp_path / "s.parquet", ("yes", "no"), [[0.75, 0.25], [0.0, 1.0]])
    prepared = run_preparation(make_spec(train=TRAIN, soft=[(file, 1.0)]))
    arguments = {"tokenizer": tokenizer_folder, "limit": TextLimit(8), "cache": tmp_path / "cache"}
    part = load_parts(prepared, **arguments)["A"]["train"]
    assert (part.targets.shape, part.targets.dtype) == ((26, 2), np.float32)
    assert part.targets[-2:].tolist() == [[0.25, 0.75], [1, 0]]
    assert np.array_equal(part.targets[:-2], np.eye(2, dtype=np.float32)[part.labels[:-2]])
    assert np.array_equal(take(part, np.array([24, 3])).targets, part.targets[[24, 3]])
    assert load_parts(prepared, **arguments)["A"]["validation"].targets is None


def test_a_class_that_only_soft_labels_name_is_refused(make_spec, run_preparation, tmp_path):
    file = _soft(tmp_path / "s.parquet", ("yes", "maybe"), [[0.25, 0.75]])
    with pytest.raises(TaskFileError, match=r"s.parquet must have probabilities of no, yes alone; got also of maybe"):
        run_preparation(make_spec(train=TRAIN, soft=[(file, 1.0)]))


def test_with_folds_soft_labels_train_in_every_fold_and_validate_in_none(make_spec: MakeSpec, tmp_path: Path) -> None:
    file = _soft(tmp_path / "s.parquet", ("yes", "no"), [[0.75, 0.25], [0.0, 1.0]])
    prepared = prepare(
        [make_spec(train=TRAIN, soft=[(file, 1.0)])], validation=None, folds=3, seed=0, folder=tmp_path / "data"
    )
    train = prepared.rows("A", "train")
    assert train["fold"][train["probabilities"].notna()].tolist() == [-1, -1]
    assert list(prepared.rows("A", "validation")) == ["id", "text", "label"]
    assert prepared.parts["A"]["validation"].rows == 30


@pytest.mark.parametrize("folds", [None, 3])
def test_where_no_soft_label_is_left_rows_have_labels_alone(make_spec, tmp_path, tokenizer_folder, folds):
    file = _soft(tmp_path / "s.parquet", ("yes", "no"), [[0.75, 0.25], [0.0, 1.0]])
    known = [("0", "soft 0", "yes"), ("1", "soft 1", "no")]
    parts = {"train": TRAIN, "validation": known} if folds is None else {"train": [*TRAIN, *known]}
    spec = make_spec(**parts, soft=[(file, 1.0)])
    prepared = prepare([spec], validation=None, folds=folds, seed=0, folder=tmp_path / "data")
    assert not prepared.parts["A"]["train"].soft
    arguments = {"tokenizer": tokenizer_folder, "limit": TextLimit(8), "cache": tmp_path / "cache"}
    assert load_parts(prepared, **arguments)["A"]["train"].targets is None


def test_soft_labels_of_several_stand_beside_0_1_and_unknown_ones(run_preparation, tmp_path, tokenizer_folder):
    lines = [f"text {n},{n % 2},{'' if n % 5 == 4 else n % 3 // 2},{n % 4 // 3}" for n in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["text,joy,love,fear", *lines]) + "\n")
    rows = pd.DataFrame({"id": ["0", "1"], "text": ["soft 0", "soft 1"]})
    rows = rows.assign(**{PROBABILITY + "love": np.float32([0.25, 1.0]), PROBABILITY + "joy": np.float32([0.5, 0.75])})
    SoftLabels(exclusive=False).write(rows, tmp_path / "t.soft.parquet")
    config = TaskConfig(
        layout="table",
        train=str(tmp_path / "t.csv"),
        columns={"labels": ["joy", "love", "fear"]},
        extra_train=[{"path": str(tmp_path / "t.soft.parquet"), "labels": "soft"}],
    )
    prepared = run_preparation(*task_specs({"A": config}))
    part = load_parts(prepared, tokenizer=tokenizer_folder, limit=TextLimit(8), cache=tmp_path / "cache")["A"]["train"]
    np.testing.assert_array_equal(part.targets[-2:], np.float32([[0.5, 0.25, np.nan], [0.75, 1.0, np.nan]]))
    np.testing.assert_array_equal(part.targets[:-2], part.labels[:-2])
    assert np.isnan(part.labels).any()
