"""A study file is written for a competition's files as they come, and runs as it is."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tutti.config.load import load_study
from tutti.config.study import StudyConfig
from tutti.data.guess.files import _unpacked
from tutti.data.guess.shapes import shapes
from tutti.errors import ConfigError, StudyError, TaskFileError
from tutti.tasks.build import task_specs
from tutti.workflows.new import new_study

ROWS = 60
WORDS = ("the", "sea", "lies", "still", "and", "rain", "falls", "on", "bright", "day", "nobody", "here")
Frames = dict[str, pd.DataFrame]


def text(row: int, *, words: int = 6) -> str:
    rng = np.random.default_rng(row)
    return " ".join([*rng.choice(WORDS, size=words), str(row)])


def frame(part: str, **columns: Callable[[int], Any]) -> pd.DataFrame:
    rows = range(ROWS) if part == "train" else range(1000, 1010)
    return pd.DataFrame({name: [cell(row) for row in rows] for name, cell in columns.items()})


def written(folder: Path, metric: str | None = None, **options: Any) -> tuple[StudyConfig, str]:
    """The study file that is written for a folder, loaded, and its text."""
    made = new_study(folder, folder.parent / "study.yaml", metric=metric, quiet=True, **options)
    return load_study(made.file), made.file.read_text(encoding="utf8")


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "moods").mkdir()
    return tmp_path / "moods"


def save(folder: Path, **frames: pd.DataFrame) -> Path:
    for name, each in frames.items():
        each.to_csv(folder / f"{name}.csv", index=False)
    return folder


MOODS = {"row_id": lambda row: f"{row:03d}", "body": text, "mood": lambda row: ("calm", "glad", "sad")[row % 3]}


def test_ids_texts_labels_and_a_sample_are_told_by_what_is_in_the_columns(folder):
    test = frame("test", row_id=MOODS["row_id"], body=text)
    sample = pd.DataFrame({"row_id": test["row_id"], "mood": "calm"})
    config, found = written(save(folder, train=frame("train", **MOODS), test=test, sampleSubmission=sample))
    task = config.tasks["moods"]
    assert config.study == "moods"
    assert (task.layout, task.columns.id, task.columns.text, task.columns.label) == ("table", "row_id", "body", "mood")
    assert (task.kind, task.metric) == ("classes", "macro_f1")
    assert task.sample == folder / "sampleSubmission.csv"
    assert "English; rows: train 60, test 10" in found
    page = (folder.parent / "study.md").read_text(encoding="utf8")
    assert "| calm | 20 (33.3%) |" in page


def packed_csv(rows: pd.DataFrame, path: Path) -> None:
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.writestr("data/rows.csv", "\ufeff" + rows.to_csv(lineterminator="\r\n"))  # an unnamed index column


def zipped_gz(rows: pd.DataFrame, path: Path) -> None:
    with gzip.open(path.with_suffix(".tsv.gz"), "wt", encoding="utf8") as file:
        file.write(rows.to_csv(sep="\t", index=False))


def in_gb18030(rows: pd.DataFrame, path: Path) -> None:
    rows.assign(body="雨 " + rows["body"]).to_csv(path.with_suffix(".csv"), index=False, encoding="gb18030")


WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "json array": lambda rows, path: rows.to_json(path.with_suffix(".json"), orient="records"),
    "json lines": lambda rows, path: rows.to_json(path.with_suffix(".jsonl"), orient="records", lines=True),
    "parquet": lambda rows, path: rows.to_parquet(path.with_suffix(".parquet")),
    "excel": lambda rows, path: rows.to_excel(path.with_suffix(".xlsx"), index=False),
    "zip with BOM and CRLF": packed_csv,
    "gz": zipped_gz,
    "GB18030": in_gb18030,
}


@pytest.mark.parametrize("form", WRITERS)
def test_files_are_read_in_whatever_format_they_come(folder, form):
    train, test = frame("train", **MOODS), frame("test", row_id=MOODS["row_id"], body=text)
    train.loc[0, "body"], train.loc[1, "body"] = "NA", "null"  # texts
    for part, rows in {"train": train, "test": test}.items():
        WRITERS[form](rows, folder / part)
    config, found = written(folder)
    task = config.tasks["moods"]
    assert (task.columns.id, task.columns.text, task.columns.label) == ("row_id", "body", "mood")
    assert "rows: train 60, test 10" in found
    assert task.encoding == ("gb18030" if form == "GB18030" else None)


KINDS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "several labels": (
        {"text": text, "kind": lambda row: row % 2, "rude": lambda row: int(row % 5 == 0)},
        "labels",
        {"columns": {"labels": ("kind", "rude")}},
    ),
    "a list of labels in a cell": (
        {"text": text, "tags": lambda row: ("a|b", "b|c", "a|c")[row % 3]},
        "labels",
        {"columns": {"labels": "tags", "separator": "|"}},
    ),
    "numbers": ({"text": text, "warmth": lambda row: row / 7}, "value", {"metric": "rmse"}),
    "several numbers": (
        {"text": text, "valence": lambda row: row / 7, "arousal": lambda row: row / 9},
        "values",
        {"columns": {"values": ("valence", "arousal")}},
    ),
    "grades": ({"essay": text, "score": lambda row: row % 5}, "ordered", {"metric": "quadratic_kappa"}),
    "words with an order": (
        {"text": text, "label": lambda row: ("High", "Low", "Medium")[row % 3]},
        "ordered",
        {"ordered": ("Low", "Medium", "High")},
    ),
    "candidates": (
        {"question": text, **{k: (lambda row, k=k: f"{k} {row}") for k in "ABC"}, "answer": lambda row: "ABC"[row % 3]},
        "choice",
        {"columns": {"choices": ("A", "B", "C")}},
    ),
    "a pair": (
        {"premise": text, "hypothesis": lambda row: text(row + 500), "label": lambda row: row % 3},
        "classes",
        {"columns": {"text": "premise", "text_b": "hypothesis"}},
    ),
    "one text of several columns": (
        {name: (lambda row, n=n: text(row + 100 * n)) for n, name in enumerate(("title", "abstract", "body"))}
        | {"label": lambda row: row % 2},
        "classes",
        {"template": "{title} [SEP] {abstract} [SEP] {body}"},
    ),
    "texts to be written": (
        {"prompt": text, "completion": lambda row: text(row + 500)},
        "text",
        {"format": "prompt-completion"},
    ),
    "words with tags": (
        {"tokens": lambda row: text(row).split(), "tags": lambda row: ["B-X", *["O"] * 6]},
        "tokens",
        {"layout": "tokens"},
    ),
}


def test_of_several_labels_the_page_tells_the_share_of_rows(folder):
    written(save(folder, train=frame("train", **KINDS["several labels"][0])))
    assert "| kind | 30 (50.0%) |" in (folder.parent / "study.md").read_text(encoding="utf8")


def test_one_hot_columns_are_one_class_and_the_submission_has_their_probabilities(folder):
    names = ("winner_model_a", "winner_model_b", "winner_tie")
    winners = {name: (lambda row, n=n: int(row % 3 == n)) for n, name in enumerate(names)}
    test = frame("test", id=text, text=text)
    sample = test[["id"]].assign(**dict.fromkeys(names, 0.333))
    config, _ = written(save(folder, train=frame("train", id=text, text=text, **winners), test=test, sample=sample))
    task = config.tasks["moods"]
    assert (task.kind, task.columns.label, task.metric) == ("classes", names, "log_loss")
    assert task.sample == folder / "sample.csv"
    rows = pd.read_csv(folder / "train.csv")
    rows.loc[4, "winner_tie"] = 1
    rows.to_csv(folder / "train.csv", index=False)
    with pytest.raises(TaskFileError, match=r"train.csv, line 6 must have 1 in one of the columns winner_model_a, .*0"):
        task_specs(config.tasks)[0].layout.read(str(folder / "train.csv"), labelled=True)


def test_several_files_of_validation_rows_are_sets_of_which_the_first_decides(folder):
    columns = {"text": text, "label": lambda row: row % 3}
    parts = {f"dev_{name}matched": frame("test", **columns) for name in ("", "mis")}
    config, _ = written(save(folder, train=frame("train", **columns), **parts))
    assert [*config.tasks["moods"].files()] == ["train", "validation", "report-mm"]
    assert [*config.tasks["moods"].validation] == ["m", "mm"]
    assert "| report-mm | 10 | " in (folder.parent / "study.md").read_text(encoding="utf8")


@pytest.mark.parametrize("what", KINDS)
def test_the_kind_of_a_task_is_told_by_its_labels(folder, what):
    columns, kind, expected = KINDS[what]
    rows = frame("train", **columns)
    lines = "".join(json.dumps(row) + "\n" for row in rows.to_dict("records"))
    (folder / "train.jsonl").write_text(lines, encoding="utf8")
    task = written(folder)[0].tasks["moods"]
    assert task.kind == kind
    found = task.model_dump()
    for key, value in expected.items():
        got = found[key]
        assert {name: got[name] for name in value} == value if isinstance(value, dict) else got == value


def test_files_without_a_header_of_several_tasks_are_told_by_their_names(folder):
    for task, texts in {"OCNLI": 2, "TNEWS": 1}.items():
        for part in ("train", "a", "b", "unlabeled"):
            lines = [
                "\t".join([str(row), *(text(row + 50 * n) for n in range(texts)), *[str(row % 3)] * (part == "train")])
                for row in range(ROWS)
            ]
            (folder / f"{task}_{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf8")
    config = written(folder)[0]
    assert {name: (task.layout, task.pair) for name, task in config.tasks.items()} == {
        "OCNLI": ("competition", True),
        "TNEWS": ("competition", False),
    }
    assert [*config.tasks["TNEWS"].test_sets()] == ["test-a", "test-b"]
    assert config.tasks["TNEWS"].unlabeled


def test_rows_of_one_author_are_held_out_together(folder):
    columns = {"text": text, "author": lambda row: f"a{row % 12}", "label": lambda row: row % 2}
    assert written(save(folder, train=frame("train", **columns)))[0].split.group == "author"


def test_the_metric_that_is_named_says_whether_labels_are_classes_or_numbers(folder):
    save(folder, train=frame("train", text=text, score=lambda row: row % 5))
    assert written(folder, "rmse")[0].tasks["moods"].kind == "value"
    (folder.parent / "study.yaml").unlink()
    with pytest.raises(ConfigError, match=r"be a metric for ordered classes.*got 'rouge_l'"):
        written(folder, "rouge_l")


def test_an_archive_of_all_files_is_unpacked(folder):
    with zipfile.ZipFile(folder / "moods.zip", "w") as archive:
        for part, rows in {"train": frame("train", **MOODS), "test": frame("test", row_id=text, body=text)}.items():
            archive.writestr(f"{part}.csv", rows.to_csv(index=False))
    task = written(folder)[0].tasks["moods"]
    assert Path(task.train) == folder.parent / "moods" / "train.csv"


def test_an_archive_does_not_replace_an_unpacked_file_that_was_changed(folder):
    with zipfile.ZipFile(folder / "moods.zip", "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"{part}.csv", frame(part, **MOODS).to_csv(index=False))
    corrected = folder.parent / "moods" / "train.csv"
    corrected.write_text("mended by hand\n")
    with pytest.raises(TaskFileError, match=r"train\.csv must be as it is in .*moods\.zip"):
        new_study(folder / "moods.zip", folder.parent / "study.yaml", quiet=True)
    assert corrected.read_text() == "mended by hand\n"


def test_files_of_one_name_in_an_archive_do_not_replace_each_other(folder):
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for name in ("joy", "rage"):
            archive.writestr(f"{name}/train.csv", frame("train", **MOODS).assign(mood=name).to_csv(index=False))
    unpacked = [*_unpacked(folder / "all.zip", folder)]
    assert [pd.read_csv(file)["mood"][0] for file in unpacked] == ["joy", "rage"]


@pytest.mark.parametrize("like", shapes())
def test_the_shape_of_a_known_solution_is_a_valid_study(folder, like):
    columns = KINDS["several numbers" if like == "feedback3" else "grades" if like == "aes2" else "a pair"][0]
    if like == "ner":
        lines = "\n\n".join("\n".join(f"{word}\tO" for word in text(row).split()) for row in range(ROWS))
        (folder / "train.conll").write_text(f"Rome\tB-place\n{lines}\n", encoding="utf8")
    else:
        save(folder, train=frame("train", **columns))
    config, found = written(folder, like=like)
    assert config.training["max_length"] == 64
    assert config.search_space.root.keys() == shapes()[like].search_space.keys()
    assert f"--like {like}" in found


def test_what_cannot_be_a_study_is_said(folder):
    with pytest.raises(TaskFileError, match="have a file of labelled rows"):
        written(save(folder, test=frame("test", text=text), sample_submission=frame("test", id=text)))
    (folder / "test.csv").unlink()
    save(folder, train=frame("train", **MOODS))
    (folder.parent / "study.yaml").write_text("study: mine\n")
    with pytest.raises(StudyError, match="be a new file"):
        written(folder)
    (folder.parent / "notes.md").write_text("mine\n")
    with pytest.raises(StudyError, match=r"notes\.md must be a new file"):
        new_study(folder, folder.parent / "notes.yaml", quiet=True)
    with pytest.raises(ConfigError, match="be one of feedback3"):
        new_study(folder, folder.parent / "other.yaml", like="feedback4", quiet=True)
