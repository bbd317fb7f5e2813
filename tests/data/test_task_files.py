"""What files a task may have: several for one part, ids that repeat, further validation sets, some rows of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti.config.study import StudyConfig
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.errors import TaskFileError
from tutti.orchestration.worker.folds import trained_in
from tutti.tasks.build import task_specs

WORDS = {"0": "calm", "1": "glad"}


def lines(part: str, rows: int, *, ids: str = "", labelled: bool = True) -> str:
    cells = (
        (ids or str(row), f"{part} {WORDS[str(row % 2)]} {row}", *[str(row % 2)] * labelled) for row in range(rows)
    )
    return "".join("\t".join(row) + "\n" for row in cells)


@pytest.fixture
def files(tmp_path) -> Path:
    for part in ("a", "b", "matched", "mismatched"):
        (tmp_path / f"{part}.tsv").write_text(lines(part, 20))
    (tmp_path / "pseudo.tsv").write_text(lines("pseudo", 10, ids="test"))
    for part in ("round1", "round2"):
        (tmp_path / f"{part}.tsv").write_text(lines(part, 8, labelled=False))
    return tmp_path


def prepared(files: Path, *, place: str = "data", **task: object) -> Prepared:
    def path(value: object) -> object:
        if isinstance(value, dict):
            return {name: path(each) for name, each in value.items()}
        if isinstance(value, list):
            return [path(each) for each in value]
        return str(files / value) if isinstance(value, str) else value

    keys = {"layout": "competition", **{key: path(value) for key, value in task.items()}}
    config = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"t": keys}})
    share = None if "validation" in task else 0.25
    return prepare(task_specs(config.tasks), validation=share, seed=0, folder=files / place)


def test_rows_of_several_files_are_one_part_whose_ids_are_made_different(files):
    found = prepared(files, train=["a.tsv", "b.tsv", "pseudo.tsv"], unlabeled=["round1.tsv", "round2.tsv"])
    labelled = {*found.ids("t", "train"), *found.ids("t", "validation")}
    assert len(labelled) == 50
    assert {"0", "0#2", "test", "test#2"} <= labelled
    assert found.ids("t", "unlabeled").tolist()[6:10] == ["6", "7", "0#2", "1#2"]
    assert {*found.origins["t"]} == {"train", "train-1", "train-2", "unlabeled", "unlabeled-1"}


def test_ids_of_rows_to_predict_must_differ(files):
    (files / "test.tsv").write_text(lines("test", 4, ids="test", labelled=False))
    with pytest.raises(TaskFileError, match="have an id of its own"):
        prepared(files, train="a.tsv", test="test.tsv")


def test_the_first_validation_set_decides_and_the_others_are_kept_to_be_logged(files):
    found = prepared(files, train="a.tsv", validation={"m": "matched.tsv", "mm": "mismatched.tsv"})
    assert found.rows("t", "validation")["text"].str.startswith("matched").all()
    assert found.rows("t", "report-mm")["text"].str.startswith("mismatched").all()
    (files / "mismatched.tsv").write_text("0\tgrim\t7\n")
    with pytest.raises(TaskFileError, match="'7'"):
        prepared(files, place="again", train="a.tsv", validation={"m": "matched.tsv", "mm": "mismatched.tsv"})


def test_a_trial_run_takes_rows_of_every_part_that_are_spread_evenly(files):
    found = prepared(files, train="a.tsv", validation="matched.tsv", unlabeled="round1.tsv", max_rows=5)
    assert {part: info.rows for part, info in found.parts["t"].items()} == dict.fromkeys(
        ("train", "validation", "unlabeled"), 5
    )
    assert found.ids("t", "train").tolist() == ["0", "4", "9", "14", "19"]


def test_a_test_set_that_is_added_later_is_prepared_beside_what_there_is(files):
    first = prepared(files, train="a.tsv", test="round1.tsv")
    train = (files / "data" / "t" / "train.parquet").read_bytes()
    later = prepared(files, train="a.tsv", test={"test": "round1.tsv", "B": "round2.tsv"})
    assert later.ids("t", "test-B").tolist() == first.ids("t", "test").tolist()
    assert (files / "data" / "t" / "train.parquet").read_bytes() == train


def test_extra_rows_of_one_fold_train_there_alone_and_not_where_their_texts_are_judged(files):
    rows = {fold: lines("a", 20).splitlines() for fold in (0, 1)}
    for fold, own in rows.items():
        (files / f"soft{fold}.tsv").write_text("\n".join([*own, "u\tof the pool\t1"]) + "\n")
    extra = [{"path": str(files / f"soft{fold}.tsv"), "fold": fold} for fold in rows]
    keys = {"layout": "competition", "train": str(files / "a.tsv"), "extra_train": extra}
    config = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"t": keys}})
    found = prepare(task_specs(config.tasks), validation=None, folds=2, seed=0, folder=files / "folds")
    folds, texts = found.folds("t"), found.rows("t", "train")["text"]
    judged = {fold: {*texts[folds == fold]} for fold in (0, 1)}
    for fold in (0, 1):
        trained = trained_in(folds, fold)
        assert not judged[fold] & {*texts[trained]}
        assert sorted(texts[trained & (folds < -1)]) == sorted([*judged[1 - fold], "of the pool"])
