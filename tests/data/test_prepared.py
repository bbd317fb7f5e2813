"""What was prepared comes back on the next run, and is refused where the study has changed or a part is damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from task_rows import TRAIN, MakeSpec

from tutti.config.cleaning import Cleaning
from tutti.data.prepared import load_prepared, write_part
from tutti.errors import StorageError, StudyError
from tutti.tasks.layouts.table import Table


def test_a_second_run_gives_back_what_the_first_one_made(make_spec: MakeSpec, run_preparation: Any) -> None:
    spec = make_spec(train=TRAIN, test__round1=[("0", "a")])
    first = run_preparation(spec)
    times = {file: file.stat().st_mtime_ns for file in first.folder.rglob("*.*")}
    second = run_preparation(spec)
    assert {file: file.stat().st_mtime_ns for file in first.folder.rglob("*.*")} == times
    assert second == first == load_prepared(first.folder)
    sources = [known["source"] for known in second.origins["A"].values()]
    assert sources == [spec.sources["train"], spec.sources["test-round1"]]


def test_a_file_may_move_as_long_as_its_content_stays(make_spec, run_preparation, tmp_path):
    spec = make_spec(train=TRAIN)
    first = run_preparation(spec)
    moved = Path(spec.sources["train"]).rename(tmp_path / "moved.tsv")
    assert run_preparation(replace(spec, sources={"train": str(moved)})) == first


def test_a_changed_file_is_refused_and_named(make_spec: MakeSpec, run_preparation: Any) -> None:
    spec = make_spec(train=TRAIN)
    run_preparation(spec)
    make_spec(train=TRAIN[:-1])
    with pytest.raises(StudyError) as caught:
        run_preparation(spec)
    assert [fault.what for fault in caught.value.faults] == [spec.sources["train"]]
    assert "give the study a new name" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"seed": 1}, "split: seed"),
        ({"validation": 0.3}, "split: validation"),
        ({"cleaning": Cleaning(emoji="zh")}, "tasks.A: cleaning"),
        ({"metric": "accuracy"}, "tasks.A: metric"),
    ],
)
def test_changed_settings_are_refused_and_named(make_spec, run_preparation, changed, what):
    spec = make_spec(train=TRAIN)
    run_preparation(spec)
    split = {key: value for key, value in changed.items() if key in ("seed", "validation")}
    with pytest.raises(StudyError) as caught:
        run_preparation(replace(spec, **{key: value for key, value in changed.items() if key not in split}), **split)
    assert [fault.what for fault in caught.value.faults] == [what]


def test_a_new_task_or_source_is_refused(make_spec: MakeSpec, run_preparation: Any) -> None:
    spec = make_spec(train=TRAIN)
    run_preparation(spec)
    with pytest.raises(StudyError, match=r"task A must have the sources it was prepared from; got .* which is new"):
        run_preparation(make_spec(train=TRAIN, unlabeled=[("0", "a")]))
    with pytest.raises(StudyError, match="task B must have the sources it was prepared from"):
        run_preparation(spec, make_spec("B", train=TRAIN))


def test_a_folder_in_which_nothing_was_prepared_is_a_study_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="run `tutti tune` first"):
        load_prepared(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"tasks": []}'])
def test_a_damaged_list_of_parts_is_a_storage_error(make_spec: MakeSpec, run_preparation: Any, content: str) -> None:
    prepared = run_preparation(make_spec(train=TRAIN))
    (prepared.folder / "prepared.json").write_text(content)
    with pytest.raises(StorageError, match=r"prepared\.json must be as preparation wrote it"):
        load_prepared(prepared.folder)


def test_a_damaged_or_missing_part_is_a_storage_error(make_spec: MakeSpec, run_preparation: Any) -> None:
    prepared = run_preparation(make_spec(train=TRAIN))
    prepared.parts["A"]["train"].path.write_bytes(b"PAR1")
    prepared.parts["A"]["validation"].path.unlink()
    for part in ("train", "validation"):
        with pytest.raises(StorageError, match=rf"{part}\.parquet must be as preparation wrote it"):
            prepared.rows("A", part)


def test_rows_whose_ids_repeat_are_written_without_a_warning(tmp_path, recwarn):
    (tmp_path / "rows.csv").write_text("id,text,label\na,one,x\na,two,y\n")
    rows = Table(id="id").read(str(tmp_path / "rows.csv"), labelled=True)
    assert rows["id"].tolist() == ["a", "a#2"]
    write_part(rows.assign(label=[0, 1]), tmp_path / "rows.parquet")
    assert not recwarn.list
