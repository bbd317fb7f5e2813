"""The Python API on a study that has trials: what its calls return, and that they write only when they are told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bad_input_run import STUDY, inside, run
from voting_study import make_study, write_files

import tutti
from tutti.errors import ConfigError, StudyError
from tutti.files import hashes
from tutti.orchestration.upkeep.lock import study_lock
from tutti.workflows.study import Study, open_study


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the study ``moods``: four finished trials and one that was stopped."""
    folder = tmp_path_factory.mktemp("api")
    write_files(folder / "data")
    make_study(folder, "moods")
    (folder / "all.yaml").write_text("pseudo_labels: {select: all, max_drift: null}\n")
    return folder


@pytest.fixture
def study(place) -> Study:
    return tutti.open(place / "studies/moods", quiet=True)


@pytest.fixture
def files(tmp_path) -> Path:
    """The files of a study that has not begun."""
    (tmp_path / "study.yaml").write_text(STUDY, encoding="utf8")
    (tmp_path / "backbone").mkdir()
    for part in ("train", "test", "pool"):
        (tmp_path / f"mood_{part}.tsv").write_text("1\tfine\tgood\n")
    return tmp_path


def test_trials_are_a_table_with_scores_by_task_and_parameters(study):
    table, records = study.trials(), study.records()
    assert table.index.tolist() == [record.key for record in records] == [f"t{number:04d}" for number in range(5)]
    assert table["state"].tolist() == ["finished"] * 4 + ["stopped early"]
    assert table["score/mood"].tolist() == [record.task_scores["mood"] for record in records]
    assert table["pooling"].tolist() == [record.parameters["pooling"] for record in records]
    assert {"score", "score/warmth", "learning_rate", "seconds"} <= {*table.columns}


def test_a_vote_is_computed_without_files_and_writes_what_the_command_writes(study, place, tmp_path):
    vote = study.ensemble("auto")
    assert not study.folder.ensembles.exists()
    written = vote.write(tmp_path / "ours")
    assert [file.name for file in written[-2:]] == ["card.json", "card.md"]
    run(place, f"ensemble studies/moods --recipe auto --out {tmp_path / 'theirs'}", code=0)
    ours, theirs = hashes(tmp_path / "ours"), hashes(tmp_path / "theirs")
    for dated in ("card.json", "card.md"):
        del ours[dated], theirs[dated]
    assert ours == theirs
    card = json.loads((tmp_path / "ours/card.json").read_text(encoding="utf8"))
    assert (vote.score.score, vote.gain.score) == (card["objective"]["score"], card["gain"]["score"])
    keys = {task: [member.key for member in members] for task, members in vote.members.items()}
    assert keys == {task["task"]: [member["key"] for member in task["members"]] for task in card["tasks"]}
    assert "vote 0.9" in repr(vote)


def test_a_submission_is_a_table_of_the_test_file_s_rows(study, tmp_path):
    vote = study.ensemble()
    vote.write(tmp_path / "out")
    lines = (tmp_path / "out/mood_predict.json").read_text(encoding="utf8").splitlines()
    assert vote.submission("mood").to_dict("records") == [*map(json.loads, lines)]
    with pytest.raises(
        StudyError, match=r"be one of a test file: mood/test, warmth/test; got moods/test; did you mean"
    ):
        vote.submission("moods")


def test_a_vote_is_graded_on_labels_by_task(study, place):
    [graded] = study.ensemble(score={"mood": place / "data/mood_truth.tsv"}).card.graded
    assert (graded.task, graded.rows) == ("mood", 40)


def test_pseudo_labels_are_a_table_until_they_are_written(study, place, tmp_path):
    labels = study.pseudo_labels(str(place / "all.yaml"))
    table = labels.labels("mood")
    assert not study.folder.pseudo_labels.exists()
    assert table.columns.tolist() == ["id", "text", "label", "confidence"]
    assert labels.labels("warmth").columns.tolist() == ["id", "text", "label"]
    report = labels.write(tmp_path / "labels")
    rows = [line.split("\t") for line in (tmp_path / "labels/mood.tsv").read_text(encoding="utf8").splitlines()]
    assert table[["id", "text", "label"]].to_numpy().tolist() == rows
    assert "mood.tsv" in report.files


def test_the_bank_has_every_trial_s_predictions(study):
    predictions = study.bank.predictions("t0003", "mood", "validation")
    assert predictions.outputs.shape == (200, 3)
    np.testing.assert_array_equal(predictions.ids, study.prepared.ids("mood", "validation"))


def test_a_quiet_study_prints_nothing(study, tmp_path, capsys):
    page, listing, errors = study.report(out=tmp_path / "report", errors=tmp_path / "errors.csv")
    assert (page.name, listing.name, errors.name) == ("report.html", "report.json", "errors.csv")
    study.pseudo_labels("self_training").write(tmp_path / "labels")
    assert capsys.readouterr().out == ""


def test_reading_works_beside_a_process_that_runs_the_study_and_running_is_refused(study):
    assert not study.is_running
    with study_lock(study.folder):
        assert study.is_running
        assert len(study.trials()) == 5
        assert study.ensemble("baseline").members
        for call in (study.doctor, study.round):
            with pytest.raises(StudyError, match="be run by one process at a time"):
                call()


def test_a_public_score_is_kept_beside_the_local_one(study, tmp_path):
    vote = study.ensemble()
    vote.write(tmp_path / "sent")
    [entry] = study.add_public_score(tmp_path / "sent", 0.5)
    assert (entry.public, entry.local) == (0.5, vote.score.score)
    assert study.leaderboard() == [entry]


def test_a_study_is_found_by_its_name_or_folder_and_another_one_is_an_error(place):
    with inside(place):
        assert open_study("moods").folder == open_study(place / "studies/moods").folder
        with pytest.raises(StudyError, match="did you mean 'moods'"):
            open_study("mood")


def test_a_mapping_is_a_study_as_its_file_is(files):
    with inside(files):
        from tutti.config.yaml_file import read_mapping

        ours = Study(read_mapping(files / "study.yaml", kind="study file"))
        assert ours.config == Study("study.yaml").config
        assert ours.folder.path == files / "studies/moods"
        with pytest.raises(ConfigError, match=r"^the study: search\.trails must"):
            Study(read_mapping(files / "study.yaml", kind="study file") | {"search": {"trails": 3}})


def test_overrides_are_given_by_key_or_as_on_the_command_line(files):
    given = {"search.trials": 4, "training.learning_rate": 1e-5, "training.max_length": None, "search_space": None}
    study = Study(files / "study.yaml", overrides=given | {"search.trials": 1})
    assert study.config.training == {
        "num_train_epochs": 1, "per_device_train_batch_size": 8, "learning_rate": 1e-5
    }  # fmt: skip
    texts = ["search.trials=1", "training.learning_rate=1e-5", "training.max_length=null", "search_space=null"]
    assert study.config == Study(files / "study.yaml", overrides=texts).config


def test_a_study_that_has_not_begun_says_so(files):
    with pytest.raises(StudyError, match=r"the study 'moods' must have begun; got none in .*; call tune first"):
        Study(files / "study.yaml").trials()


@pytest.mark.parametrize("trials", [0, "+0", "few", 1.5])
def test_what_is_no_number_of_trials_is_refused(files, trials):
    with pytest.raises(StudyError, match="be a whole number of at least 1"):
        Study(files / "study.yaml").tune(trials)


def test_the_package_has_the_names_to_begin_with():
    assert {"Study", "open", "run_demo", "new_backbone", "pretrain", "TuttiError"} <= {*dir(tutti)}
    with pytest.raises(AttributeError, match="has no attribute 'stduy'"):
        tutti.stduy  # noqa: B018
