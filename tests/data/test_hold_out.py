"""One draw for all tasks: what one task validates on, none trains on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_rows import TRAIN, MakeSpec

from tutti.config.study import Split, TaskConfig
from tutti.data.clean import text_groups_of
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared, load_prepared
from tutti.errors import ConfigError, TaskFileError
from tutti.tasks.build import task_specs

CLASSES = [(f"r{n}", f"text {n % 24}", "abc"[n * n % 5 % 3]) for n in range(30)]
VALUES = [(f"r{n}", f"number {n % 24}", str(n * n % 7)) for n in range(30)]


def prepared_in(folder: Path, *specs: Any, **settings: Any) -> Prepared:
    return prepare(specs, folder=folder / "data", **{"validation": 0.2, "seed": 0} | settings)


def texts(prepared: Prepared, part: str) -> set[str]:
    return {text for task in prepared.parts for text in prepared.rows(task, part)["text"]}


def table(folder: Path, rows: list[tuple[str, ...]], *, name: str = "A", split: Any, **keys: Any) -> Any:
    """The specification of a table with the columns text, label, group and fold."""
    file = folder / f"{name}.csv"
    file.write_text("text,label,prompt,part\n" + "".join(",".join(row) + "\n" for row in rows))
    config = TaskConfig.model_validate({"layout": "table", "train": str(file), **keys})
    return task_specs({name: config}, split=Split.model_validate(split))[0]


def test_tasks_without_common_texts_are_drawn_as_ever(make_spec: MakeSpec, tmp_path: Path) -> None:
    specs = make_spec("A", train=CLASSES), make_spec("B", train=VALUES, metric="pearson")
    shares = prepared_in(tmp_path / "one", *specs, validation=0.25, seed=3)
    assert shares.ids("A", "validation").tolist() == ["r3", "r8", "r12", "r15", "r16", "r19", "r27"]
    assert shares.ids("B", "validation").tolist() == ["r2", "r7", "r8", "r12", "r17", "r22", "r26"]
    folds = prepared_in(tmp_path / "two", *specs, validation=None, folds=4, seed=3)
    assert "".join(map(str, folds.folds("A"))) == "312210013310133202320102312210"
    assert "".join(map(str, folds.folds("B"))) == "332200102123001131320231332200"


def test_no_task_trains_on_a_text_that_another_holds_out(make_spec: MakeSpec, tmp_path: Path) -> None:
    rows = [(f"r{n}", f"text {n}", "yes" if n % 4 else "no") for n in range(300)]
    values = [(identity, text, str(n % 7)) for n, (identity, text, _) in enumerate(rows[100:])]
    specs = make_spec("A", train=rows), make_spec("B", train=rows[::-1]), make_spec("C", train=values, metric="pearson")
    prepared = prepared_in(tmp_path, *specs)
    assert not texts(prepared, "train") & texts(prepared, "validation")
    for task, count in (("A", 60), ("B", 60), ("C", 40)):
        held_out = prepared.rows(task, "validation")
        assert abs(len(held_out) - count) <= 1
        if task != "C":
            assert abs((held_out["label"] == 0).sum() - 15) <= 1
    assert prepared.notices == ()
    again = prepared_in(tmp_path / "again", *specs[::-1])
    assert [again.ids(task, "validation").tolist() for task in "ABC"] == [
        prepared.ids(task, "validation").tolist() for task in "ABC"
    ]


def test_a_text_is_in_the_same_fold_of_all_tasks_and_folds_are_even(make_spec: MakeSpec, tmp_path: Path) -> None:
    rows = [(f"r{n}", f"text {n}", "yes" if n % 4 else "no") for n in range(200)]
    other = [(identity, text, "abc"[n % 3]) for n, (identity, text, _) in enumerate(rows)]
    prepared = prepared_in(tmp_path, make_spec("A", train=rows), make_spec("B", train=other), validation=None, folds=5)
    assert prepared.folds("A").tolist() == prepared.folds("B").tolist()
    for task in "AB":
        labels, folds = prepared.rows(task, "train")["label"].to_numpy(), prepared.folds(task)
        for label in np.unique(labels):
            sizes = np.bincount(folds[labels == label], minlength=5)
            assert sizes.max() - sizes.min() <= 2


def test_texts_of_a_task_s_own_validation_file_do_not_train_other_tasks(make_spec: MakeSpec, tmp_path: Path) -> None:
    own = [("v1", "text 3", "yes"), ("v2", "text 4", "no"), ("v3", "nowhere else", "no")]
    more = [(f"m{n}", f"more {n}", "no" if n % 2 else "yes") for n in range(20)]
    extra = [([("e", "text 4", "no"), ("f", "new", "no")], 1.0)]
    specs = make_spec("A", train=TRAIN), make_spec("B", train=more + TRAIN[:5], validation=own, extra=extra)
    prepared = prepared_in(tmp_path, *specs)
    assert not {"text 3", "text 4"} & {*prepared.rows("A", "train")["text"], *prepared.rows("A", "validation")["text"]}
    assert {"text 3", "text 4"} <= set(prepared.rows("B", "train")["text"])  # its own file is its user's business
    assert prepared.notices[1] == "A: left out 2 training rows whose texts other tasks validate on"
    held_out = set(prepared.rows("A", "validation")["text"])
    assert not held_out & set(prepared.rows("B", "train")["text"])


def test_extra_rows_do_not_train_on_what_another_task_validates_on(make_spec: MakeSpec, tmp_path: Path) -> None:
    extra = [([*((f"e{n}", f"text {n}", "yes") for n in range(30)), ("new", "nowhere else", "no")], 1.0)]
    other = [(f"r{n}", f"other {n}", "yes" if n % 3 else "no") for n in range(30)]
    prepared = prepared_in(tmp_path, make_spec("A", train=TRAIN), make_spec("B", train=other, extra=extra))
    assert not texts(prepared, "train") & texts(prepared, "validation")
    assert len(prepared.rows("B", "train")) == 24 + 31 - len(prepared.rows("A", "validation"))


def test_rows_that_share_a_text_or_a_group_have_one_number_also_through_others() -> None:
    import pandas as pd

    first = pd.DataFrame({"text": list("abcde"), "group": ["p", "q", "", "", "q"]})
    second = pd.DataFrame({"text": ["c", "a", "z"], "group": ["q", "", ""]})
    numbers = text_groups_of({"A": first, "B": second})
    assert numbers["A"].tolist() == [0, 1, 1, 2, 1]
    assert numbers["B"].tolist() == [1, 0, 3]
    assert text_groups_of({"A": first[["text"]]})["A"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("folds", [None, 4])
def test_rows_of_a_group_are_held_out_together_and_shares_are_kept(tmp_path: Path, folds: int | None) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"t{n}", "ab"[n % 2], f"p{rng.integers(40)}", "") for n in range(400)]
    split = {"group": "prompt"} | ({"folds": folds} if folds else {})
    spec = table(tmp_path, rows, split=split)
    prepared = prepared_in(tmp_path, spec, validation=None if folds else 0.25, folds=folds, group="prompt")
    held_out, train = prepared.rows("A", "validation"), prepared.rows("A", "train")
    assert list(train)[:4] == ["id", "text", "label", "weight"]
    assert "group" not in train
    group_of = {text: group for text, _, group, _ in rows}
    assert held_out["group"].tolist() == [group_of[text] for text in held_out["text"]]
    if folds:
        pairs = set(zip(held_out["group"], prepared.folds("A").tolist(), strict=True))
        assert len(pairs) == held_out["group"].nunique()
        assert np.abs(np.bincount(prepared.folds("A")) - 100).max() <= 4
    else:
        assert not set(held_out["group"]) & {group_of[text] for text in train["text"]}
        assert abs(len(held_out) - 100) <= 4
        assert np.abs(np.bincount(held_out["label"]) - 50).max() <= 4
    assert load_prepared(prepared.folder) == prepared


def test_pairs_are_grouped_by_a_text_in_any_layout(make_spec: MakeSpec, tmp_path: Path) -> None:
    pairs = [(f"r{n}", f"premise {n // 3}", f"hypothesis {n}", "abc"[n % 3]) for n in range(90)]
    spec = make_spec(train=pairs, pair=True)
    prepared = prepared_in(tmp_path / "one", replace(spec, group="text"), group="text")
    assert not texts(prepared, "train") & texts(prepared, "validation")
    assert prepared.notices == ()
    missed = prepared_in(tmp_path / "two", spec)
    assert missed.notices == (
        "A: 90 of 90 rows share their first text with others; to hold them out together, set `split: {group: text}`",
    )
    with pytest.raises(ConfigError, match="must name text_b only for tasks of pairs; got the single texts"):
        prepared_in(tmp_path / "three", replace(make_spec("B", train=TRAIN), group="text_b"))


def test_a_missed_column_of_groups_is_named(tmp_path: Path) -> None:
    rows = [(f"t{n}", "ab"[n // 3 % 2], f"p{n // 3}", "") for n in range(150)]
    prepared = prepared_in(tmp_path, table(tmp_path, rows, split={}))
    assert [notice.rpartition("set ")[2] for notice in prepared.notices] == ["`split: {group: prompt}`"]


def test_the_folds_of_a_column_are_kept(tmp_path: Path) -> None:
    rows = [(f"t{n % 40}", "ab"[n % 2], "", ["10", "9", "late"][n % 3]) for n in range(60)]
    spec = table(tmp_path, rows, split={"fold_column": "part"})
    settings = {"validation": None, "folds": None, "fold_column": "part"}
    prepared = prepared_in(tmp_path, spec, **settings)
    assert prepared.folds("A").tolist() == [n % 3 for n in range(60)]
    assert prepared.settings["split"]["folds"] == 3
    assert prepared.notices == (
        "40 rows in the column 'part' (split.fold_column) share texts with rows of another fold, so that scores come "
        "out too high",
    )
    assert prepared_in(tmp_path, spec, **settings) == prepared
    assert prepared_in(tmp_path, spec, **settings | {"folds": 3}) == prepared
    with pytest.raises(ConfigError, match=r"split\.folds must be 3, the number of folds in the column 'part'"):
        prepared_in(tmp_path / "other", spec, **settings | {"folds": 4})


def test_every_task_needs_rows_in_each_fold_of_the_column(tmp_path: Path) -> None:
    split = {"fold_column": "part"}
    one = table(tmp_path, [(f"t{n}", "ab"[n % 2], "", str(n % 3)) for n in range(12)], split=split)
    two = table(tmp_path, [(f"s{n}", "ab"[n // 2 % 2], "", str(n % 2)) for n in range(12)], name="B", split=split)
    with pytest.raises(TaskFileError, match="task B must have rows in each of the 3 folds; got none in '2'"):
        prepared_in(tmp_path, one, two, validation=None, fold_column="part")


def test_copies_of_a_text_do_not_take_the_place_of_others(make_spec: MakeSpec, tmp_path: Path) -> None:
    rows = [(f"r{n}", f"text {n % 50 if n < 100 else 0}", "ab"[n % 2]) for n in range(200)]
    prepared = prepared_in(tmp_path, make_spec("A", train=rows), make_spec("B", train=rows), validation=0.1)
    assert Counter(prepared.rows("A", "validation")["text"])["text 0"] == 0
    assert 10 <= len(prepared.rows("A", "validation")) <= 25
