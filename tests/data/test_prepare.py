from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tutti.config.study import TaskConfig
from tutti.data.encode import load_part, take
from tutti.data.prepare import Prepared, load_prepared, prepare
from tutti.errors import ConfigError, StorageError, StudyError, TaskFileError
from tutti.tasks.build import CleaningSteps, TaskSpec, task_spec
from tutti.tasks.layouts.soft import PROBABILITY, SoftLabels

MakeSpec = Callable[..., TaskSpec]

TRAIN = [(f"r{n}", f"text {n}", "yes" if n % 3 else "no") for n in range(30)]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Prepared]:
    def prepared(*specs: TaskSpec, validation: float = 0.2, seed: int = 0, folder: str = "data") -> Prepared:
        return prepare(specs, validation=validation, seed=seed, folder=tmp_path / folder)

    return prepared


def test_every_training_row_is_in_train_or_validation_once(make_spec: MakeSpec, run: Any) -> None:
    prepared = run(make_spec(train=TRAIN))
    train, held_out = prepared.rows("A", "train"), prepared.rows("A", "validation")
    assert sorted([*train["id"], *held_out["id"]]) == sorted(row[0] for row in TRAIN)
    names = prepared.tasks[0].class_names
    assert names == ("no", "yes")
    texts = {row[0]: row[1:] for row in TRAIN}
    for rows in (train, held_out):
        rows_read = zip(rows["id"], rows["text"], rows["label"], strict=True)
        assert all(texts[identity] == (text, names[label]) for identity, text, label in rows_read)
    assert len(held_out) == prepared.parts["A"]["validation"].rows == 6


def test_columns_have_the_promised_types(make_spec: MakeSpec, run: Any) -> None:
    pair = [(*row[:2], "other", row[2]) for row in TRAIN]
    prepared = run(make_spec(train=pair, test=[("0", "a", "b")], pair=True))
    train = prepared.rows("A", "train")
    assert list(train) == ["id", "text", "text_b", "label", "weight"]
    assert (train["label"].dtype, train["weight"].dtype) == (np.int32, np.float32)
    assert list(prepared.rows("A", "validation")) == ["id", "text", "text_b", "label"]
    assert list(prepared.rows("A", "test")) == ["id", "text", "text_b"]
    assert prepared.ids("A", "test").tolist() == ["0"]
    assert [info.labelled for info in prepared.parts["A"].values()] == [True, True, False]


def test_the_split_of_a_task_does_not_depend_on_the_tasks_beside_it(make_spec: MakeSpec, run: Any) -> None:
    first, second = make_spec("A", train=TRAIN), make_spec("B", train=TRAIN)
    together = run(first, second, folder="one")
    alone = run(second, folder="two")
    assert together.ids("B", "validation").tolist() == alone.ids("B", "validation").tolist()


def test_a_task_with_its_own_validation_file_is_not_split(make_spec: MakeSpec, run: Any) -> None:
    prepared = run(make_spec(train=TRAIN, validation=[("z", "c", "yes"), ("y", "c", "yes")]))
    assert prepared.ids("A", "train").tolist() == [row[0] for row in TRAIN]
    assert prepared.ids("A", "validation").tolist() == ["z", "y"]


def test_extra_rows_train_with_their_weight_and_never_validate(make_spec: MakeSpec, run: Any) -> None:
    extra = [([(f"r{n}", f"more {n}", "maybe") for n in range(20)], 0.5), ([("r0", "last", "no")], 0.25)]
    prepared = run(make_spec(train=TRAIN, extra=extra))
    train = prepared.rows("A", "train")
    assert prepared.tasks[0].class_names == ("maybe", "no", "yes")
    weights = dict(zip(train["id"], train["weight"], strict=True))
    assert {weights[f"extra0/r{n}"] for n in range(20)} == {0.5}
    assert weights["extra1/r0"] == 0.25
    assert {weight for identity, weight in weights.items() if not identity.startswith("extra")} == {1.0}
    assert not any(identity.startswith("extra") for identity in prepared.ids("A", "validation"))
    assert len(train) + prepared.parts["A"]["validation"].rows == 51


@pytest.mark.parametrize("held_out", ["a share", "a file", "folds"])
def test_extra_rows_with_the_texts_of_rows_to_validate_on_are_left_out(
    make_spec: MakeSpec, tmp_path: Path, held_out: str
) -> None:
    extra = [([*((f"e{n}", f"text {n}", "yes") for n in range(30)), ("new", "nowhere else", "no")], 1.0)]
    file = {"validation": [("v", "text 3", "yes")]} if held_out == "a file" else {}
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
    assert len(learnt) == 31 - len(validation)
    assert len(train) == 30 + len(learnt) - (len(validation) if held_out == "a share" else 0)
    if held_out == "folds":
        assert (train["fold"][train["id"].str.startswith("extra")] == -1).all()


def test_extra_rows_do_not_change_the_split(make_spec: MakeSpec, run: Any) -> None:
    before = run(make_spec("A", train=TRAIN), folder="one")
    after = run(make_spec("A", train=TRAIN, extra=[([("0", "a", "aa")], 1.0)]), folder="two")
    assert before.ids("A", "validation").tolist() == after.ids("A", "validation").tolist()


def test_duplicates_leave_the_training_rows_alone(make_spec: MakeSpec, run: Any) -> None:
    same = [("s1", "same!!", "yes"), ("s2", "same!", "yes"), ("s3", "same", "no")]
    spec = make_spec(train=TRAIN + same, validation=same, test=[row[:2] for row in same])
    prepared = run(replace(spec, cleaning=CleaningSteps(duplicates=True, repeated_punctuation=True)))
    assert prepared.ids("A", "train").tolist()[-2:] == ["s1", "s3"]
    assert prepared.ids("A", "validation").tolist() == ["s1", "s2", "s3"]
    assert prepared.rows("A", "test")["text"].tolist() == ["same!", "same!", "same"]


def test_texts_are_cleaned_in_every_part(make_spec: MakeSpec, run: Any) -> None:
    pair = [(*row[:2], "b[生病]", row[2]) for row in TRAIN]
    spec = make_spec(train=pair, test=[("0", "a😂", "b[生病]")], unlabeled=[("0", "a😂", "b")], pair=True)
    prepared = run(replace(spec, cleaning=CleaningSteps(emoji="zh", emoticons=True)))
    assert set(prepared.rows("A", "train")["text_b"]) == {"b生病"}
    assert prepared.rows("A", "test")[["text", "text_b"]].to_numpy().tolist() == [["a笑哭了", "b生病"]]
    assert prepared.rows("A", "unlabeled")["text"].tolist() == ["a笑哭了"]


def test_a_second_run_gives_back_what_the_first_one_made(make_spec: MakeSpec, run: Any) -> None:
    spec = make_spec(train=TRAIN, test__round1=[("0", "a")])
    first = run(spec)
    times = {file: file.stat().st_mtime_ns for file in first.folder.rglob("*.*")}
    second = run(spec)
    assert {file: file.stat().st_mtime_ns for file in first.folder.rglob("*.*")} == times
    assert second == first == load_prepared(first.folder)
    sources = [known["source"] for known in second.origins["A"].values()]
    assert sources == [spec.sources["train"], spec.sources["test-round1"]]


def test_a_file_may_move_as_long_as_its_content_stays(make_spec: MakeSpec, run: Any, tmp_path: Path) -> None:
    spec = make_spec(train=TRAIN)
    first = run(spec)
    moved = Path(spec.sources["train"]).rename(tmp_path / "moved.tsv")
    assert run(replace(spec, sources={"train": str(moved)})) == first


def test_a_changed_file_is_refused_and_named(make_spec: MakeSpec, run: Any) -> None:
    spec = make_spec(train=TRAIN)
    run(spec)
    make_spec(train=TRAIN[:-1])
    with pytest.raises(StudyError) as caught:
        run(spec)
    assert [fault.what for fault in caught.value.faults] == [spec.sources["train"]]
    assert "give the study a new name" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"seed": 1}, "split: seed"),
        ({"validation": 0.3}, "split: validation"),
        ({"cleaning": CleaningSteps(emoji="zh")}, "tasks.A: cleaning"),
        ({"metric": "accuracy"}, "tasks.A: metric"),
    ],
)
def test_changed_settings_are_refused_and_named(
    make_spec: MakeSpec, run: Any, changed: dict[str, Any], what: str
) -> None:
    spec = make_spec(train=TRAIN)
    run(spec)
    split = {key: value for key, value in changed.items() if key in ("seed", "validation")}
    with pytest.raises(StudyError) as caught:
        run(replace(spec, **{key: value for key, value in changed.items() if key not in split}), **split)
    assert [fault.what for fault in caught.value.faults] == [what]


def test_a_new_task_or_source_is_refused(make_spec: MakeSpec, run: Any) -> None:
    spec = make_spec(train=TRAIN)
    run(spec)
    with pytest.raises(StudyError, match=r"task A must have the sources it was prepared from; got .* which is new"):
        run(make_spec(train=TRAIN, test=[("0", "a")]))
    with pytest.raises(StudyError, match="task B must have the sources it was prepared from"):
        run(spec, make_spec("B", train=TRAIN))


def test_a_class_that_no_training_row_has_is_refused_with_its_count(make_spec: MakeSpec, run: Any) -> None:
    spec = make_spec(train=TRAIN, validation=[("0", "a", "new"), ("1", "b", "new"), ("2", "c", "yes")])
    with pytest.raises(TaskFileError, match="got 'new' in 2 rows; mend the labels"):
        run(spec)


def test_one_class_alone_is_refused(make_spec: MakeSpec, run: Any) -> None:
    with pytest.raises(TaskFileError, match="must have rows of two classes or more; got only 'yes'"):
        run(make_spec(train=[("0", "a", "yes"), ("1", "b", "yes")]))


def test_f1_on_more_than_two_classes_is_refused(make_spec: MakeSpec, run: Any) -> None:
    with pytest.raises(ConfigError, match=r"tasks.A.metric must be a metric for 3 classes; got 'f1', which is for two"):
        run(make_spec(train=[*TRAIN, ("x", "a", "maybe")], metric="f1"))


def test_the_faults_of_all_tasks_and_parts_are_raised_together(make_spec: MakeSpec, run: Any, tmp_path: Path) -> None:
    first = make_spec("A", train=[("0", " ", "yes")], test=[("0", "a", "too many")])
    second = make_spec("B", train=[("0", "a", "yes"), ("0", "b", "no")])
    with pytest.raises(TaskFileError) as caught:
        run(first, second)
    assert [Path(fault.what.split(", ")[0]).name for fault in caught.value.faults] == [
        "train.tsv",
        "test.tsv",
        "train.tsv",
    ]
    assert not (tmp_path / "data").exists()


def test_missing_files_of_all_tasks_are_raised_together(make_spec: MakeSpec, run: Any) -> None:
    specs = [replace(make_spec(name, train=TRAIN), sources={"train": f"/nowhere/{name}.tsv"}) for name in "AB"]
    with pytest.raises(TaskFileError) as caught:
        run(*specs)
    assert [fault.what for fault in caught.value.faults] == ["/nowhere/A.tsv", "/nowhere/B.tsv"]


def test_a_folder_in_which_nothing_was_prepared_is_a_study_error(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="run `tutti tune` first"):
        load_prepared(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"tasks": []}'])
def test_a_damaged_list_of_parts_is_a_storage_error(make_spec: MakeSpec, run: Any, content: str) -> None:
    prepared = run(make_spec(train=TRAIN))
    (prepared.folder / "prepared.json").write_text(content)
    with pytest.raises(StorageError, match=r"prepared\.json must be as preparation wrote it"):
        load_prepared(prepared.folder)


def test_a_damaged_or_missing_part_is_a_storage_error(make_spec: MakeSpec, run: Any) -> None:
    prepared = run(make_spec(train=TRAIN))
    prepared.parts["A"]["train"].path.write_bytes(b"PAR1")
    prepared.parts["A"]["validation"].path.unlink()
    for part in ("train", "validation"):
        with pytest.raises(StorageError, match=rf"{part}\.parquet must be as preparation wrote it"):
            prepared.rows("A", part)


def test_importing_preparation_loads_no_heavy_library() -> None:
    heavy = "torch", "transformers", "datasets", "sklearn", "ray", "mlflow"
    code = f"import sys, tutti.data.prepare, tutti.data.encode; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


SCORES = [(f"r{n}", f"text {n}", f"{n % 11 / 2:g}") for n in range(40)]


def test_labels_of_a_regression_are_numbers_in_every_part(make_spec: MakeSpec, run: Any) -> None:
    spec = make_spec(train=SCORES, test=[("0", "a")], metric="pearson", extra=[([("x", "more", "99.5")], 0.5)])
    prepared = run(spec)
    assert prepared.tasks[0].regression
    assert prepared.tasks[0].class_names == ()
    train, held_out = prepared.rows("A", "train"), prepared.rows("A", "validation")
    assert (train["label"].dtype, held_out["label"].dtype) == (np.float32, np.float32)
    assert sorted([*train["id"], *held_out["id"]]) == sorted(["extra0/x", *(row[0] for row in SCORES)])
    truth = {row[0]: np.float32(row[2]) for row in SCORES} | {"extra0/x": np.float32(99.5)}
    for rows in (train, held_out):
        assert all(truth[identity] == label for identity, label in zip(rows["id"], rows["label"], strict=True))
    assert train["weight"].to_list() == [0.5 if identity == "extra0/x" else 1 for identity in train["id"]]
    assert len(held_out) == 8
    assert load_prepared(prepared.folder) == prepared


def test_the_same_numbers_are_classes_under_a_metric_of_classes(make_spec: MakeSpec, run: Any) -> None:
    prepared = run(make_spec(train=SCORES))
    assert prepared.tasks[0].class_names == ("0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5")
    assert prepared.rows("A", "train")["label"].dtype == np.int32


def test_validation_values_that_no_training_row_has_are_no_fault(make_spec: MakeSpec, run: Any) -> None:
    prepared = run(make_spec(train=SCORES, validation=[("z", "c", "-7.25"), ("y", "d", "3")], metric="neg_mse"))
    assert prepared.rows("A", "validation")["label"].tolist() == [-7.25, 3]


def test_duplicates_of_a_regression_are_told_by_their_value(make_spec: MakeSpec, run: Any) -> None:
    rows = [("a", "same", "3.5"), ("b", "same", "3.50"), ("c", "same", "4")]
    spec = make_spec(train=SCORES + rows, validation=rows, metric="spearman")
    prepared = run(replace(spec, cleaning=CleaningSteps(duplicates=True)))
    assert prepared.ids("A", "train").tolist()[-2:] == ["a", "c"]


def test_labels_that_are_no_numbers_are_named_in_all_files(make_spec: MakeSpec, run: Any) -> None:
    spec = make_spec(
        train=[*SCORES, ("bad", "c", "high")],
        validation=[("z", "c", "low"), ("y", "d", "1")],
        extra=[([("0", "e", "mid")], 1.0)],
        metric="pearson",
    )
    with pytest.raises(TaskFileError) as caught:
        run(spec)
    places = [(Path(fault.what).name, fault.got) for fault in caught.value.faults]
    assert sorted(places) == [
        ("extra0.tsv, line 1", "'mid'"),
        ("train.tsv, line 41", "'high'"),
        ("validation.tsv, line 1", "'low'"),
    ]


def test_labels_that_are_all_the_same_number_are_refused(make_spec: MakeSpec, run: Any) -> None:
    rows = [("a", "b", "2.5"), ("c", "d", "2.50"), ("e", "f", "2.5")]
    with pytest.raises(TaskFileError, match=r"train.tsv must have labels that differ.*; got 2.5 in every row"):
        run(make_spec(train=rows, metric="pearson"))


def test_another_kind_of_metric_is_refused_for_a_study_that_is_prepared(make_spec: MakeSpec, run: Any) -> None:
    run(make_spec(train=SCORES))
    with pytest.raises(StudyError, match="metric must be 'macro_f1' as when the study was prepared; got 'pearson'"):
        run(make_spec(train=SCORES, metric="pearson"))


def test_sts_b_is_prepared_whole(shared_data: Path, run: Any) -> None:
    folder = shared_data / "glue" / "STS-B"
    files = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    values = {
        "layout": "glue",
        "metric": "pearson_spearman",
        **{key: str(folder / name) for key, name in files.items()},
    }
    prepared = run(task_spec("STS-B", TaskConfig.model_validate(values)))
    assert {part: info.rows for part, info in prepared.parts["STS-B"].items()} == {
        "train": 3000,
        "validation": 750,
        "test": 2000,
    }
    for part in ("train", "validation"):
        labels = prepared.rows("STS-B", part)["label"]
        assert (labels.dtype, labels.min(), labels.max()) == (np.float32, 0, 5)
    assert prepared.rows("STS-B", "train")["label"].tolist()[:2] == [4, np.float32(3.8)]
    text = " ".join(prepared.rows("STS-B", "train")["text"])
    assert '"' in text
    ids = prepared.ids("STS-B", "test").tolist()
    assert ids == [str(number) for number in range(2000)]


def test_the_competition_is_prepared_whole(shared_data: Path, run: Any) -> None:
    folder = shared_data / "tianchi"
    emotion = TaskConfig.model_validate(
        {
            "layout": "competition",
            "train": str(folder / "EMOTION_train.csv"),
            "test": {"main": str(folder / "EMOTION_test.csv"), "b": str(folder / "round2" / "ocemotion_test_B.csv")},
            "cleaning": {"emoji": "zh", "emoticons": True, "repeated_punctuation": True, "broken_rows": True},
        }
    )
    news = TaskConfig.model_validate(
        {
            "layout": "competition",
            "train": str(folder / "TNEWS_train.csv"),
            "test": str(folder / "TNEWS_test.csv"),
            "unlabeled": str(folder / "TNEWS_unlabeled.csv"),
        }
    )
    prepared = run(task_spec("EMOTION", emotion), task_spec("TNEWS", news), validation=0.1)
    counts = {task: {part: info.rows for part, info in parts.items()} for task, parts in prepared.parts.items()}
    assert counts["EMOTION"]["train"] + counts["EMOTION"]["validation"] == 10606
    assert counts["TNEWS"]["train"] + counts["TNEWS"]["validation"] == 2283
    assert (counts["EMOTION"]["test-main"], counts["EMOTION"]["test-b"]) == (3000, 1500)
    assert (counts["TNEWS"]["test"], counts["TNEWS"]["unlabeled"]) == (2010, 20000)
    assert [len(task.class_names) for task in prepared.tasks] == [6, 15]
    assert set(prepared.rows("TNEWS", "validation")["label"]) == set(range(15))


def _soft(path: Path, names: tuple[str, ...], probabilities: list[list[float]]) -> Path:
    rows = pd.DataFrame(
        {"id": [str(n) for n in range(len(probabilities))], "text": [f"soft {n}" for n in range(len(probabilities))]}
    )
    values = np.array(probabilities, dtype=np.float32)
    SoftLabels().write(rows.assign(**{PROBABILITY + name: values[:, n] for n, name in enumerate(names)}), path)
    return path


def test_soft_labels_become_targets_in_the_order_of_the_classes(make_spec: MakeSpec, run: Any, tmp_path: Path) -> None:
    file = _soft(tmp_path / "s.parquet", ("yes", "no"), [[0.75, 0.25], [0.0, 1.0]])
    prepared = run(make_spec(train=TRAIN, soft=[(file, 0.5)], extra=[([("0", "more", "maybe")], 1.0)]))
    train = prepared.rows("A", "train").set_index("id")
    assert prepared.tasks[0].class_names == ("maybe", "no", "yes")
    assert train["probabilities"]["extra1/0"].tolist() == [0, 0.25, 0.75]
    assert (train["label"]["extra1/0"], train["label"]["extra1/1"]) == (2, 1)
    assert train["weight"]["extra1/0"] == 0.5
    assert train["probabilities"].notna().sum() == 2
    assert list(prepared.rows("A", "validation")) == ["id", "text", "label"]
    again = load_prepared(prepared.folder)
    assert again.parts["A"]["train"].soft
    assert not again.parts["A"]["validation"].soft


def test_encoded_soft_labels_stand_beside_one_for_each_other_row(
    make_spec: MakeSpec, run: Any, tmp_path: Path, tokenizer_folder: str
) -> None:
    file = _soft(tmp_path / "s.parquet", ("yes", "no"), [[0.75, 0.25], [0.0, 1.0]])
    prepared = run(make_spec(train=TRAIN, soft=[(file, 1.0)]))
    arguments = {"tokenizer": tokenizer_folder, "max_length": 8, "cache": tmp_path / "cache"}
    part = load_part(prepared, task="A", part="train", **arguments)
    assert (part.targets.shape, part.targets.dtype) == ((26, 2), np.float32)
    assert part.targets[-2:].tolist() == [[0.25, 0.75], [1, 0]]
    assert np.array_equal(part.targets[:-2], np.eye(2, dtype=np.float32)[part.labels[:-2]])
    assert np.array_equal(take(part, np.array([24, 3])).targets, part.targets[[24, 3]])
    assert load_part(prepared, task="A", part="validation", **arguments).targets is None


def test_a_class_that_only_soft_labels_name_is_refused(make_spec: MakeSpec, run: Any, tmp_path: Path) -> None:
    file = _soft(tmp_path / "s.parquet", ("yes", "maybe"), [[0.25, 0.75]])
    with pytest.raises(TaskFileError, match=r"s.parquet must have probabilities .*classes no, yes; got also of maybe"):
        run(make_spec(train=TRAIN, soft=[(file, 1.0)]))


def test_with_folds_soft_labels_train_in_every_fold_and_validate_in_none(make_spec: MakeSpec, tmp_path: Path) -> None:
    file = _soft(tmp_path / "s.parquet", ("yes", "no"), [[0.75, 0.25], [0.0, 1.0]])
    prepared = prepare(
        [make_spec(train=TRAIN, soft=[(file, 1.0)])], validation=None, folds=3, seed=0, folder=tmp_path / "data"
    )
    train = prepared.rows("A", "train")
    assert train["fold"][train["probabilities"].notna()].tolist() == [-1, -1]
    assert list(prepared.rows("A", "validation")) == ["id", "text", "label"]
    assert prepared.parts["A"]["validation"].rows == 30
