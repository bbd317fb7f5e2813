"""The rows of each part: read, cleaned, split, weighted, and refused with all their faults."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_rows import TRAIN, MakeSpec

from tutti.config.cleaning import Cleaning
from tutti.config.study import TaskConfig
from tutti.data.clean import row_texts
from tutti.data.prepare import prepare
from tutti.errors import TaskFileError
from tutti.tasks.build import TaskSpec, task_specs


def test_every_training_row_is_in_train_or_validation_once(make_spec: MakeSpec, run_preparation: Any) -> None:
    prepared = run_preparation(make_spec(train=TRAIN))
    train, held_out = prepared.rows("A", "train"), prepared.rows("A", "validation")
    assert sorted([*train["id"], *held_out["id"]]) == sorted(row[0] for row in TRAIN)
    names = prepared.tasks[0].names
    assert names == ("no", "yes")
    texts = {row[0]: row[1:] for row in TRAIN}
    for rows in (train, held_out):
        rows_read = zip(rows["id"], rows["text"], rows["label"], strict=True)
        assert all(texts[identity] == (text, names[label]) for identity, text, label in rows_read)
    assert len(held_out) == prepared.parts["A"]["validation"].rows == 6


def test_columns_have_the_promised_types(make_spec: MakeSpec, run_preparation: Any) -> None:
    pair = [(*row[:2], "other", row[2]) for row in TRAIN]
    prepared = run_preparation(make_spec(train=pair, test=[("0", "a", "b")], pair=True))
    train = prepared.rows("A", "train")
    assert list(train) == ["id", "text", "text_b", "label", "weight"]
    assert (train["label"].dtype, train["weight"].dtype) == (np.int32, np.float32)
    assert list(prepared.rows("A", "validation")) == ["id", "text", "text_b", "label"]
    assert list(prepared.rows("A", "test")) == ["id", "text", "text_b"]
    assert prepared.ids("A", "test").tolist() == ["0"]
    assert [info.labelled for info in prepared.parts["A"].values()] == [True, True, False]


def test_a_task_with_its_own_validation_file_is_not_split(make_spec: MakeSpec, run_preparation: Any) -> None:
    prepared = run_preparation(make_spec(train=TRAIN, validation=[("z", "c", "yes"), ("y", "c", "yes")]))
    assert prepared.ids("A", "train").tolist() == [row[0] for row in TRAIN]
    assert prepared.ids("A", "validation").tolist() == ["z", "y"]


def test_extra_rows_train_with_their_weight_and_never_validate(make_spec: MakeSpec, run_preparation: Any) -> None:
    extra = [([(f"r{n}", f"more {n}", "yes") for n in range(20)], 0.5), ([("r0", "last", "no")], 0.25)]
    prepared = run_preparation(make_spec(train=TRAIN, extra=extra))
    train = prepared.rows("A", "train")
    weights = dict(zip(train["id"], train["weight"], strict=True))
    assert {weights[f"extra0/r{n}"] for n in range(20)} == {0.5}
    assert weights["extra1/r0"] == 0.25
    assert {weight for identity, weight in weights.items() if not identity.startswith("extra")} == {1.0}
    assert not any(identity.startswith("extra") for identity in prepared.ids("A", "validation"))
    assert len(train) + prepared.parts["A"]["validation"].rows == 51


@pytest.mark.parametrize("held_out", ["a share", "a file", "folds"])
def test_extra_rows_with_the_texts_of_rows_to_validate_on_are_left_out(make_spec, tmp_path, held_out):
    extra = [([*((f"e{n}", f"text {n}", "yes") for n in range(30)), ("new", "nowhere else", "no")], 1.0)]
    file = {"validation": [("v", "text 3", "yes"), ("w", "unseen", "yes")]} if held_out == "a file" else {}
    prepared = prepare(
        [make_spec(train=TRAIN, extra=extra, **file)],
        validation=0.2 if held_out == "a share" else None,
        folds=3 if held_out == "folds" else None,
        seed=0,
        folder=tmp_path / "data",
    )
    train, validation = prepared.rows("A", "train"), prepared.rows("A", "validation")
    learnt = train[train["id"].str.startswith("extra")]
    assert "extra0/new" in set(learnt["id"])
    assert not set(learnt["text"]) & set(validation["text"])
    assert len(learnt) == 31 - len(validation[validation["text"] != "unseen"])
    assert len(train) == 30 + len(learnt) - (len(validation) if held_out == "a share" else 0)
    if held_out == "folds":
        assert (train["fold"][train["id"].str.startswith("extra")] == -1).all()


@pytest.mark.parametrize(("one", "other"), [("1", "1.0"), ("true", "True"), ("01", "1")])
def test_two_spellings_of_a_class_are_told(make_spec: MakeSpec, run_preparation: Any, one: str, other: str) -> None:
    rows = [(f"r{n}", f"text {n}", one if n % 2 else "0") for n in range(30)]
    spec = make_spec(train=rows, extra=[([("e", "another", other)], 1.0)])
    with pytest.raises(TaskFileError, match="must have one spelling of each class; got ") as caught:
        run_preparation(spec)
    assert repr(one) in str(caught.value)
    assert repr(other) in str(caught.value)


@pytest.mark.parametrize("names", [(str(2**53), str(2**53 + 1)), ("1.1", "1.10"), ("10", "1e1"), ("1e9999999", "2")])
def test_numbers_that_are_names_are_classes_of_their_own(make_spec, run_preparation, names):
    rows = [(f"r{n}", f"text {n}", names[n % 2]) for n in range(30)]
    assert set(run_preparation(make_spec(train=rows)).tasks[0].names) == set(names)


@pytest.mark.parametrize("folds", [None, 3])
def test_a_class_that_extra_rows_alone_have_is_told_with_its_file(make_spec, tmp_path, folds):
    extra = [([("e", "new", "yes")], 1.0), ([("e", "other", "yse"), ("f", "more", "yse"), ("g", "and", "no")], 1.0)]
    spec = make_spec(train=TRAIN, extra=extra)
    message = r"extra1.tsv must have labels that occur in \S*train.tsv; got 'yse' in 2 rows; correct the labels"
    with pytest.raises(TaskFileError, match=message) as caught:
        prepare([spec], validation=None if folds else 0.2, folds=folds, seed=0, folder=tmp_path / "data")
    assert len(caught.value.faults) == 1


def test_a_class_of_extra_rows_that_a_validation_file_judges_is_learnt(make_spec, run_preparation):
    held_out = [("v", "seen there", "maybe"), ("w", "too", "yes")]
    prepared = run_preparation(make_spec(train=TRAIN, validation=held_out, extra=[([("e", "new", "maybe")], 1.0)]))
    assert prepared.tasks[0].names == ("maybe", "no", "yes")


def test_a_class_of_extra_rows_alone_that_are_all_left_out_is_told(make_spec: MakeSpec, run_preparation: Any) -> None:
    held_out = [("v", "seen there", "maybe"), ("w", "too", "yes")]
    spec = make_spec(train=TRAIN, validation=held_out, extra=[([("e", "seen there", "maybe")], 1.0)])
    rule = "must have a row of each class besides those of extra_train whose texts are validated on"
    with pytest.raises(TaskFileError, match=f"{rule}; got none of 'maybe'"):
        run_preparation(spec)


def test_extra_rows_do_not_change_the_split(make_spec: MakeSpec, run_preparation: Any) -> None:
    before = run_preparation(make_spec("A", train=TRAIN), folder="one")
    after = run_preparation(make_spec("A", train=TRAIN, extra=[([("0", "a", "no")], 1.0)]), folder="two")
    assert before.ids("A", "validation").tolist() == after.ids("A", "validation").tolist()


@pytest.mark.parametrize("folds", [None, 5])
def test_rows_with_the_same_texts_are_on_one_side_of_the_split_and_in_one_fold(make_spec, tmp_path, folds):
    rows = [(f"r{n}", f"text {n % 20}", f"other {n % 3}", "yes" if n % 7 else "no") for n in range(90)]
    prepared = prepare(
        [make_spec(train=rows, pair=True)],
        validation=None if folds else 0.2,
        folds=folds,
        seed=0,
        folder=tmp_path / "prepared",
    )
    train, held_out = prepared.rows("A", "train"), prepared.rows("A", "validation")
    if folds:
        assert len(train) == 90
        assert len(train.drop_duplicates(["text", "text_b", "fold"])) == 60
    else:
        assert len(train) + len(held_out) == 90
        assert len(held_out.drop_duplicates(["text", "text_b"])) == 12
        assert not set(row_texts(train)) & set(row_texts(held_out))


def test_duplicates_leave_the_training_rows_alone(make_spec: MakeSpec, run_preparation: Any) -> None:
    same = [("s1", "same!!", "yes"), ("s2", "same!", "yes"), ("s3", "same", "no")]
    held_out = [*same, ("s4", "unseen", "no")]
    spec = make_spec(train=TRAIN + same, validation=held_out, test=[row[:2] for row in same])
    prepared = run_preparation(replace(spec, cleaning=Cleaning(duplicates=True, repeated_punctuation=True)))
    assert prepared.ids("A", "train").tolist()[-2:] == ["s1", "s3"]
    assert prepared.ids("A", "validation").tolist() == ["s1", "s2", "s3", "s4"]
    assert prepared.rows("A", "test")["text"].tolist() == ["same!", "same!", "same"]


def _weighted_table(folder: Path, weights: Sequence[str], labels: Sequence[str] = ("a", "b")) -> TaskSpec:
    lines = [f"text {n},{labels[n % len(labels)]},{weight}" for n, weight in enumerate(weights)]
    file = folder / "weighted.csv"
    file.write_text("\n".join(["text,label,sure", *lines]) + "\n")
    (spec,) = task_specs({"A": TaskConfig(layout="table", train=str(file), row_weight="sure")})
    return spec


def test_a_column_weighs_the_rows_of_a_table(run_preparation: Any, tmp_path: Path) -> None:
    train = run_preparation(_weighted_table(tmp_path, ["0.5", "2", "0", "1e-1"] * 5)).rows("A", "train")
    expected = [[0.5, 2, 0, 0.1][int(text.split()[1]) % 4] for text in train["text"]]
    assert train["weight"].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("cell", "shown"), [("high", "'high'"), ("-1", "'-1'"), ("nan", "'nan'")])
def test_a_weight_that_is_no_number_from_0_up_is_told_with_its_row(run_preparation, tmp_path, cell, shown):
    weights = ["1"] * 20
    weights[7] = weights[9] = cell
    rule = (
        rf"weighted.csv, the column of `row_weight` must have numbers of at least 0; got {shown} in the row .* 1 more"
    )
    with pytest.raises(TaskFileError, match=rule):
        run_preparation(_weighted_table(tmp_path, weights))


def test_rows_that_all_weigh_nothing_are_refused(run_preparation: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="and some above it; got 0 in every row"):
        run_preparation(_weighted_table(tmp_path, ["0"] * 20))


def test_classes_that_look_like_several_labels_are_told(run_preparation: Any, tmp_path: Path) -> None:
    prepared = run_preparation(_weighted_table(tmp_path, ["1"] * 20, ["joy|love", "love|fear", "joy|fear"]))
    (notice,) = prepared.notices
    assert notice.startswith("A: classes such as 'joy|")
    assert "columns: {labels: label, separator: '|'}" in notice


def test_validation_rows_that_are_training_rows_are_counted_and_all_are_refused(make_spec, run_preparation):
    """Texts count as they are trained on, that is, cleaned; rows of extra_train are left out instead."""
    learnt, clean = [("v", "text 3!!", "no"), ("w", "text 4", "yes")], Cleaning(repeated_punctuation=True)
    rows, extra = [*TRAIN, ("r", "text 3!", "no")], [([("e", "new", "yes")], 1.0)]
    spec = make_spec(train=rows, validation=[*learnt, ("x", "new", "no")], extra=extra)
    notice = run_preparation(replace(spec, cleaning=clean)).notices[0]
    assert re.search(r"2 of 3 rows of \S*validation.tsv are training rows too \(the same texts\)", notice)
    spec = make_spec("B", train=rows, validation=learnt)
    with pytest.raises(
        TaskFileError, match=r"validation.tsv must have rows that are not trained on; got .* all 2 rows"
    ):
        run_preparation(replace(spec, cleaning=clean), folder="second")
    assert (
        run_preparation(
            make_spec("C", train=TRAIN, validation=[("x", "new", "no"), ("y", "newer", "yes")]), folder="c"
        ).notices
        == ()
    )


def test_notices_are_kept_with_the_prepared_rows(make_spec: MakeSpec, run_preparation: Any) -> None:
    spec = make_spec(train=TRAIN, validation=[("v", "text 3", "no"), ("w", "new", "yes")])
    first = run_preparation(spec)
    assert len(first.notices) == 1
    assert run_preparation(spec).notices == first.notices


def test_a_validation_label_that_training_rows_write_otherwise_is_told_with_both_spellings(make_spec, run_preparation):
    rows = [(f"r{n}", f"text {n}", f"{n % 3}.0") for n in range(30)]
    spec = make_spec(train=rows, validation=[("v", "a", "0"), ("w", "b", "1"), ("x", "c", "0"), ("y", "d", "7")])
    with pytest.raises(
        TaskFileError, match=r"got '0' in 2 rows where it has '0.0', '1' in 1 row where it has '1.0'; wri"
    ):
        run_preparation(spec)
    with pytest.raises(TaskFileError, match="got '7' in 1 row; correct the labels, or add training rows"):
        run_preparation(spec)


def test_texts_are_cleaned_in_every_part(make_spec: MakeSpec, run_preparation: Any) -> None:
    pair = [(*row[:2], "b[生病]", row[2]) for row in TRAIN]
    spec = make_spec(train=pair, test=[("0", "a😂", "b[生病]")], unlabeled=[("0", "a😂", "b")], pair=True)
    prepared = run_preparation(replace(spec, cleaning=Cleaning(emoji="zh", emoticons=True)))
    assert set(prepared.rows("A", "train")["text_b"]) == {"b生病"}
    assert prepared.rows("A", "test")[["text", "text_b"]].to_numpy().tolist() == [["a笑哭了", "b生病"]]
    assert prepared.rows("A", "unlabeled")["text"].tolist() == ["a笑哭了"]


def test_the_faults_of_all_tasks_and_parts_are_raised_together(make_spec, run_preparation, tmp_path):
    first = make_spec("A", train=[("0", " ", "yes")], test=[("0", "a", "too many")])
    second = make_spec("B", train=[("0", "a", "yes"), ("0", "b", "")])
    with pytest.raises(TaskFileError) as caught:
        run_preparation(first, second)
    assert [Path(fault.what.split(", ")[0]).name for fault in caught.value.faults] == [
        "train.tsv",
        "test.tsv",
        "train.tsv",
    ]
    assert not (tmp_path / "data").exists()


def test_importing_preparation_loads_no_heavy_library() -> None:
    heavy = "torch", "transformers", "datasets", "sklearn", "ray", "mlflow"
    code = f"import sys, tutti.data.prepare, tutti.data.encode; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
