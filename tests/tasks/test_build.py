from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutti.config.cleaning import Cleaning
from tutti.config.study import TaskConfig
from tutti.errors import TaskFileError
from tutti.tasks.build import ExtraRows, new_rows_layout, task_spec, task_specs
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.layouts.hub import Hub
from tutti.tasks.layouts.table import Table


def config(**values: Any) -> TaskConfig:
    return TaskConfig.model_validate({"train": "train.csv", **values})


def test_named_test_sets_become_parts_and_absent_sources_none() -> None:
    spec = task_spec("A", config(layout="competition", test={"round1": "a.csv", "round2": "b.csv"}))
    assert spec.sources == {"train": "train.csv", "test-round1": "a.csv", "test-round2": "b.csv"}
    spec = task_spec("A", config(layout="competition", test="t.csv", validation="v.csv", unlabeled="u.csv"))
    assert set(spec.sources) == {"train", "test", "validation", "unlabeled"}


@pytest.mark.parametrize("name", ["MRPC", "mrpc", "Mrpc"])
def test_the_name_of_a_glue_task_says_its_layout(name: str) -> None:
    spec = task_spec(name, config(layout="glue"))
    assert spec.layout == Glue("MRPC")
    assert spec.pair


def test_sst2_may_lack_its_hyphen_and_glue_decides_over_the_name() -> None:
    assert task_spec("SST2", config(layout="glue")).layout == Glue("SST-2")
    assert task_spec("MRPC", config(layout="glue", glue="CoLA")).layout == Glue("CoLA")


@pytest.mark.parametrize("name", ["STS-B", "stsb", "sts-b"])
def test_sts_b_is_a_regression_of_pairs(name: str) -> None:
    spec = task_spec(name, config(layout="glue", metric="pearson_spearman"))
    assert spec.layout == Glue("STS-B")
    assert (spec.pair, spec.kind.name, spec.submission) == (True, "value", "glue")
    assert task_spec("A", config(layout="glue", glue="RTE")).kind.name == "classes"


@pytest.mark.parametrize(
    ("values", "submission", "suffix"),
    [
        ({"layout": "competition"}, "competition", ".csv"),
        ({"layout": "glue", "glue": "CoLA", "train": "train.tsv"}, "glue", ".tsv"),
        ({"layout": "table", "train": "train.parquet"}, "csv", ".parquet"),
        ({"layout": "table", "train": "train.tsv.gz"}, "csv", ".tsv"),
        ({"layout": "table", "train": "train.xlsx"}, "csv", ".jsonl"),
        ({"layout": "table", "train": "train.zip"}, "csv", ".jsonl"),
        ({"layout": "hub", "dataset": "some/set", "train": "train"}, "csv", ".jsonl"),
        ({"layout": "table", "submission": "glue"}, "glue", ".csv"),
    ],
)
def test_submission_and_suffix_follow_the_layout(values: dict[str, Any], submission: str, suffix: str) -> None:
    spec = task_spec("A", config(**values))
    assert (spec.submission, spec.training_suffix) == (submission, suffix)


def test_a_second_text_column_makes_pairs() -> None:
    columns = {"text": "q", "text_b": "a", "label": "y"}
    assert task_spec("A", config(layout="table", columns=columns)).pair
    hub = task_spec("A", config(layout="hub", dataset="d", subset="s", columns=columns))
    assert (hub.pair, hub.plain_files) == (True, False)
    assert hub.layout == Hub("d", "s", Table(text="q", text_b="a", label="y"))
    assert hub.extra_layout == Table(text="q", text_b="a", label="y")


def test_cleaning_and_extra_files_pass_through_and_broken_rows_reach_the_layout() -> None:
    extra = [{"path": "/more.csv", "weight": 0.5}]
    spec = task_spec(
        "A", config(layout="competition", cleaning={"emoji": "zh", "broken_rows": True}, extra_train=extra)
    )
    assert spec.cleaning == Cleaning(emoji="zh", broken_rows=True)
    assert spec.layout == Competition(pair=False, repair=True)
    assert task_spec("QQP", config(layout="glue", cleaning={"broken_rows": True})).layout == Glue("QQP", repair=True)
    assert spec.extra_train == (ExtraRows(Path("/more.csv"), 0.5, spec.extra_layout),)


def test_all_tasks_keep_their_order() -> None:
    task = config(layout="competition")
    assert [spec.name for spec in task_specs({"B": task, "A": task})] == ["B", "A"]


def test_new_rows_are_laid_out_as_the_task_s_own_where_the_ending_is_theirs(tmp_path: Path) -> None:
    def layout(name: str, content: str, **keys: Any) -> object:
        config = {"layout": "competition", "train": "rows.tsv", "pair": True} | keys
        (tmp_path / name).write_text(content)
        spec = task_spec("CoLA", TaskConfig.model_validate(config))
        return new_rows_layout(spec, tmp_path / name)

    assert layout("new.tsv", "0\ta\tb\n") == Competition(pair=True)
    assert layout("new.csv", "text,text_b,id\n") == Table(id="id", text_b="text_b")
    assert layout("new.jsonl", '{"text": "a"}\n') == Table(text_b="text_b", absent="id")
    assert layout("new.csv", "0\ta\tb\n", train="rows.csv") == Competition(pair=True)
    assert layout("new.csv", "id,text,text_b\n0,a,b\n", train="rows.csv") == Table(id="id", text_b="text_b")
    assert layout("new.csv", '"text","text_b"\n"a","b"\n', train="rows.csv") == Table(text_b="text_b", absent="id")
    assert layout("new.csv", "0\ta,text\tb\n", train="rows.csv") == Competition(pair=True)
    assert layout("new.tsv", "text\ttext_b\na\tb\n") == Table(text_b="text_b", absent="id")
    assert layout("new.csv", "text\na\n", layout="glue", pair=False) == Table(absent="id")
    named = {"id": "key", "text": "sentence"}
    assert layout("new.tsv", "x\n", layout="table", pair=False, columns=named) == Table(id="key", text="sentence")
    assert layout("new.csv", "id,text\n7,a\n", layout="table", pair=False) == Table(id="id")
    assert layout("new.jsonl", '{"text": "a"}\n', layout="table", pair=False) == Table(absent="id")
    hub = {"layout": "hub", "dataset": "d", "train": "train", "pair": False}
    assert layout("new.csv", "x\n", **hub, columns=named) == Table(id="key", text="sentence")


@pytest.mark.parametrize("block", [1, 2, 9])
@pytest.mark.parametrize("named", [[1], [2, 3]])
def test_ids_that_the_first_new_row_lacks_are_not_dropped(tmp_path: Path, block: int, named: list[int]) -> None:
    rows = [{"text": "a"} | ({"id": f"r{row}"} if row in named else {}) for row in range(4)]
    file = tmp_path / "new.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = task_spec("CoLA", config(layout="glue", glue="CoLA"))
    with pytest.raises(TaskFileError, match=r"line 1 must have the key 'id' like other rows; got text; write the key"):
        list(new_rows_layout(spec, file).blocks(str(file), rows=block))
    file.write_text('{"text": "a"}\n{"text": "b", "key": 7}\n')
    read = list(new_rows_layout(spec, file).blocks(str(file), rows=block))
    assert [each for rows in read for each in rows["id"]] == ["0", "1"]
