"""Predictions of other models, and of second-stage models, vote as guests of a study."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from voting_study import make_study, write_files

import tutti
from tutti.errors import StudyError, TaskFileError
from tutti.workflows.guests import sources_of
from tutti.workflows.study import Study


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("guests")
    write_files(folder / "data")
    make_study(folder, "moods")
    return folder


@pytest.fixture
def study(place) -> Iterator[Study]:
    opened = tutti.open(place / "studies/moods", quiet=True)
    yield opened
    for guest in opened.guests():
        opened.bank.remove(guest.key)


@pytest.fixture
def files(study, tmp_path) -> dict[str, Path]:
    """The predictions of the best trial in the task mood."""
    best = max(study.records(), key=lambda record: record.task_scores["mood"]).key
    return {file.stem: file for file in study.export_predictions(best, tmp_path / "given", task="mood")}


def changed(file: Path, change) -> Path:
    """The table with its rows changed, beside it."""
    with file.open(newline="") as lines:
        rows = list(csv.reader(lines))
    other = file.with_name("changed.csv")
    with other.open("w", newline="") as lines:
        csv.writer(lines).writerows(change(rows))
    return other


@pytest.mark.parametrize("task", ["mood", "warmth"])
def test_what_is_exported_comes_back_to_the_last_bit(study, tmp_path, task):
    parts = {file.stem: file for file in study.export_predictions("t0001", tmp_path, task=task)}
    assert parts.keys() == {"validation", "test", "unlabeled"}
    record = study.import_predictions("copy", task=task, **parts)
    assert record.task_scores[task] == study.records()[1].task_scores[task]
    for part in parts:
        one, other = (study.bank.predictions(key, task, part) for key in ("t0001", "copy"))
        np.testing.assert_array_equal(one.outputs, other.outputs)
        np.testing.assert_array_equal(one.ids, other.ids)


def test_an_export_replaces_no_file_of_a_user(study, tmp_path):
    (tmp_path / "test.csv").write_text("id,text\n")
    with pytest.raises(StudyError, match=r"test\.csv must not be there yet"):
        study.export_predictions("t0001", tmp_path, task="mood")
    assert [file.name for file in tmp_path.iterdir()] == ["test.csv"]


def test_sources_by_task_are_told_apart_whatever_files_are_called(study, files, tmp_path):
    odd = files["validation"].rename(tmp_path / "a; b.csv")
    for _ in range(2):
        record = study.import_predictions("odd", task="mood", validation=odd, test=files["test"])
    assert sources_of(record)["mood"].startswith("a; b.csv (")


def test_a_guest_votes_in_its_task_and_is_a_run_of_the_study(study, files, place):
    shuffled = changed(files["validation"], lambda rows: [rows[0], *rows[:0:-1]])
    record = study.import_predictions("lgbm", task="mood", validation=shuffled, test=files["test"])
    assert "changed.csv" in record.source
    assert [guest.key for guest in study.guests() if guest.key == "lgbm"] == ["lgbm"]
    (place / "by_task.yaml").write_text("members: {top: 8, by: task}\n")
    vote = study.ensemble(str(place / "by_task.yaml"))
    voting = {task.task: {member.key for member in task.members} for task in vote.card.tasks}
    assert "lgbm" in voting["mood"]
    assert "lgbm" not in voting["warmth"]
    assert "trials and 1 guest." in vote.card.to_markdown()
    assert study.trials().loc["lgbm", ["state", "reason"]].to_list() == ["guest", record.source]
    (place / "alone.yaml").write_text("members: {top: 8, by: task, guests: false}\n")
    assert not {"lgbm"} & {
        member.key for task in study.ensemble(str(place / "alone.yaml")).card.tasks for member in task.members
    }
    client = MlflowClient(tracking_uri=study.folder.mlflow_uri)
    experiment = client.get_experiment_by_name("moods")
    (run,) = client.search_runs(
        [experiment.experiment_id], "tags.`tutti.guest` = 'true' and attributes.run_name = 'lgbm'"
    )
    assert run.data.metrics["score"] == pytest.approx(record.score, abs=1e-4)
    assert len(run.data.params["mood/validation_sha256"]) == 64


def test_a_guest_without_unlabelled_rows_says_how_they_are_labelled(study, files, place):
    study.import_predictions("lgbm", task="mood", validation=files["validation"], test=files["test"])
    (place / "by_task.yaml").write_text("members: {top: 8, by: task}\n")
    with pytest.raises(StudyError, match=r"got none for unlabeled; add them with `tutti bank import`"):
        study.pseudo_labels(str(place / "by_task.yaml"))


def test_a_submission_from_python_follows_its_sample(study, place):
    ids = [str(row) for row in study.prepared.ids("mood", "test")]
    sample = "Id,calm,glad,sad\n" + "".join(f"{row},0.3,0.3,0.4\n" for row in reversed(ids))
    (place / "sample.csv").write_text(sample)
    (place / "like.yaml").write_text(f"submission: {{format: csv, templates: {{mood: {place / 'sample.csv'}}}}}\n")
    vote = study.ensemble(str(place / "like.yaml"))
    table = vote.submission("mood")
    assert table.columns.tolist() == ["Id", "calm", "glad", "sad"]
    assert table["Id"].tolist() == ids[::-1]
    vote.write(place / "like")
    written = list(csv.reader((place / "like" / "mood.csv").open(newline="")))
    assert written == [table.columns.tolist(), *(list(map(str, row)) for row in table.itertuples(index=False))]


WRONG = {
    "a row is missing": (lambda rows: rows[:-1], r"must have all rows of the study; got 1 missing"),
    "a row is twice": (lambda rows: [*rows, rows[1]], r"must have each id once; got 1 again"),
    "a row of another file": (lambda rows: [*rows, ["x", 1, 0, 0]], r"must have no other rows; got 1 surplus: 'x'"),
    "scores": (lambda rows: [rows[0], *([row[0], 3, -1, 0] for row in rows[1:])], r"have probabilities, from 0 to 1"),
    "half of each": (
        lambda rows: [rows[0], *([row[0], *(float(each) / 2 for each in row[1:])] for row in rows[1:])],
        r"of which those of a row sum to 1; got 0.5 in a row",
    ),
    "no number": (lambda rows: [rows[0], [rows[1][0], "-", 0, 1], *rows[2:]], r"have a number in 'p_calm'; got '-'"),
    "another class": (lambda rows: [["id", "p_calm", "p_glad", "p_bad"], *rows[1:]], r"have a column for each output"),
}


@pytest.mark.parametrize("name", WRONG)
def test_predictions_that_are_not_those_of_the_study_are_refused(study, files, name):
    change, said = WRONG[name]
    with pytest.raises(TaskFileError, match=said):
        study.import_predictions(
            "wrong", task="mood", validation=changed(files["validation"], change), test=files["test"]
        )
    assert "wrong" not in {guest.key for guest in study.guests()}


def test_a_guest_has_no_name_of_a_trial_and_predicts_each_test_set(study, files):
    with pytest.raises(StudyError, match=r"--name must be a plain name that no trial may have; got 't0001'"):
        study.import_predictions("t0001", task="mood", validation=files["validation"], test=files["test"])
    with pytest.raises(StudyError, match=r"must have predictions of test, on which it votes"):
        study.import_predictions("other", task="mood", validation=files["validation"])


@pytest.mark.parametrize("task", ["mood", "warmth"])
@pytest.mark.parametrize("model", ["linear", "boosting", "lightgbm"])
def test_a_second_stage_is_fitted_out_of_fold_and_is_better_than_each_member(study, place, task, model):
    if model == "lightgbm":
        pytest.importorskip("lightgbm")
    record = study.second(task=task, model=model, name="stage")
    assert record.task_scores[task] > max(each.task_scores[task] for each in study.records() if each.score) - 0.02
    parts = study.bank.parts("stage")[task]
    assert {*parts} == {"validation", "test", "unlabeled"}
    (place / "by_task.yaml").write_text("members: {top: 8, by: task}\n")
    notes = study.ensemble(str(place / "by_task.yaml")).card.notes
    assert any("second stage (stage)" in note and "slightly optimistic" in note for note in notes)


def test_columns_of_the_table_are_learnt_from(tmp_path, place):
    rng = np.random.default_rng(0)
    from tutti.ensembling.second import SecondStage, features_of
    from tutti.tasks.kinds.registry import KINDS

    labels, kind = rng.integers(2, size=300), KINDS["classes"]
    votes = rng.dirichlet([1, 1], (2, 300)).astype(np.float32)
    told = labels[:, None] + rng.normal(0, 0.3, (300, 1))
    told[:20] = np.nan
    stage = SecondStage(kind, "linear", 2)
    outputs = stage.out_of_fold(features_of(kind, votes, told), labels, np.arange(300))
    assert (outputs.argmax(axis=1) == labels)[20:].mean() > 0.9
    np.testing.assert_allclose(outputs.sum(axis=1), 1, atol=1e-6)
    noise = stage.out_of_fold(features_of(kind, votes, np.empty((300, 0))), labels, np.arange(300))
    assert (noise.argmax(axis=1) == labels).mean() < 0.6  # nothing of a row's own label is in its prediction


def test_a_second_stage_takes_no_imported_guest_s_place(study, tmp_path):
    parts = {file.stem: file for file in study.export_predictions("t0001", tmp_path, task="mood")}
    study.import_predictions("lgbm", task="mood", **parts)
    with pytest.raises(StudyError, match="--name must be no imported guest's; got 'lgbm'"):
        study.second(task="mood", name="lgbm")
