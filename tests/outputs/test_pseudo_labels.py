from __future__ import annotations

import csv
import hashlib
import json

import numpy as np
import pytest

from tutti.errors import StudyError
from tutti.outputs.members import Rule
from tutti.outputs.pseudo_labels import write_pseudo_labels
from tutti.tasks.layouts.competition import Competition
from tutti.tasks.layouts.glue import Glue


def arguments(study, out, **changes):
    plain = {"study": "demo", "recipe_name": "baseline", "tasks": study.tasks, "bank": study.bank, "rule": Rule(top=3)}
    plain |= {"rows": {name: study.unlabelled(name) for name in ("emotion", "CoLA")}}
    plain |= {"layouts": {"emotion": Competition(), "CoLA": Glue("CoLA"), "topic": Competition()}}
    plain |= {"suffixes": {"emotion": ".csv", "CoLA": ".tsv", "topic": ".csv"}}
    return {**plain, "threshold": 0.8, "out": out, **changes}


def mean_of(study, report, task):
    members = next(each.members for each in report.tasks if each.task == task)
    said = [study.bank.predictions(each.key, task, "unlabeled").probabilities for each in members]
    return np.mean(said, axis=0), said


def test_the_rows_at_the_threshold_become_a_training_file_that_the_layout_reads(make_study, tmp_path):
    study = make_study()
    report = write_pseudo_labels(**arguments(study, tmp_path / "out"))
    mean, _ = mean_of(study, report, "emotion")
    sure = np.flatnonzero(mean.max(axis=1) >= 0.8)
    back = Competition().read(str(tmp_path / "out" / "emotion.csv"), labelled=True)
    expected = study.unlabelled("emotion").iloc[sure]
    assert 0 < len(sure) < 150
    assert back["id"].tolist() == expected["id"].tolist()
    assert back["text"].tolist() == expected["text"].tolist()
    assert back["label"].tolist() == [study.tasks[0].class_names[index] for index in mean[sure].argmax(axis=1)]
    assert len(Glue("CoLA").read(str(tmp_path / "out" / "CoLA.tsv"), labelled=True)) == report.tasks[1].labelled


def test_a_row_with_an_empty_text_gets_no_pseudo_label(make_study, tmp_path):
    study = make_study()
    rows = study.unlabelled("emotion")
    mean, _ = mean_of(study, write_pseudo_labels(**arguments(study, tmp_path / "all")), "emotion")
    sure = np.flatnonzero(mean.max(axis=1) >= 0.8)
    rows.loc[sure[0], "text"] = " "
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", rows={"emotion": rows}))
    back = Competition().read(str(tmp_path / "out" / "emotion.csv"), labelled=True)
    assert back["id"].tolist() == rows["id"].iloc[sure[1:]].tolist()
    assert report.tasks[0].labelled == len(sure) - 1


def test_confidence_and_agreement_stand_beside(make_study, tmp_path):
    study = make_study()
    report = write_pseudo_labels(**arguments(study, tmp_path / "out"))
    mean, said = mean_of(study, report, "emotion")
    with (tmp_path / "out" / "emotion.confidence.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == report.tasks[0].labelled
    for row in rows:
        place = int(row["id"].removeprefix("unlabeled "))
        assert float(row["confidence"]) == pytest.approx(mean[place].max(), abs=1e-6)
        assert int(row["agreeing"]) == sum(one[place].argmax() == mean[place].argmax() for one in said)
        assert row["members"] == "3"
        assert row["label"] == study.tasks[0].class_names[mean[place].argmax()]


def test_coverage_adds_up_and_stands_on_the_page(make_study, tmp_path):
    report = write_pseudo_labels(**arguments(make_study(), tmp_path / "out"))
    page = (tmp_path / "out" / "card.md").read_text()
    for each in report.tasks:
        assert sum(one.rows for one in each.coverage) == each.labelled
        assert [one.share for one in each.coverage] == pytest.approx([one.rows / 150 for one in each.coverage])
        assert each.mean_confidence >= 0.8
        assert f"{each.labelled} of 150 rows" in page
    assert "> Task topic has no unlabelled rows and was passed over." in page
    assert report.passed_over == ("topic",)


def test_the_json_card_hashes_every_file(make_study, tmp_path):
    report = write_pseudo_labels(**arguments(make_study(), tmp_path / "out"))
    read = json.loads((tmp_path / "out" / "card.json").read_text())
    assert set(report.files) == {"emotion.csv", "emotion.confidence.csv", "CoLA.tsv", "CoLA.confidence.csv"}
    assert read["files"] == report.files
    assert read["tasks"][0]["coverage"][0]["label"] == "happy"
    for name, digest in report.files.items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest


def test_no_row_at_the_threshold_writes_no_file_and_says_so_plainly(make_study, tmp_path):
    report = write_pseudo_labels(**arguments(make_study(skill=0.0), tmp_path / "out", threshold=1.0))
    sentence = "No row of task emotion reached 1: no file was written for it."
    assert [each.file for each in report.tasks] == [None, None]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"card.json", "card.md"}
    assert any(remark.startswith(sentence) for remark in report.remarks)
    assert sentence in (tmp_path / "out" / "card.md").read_text()
    assert any(
        remark.startswith(sentence) for remark in json.loads((tmp_path / "out" / "card.json").read_text())["remarks"]
    )
    assert [one.mean_confidence for one in report.tasks[0].coverage] == [None] * 3


def test_no_task_with_unlabelled_rows_is_the_user_s_matter(make_study, tmp_path):
    with pytest.raises(StudyError, match=r"must have a task with unlabelled rows; got none; name a file"):
        write_pseudo_labels(**arguments(make_study(), tmp_path / "out", rows={}))
    assert not (tmp_path / "out").exists()


def test_rows_that_changed_since_the_study_are_refused(make_study, tmp_path):
    study = make_study()
    rows = {"emotion": study.unlabelled("emotion").iloc[::-1]}
    with pytest.raises(StudyError, match="the unlabelled rows of emotion must be the 150 rows"):
        write_pseudo_labels(**arguments(study, tmp_path / "out", rows=rows))
    assert not (tmp_path / "out").exists()


def test_unlabelled_rows_that_the_trials_never_saw_are_named(make_study, tmp_path):
    study = make_study(3)
    rows = {"topic": study.unlabelled("emotion")}
    with pytest.raises(StudyError, match="every part of task topic; got none for unlabeled"):
        write_pseudo_labels(**arguments(study, tmp_path / "out", rows=rows))


def test_a_member_without_weight_does_not_count_as_agreeing(make_study, tmp_path):
    arguments_ = arguments(make_study(), tmp_path / "out", rule=Rule(method="best"), threshold=0.5)
    report = write_pseudo_labels(**arguments_)
    assert sorted(each.weight for each in report.tasks[0].members) == [0, 0, 0, 0, 1]
    with (tmp_path / "out" / "emotion.confidence.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["agreeing"], row["members"]) for row in rows} == {("1", "1")}


@pytest.mark.parametrize("method", ["auto", "score", "rank", "hard", "greedy", "stacking"])
def test_every_method_labels_rows_with_what_it_says_and_how_sure_it_is(make_study, tmp_path, method):
    study = make_study()
    rule = Rule(top=4, method=method, calibration="temperature")
    report = write_pseudo_labels(**arguments(study, tmp_path / "out", rule=rule, threshold=0.7))
    mean, _ = mean_of(study, report, "emotion")
    sure = {row: mean[row].argmax() for row in np.flatnonzero(mean.max(axis=1) > 0.7)}
    with (tmp_path / "out" / "emotion.confidence.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(float(row["confidence"]) >= 0.7 - 1e-5 for row in rows)
    told = {int(row["id"].removeprefix("unlabeled ")): row["label"] for row in rows}
    both = sure.keys() & told.keys()
    same = sum(told[row] == study.tasks[0].class_names[sure[row]] for row in both)
    assert same > 0.9 * len(both)


def test_calibrated_confidence_covers_what_averaging_left_too_unsure(make_study, tmp_path):
    study = make_study(skill=2.5)
    plain, calibrated = (
        write_pseudo_labels(
            **arguments(study, tmp_path / name, rule=Rule(top=5, calibration=name), threshold=0.95),
        )
        for name in ("none", "temperature")
    )
    assert all(after.labelled > before.labelled for before, after in zip(plain.tasks, calibrated.tasks, strict=True))
    assert plain.remarks == ("Task topic has no unlabelled rows and was passed over.",)
    assert any("fitted to 200 validation rows" in remark for remark in calibrated.remarks)
    assert (
        "> Confidence in task emotion is that at temperature 0." in (tmp_path / "temperature" / "card.md").read_text()
    )
