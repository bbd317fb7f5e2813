"""A study that was really trained, in Python: it predicts data frames with its weights, and is run again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bad_input_run import make_templates

from tutti.errors import StudyError, TaskFileError
from tutti.workflows.study import Study, open_study
from tutti.workflows.vote import Vote


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    templates = make_templates(tmp_path_factory.mktemp("predict") / "templates")
    return open_study(templates.finished / "studies/moods", quiet=True)


@pytest.fixture(scope="module")
def vote(study) -> Vote:
    return study.ensemble("baseline")


@pytest.fixture
def rows(study) -> pd.DataFrame:
    """The rows of the test file, whose predictions are in the bank."""
    return study.prepared.rows("mood", "test")[["id", "text"]].set_index(pd.Index(range(10, 16)))


def test_a_frame_is_predicted_as_the_test_file_was(study, vote, rows):
    table = vote.predict(rows, "mood")
    banked = study.bank.predictions("t0000", "mood", "test")
    assert table.index.tolist() == rows.index.tolist()
    assert table["id"].tolist() == banked.ids.tolist()
    assert table["label"].tolist() == vote.submission("mood")["label"].tolist()
    np.testing.assert_allclose(vote.predict_proba(rows), banked.outputs, atol=0.01)  # it may be bfloat16
    assert table.columns.tolist() == ["id", "label", "confidence", "p_calm", "p_glad", "p_sad"]


def test_ids_and_labels_are_optional_and_the_only_task_need_not_be_named(vote, rows):
    table = vote.predict(rows[["text"]].assign(label="glad"))
    assert table["id"].tolist() == [str(row) for row in range(6)]
    assert table["label"].tolist() == vote.predict(rows)["label"].tolist()


def test_a_frame_without_texts_or_an_unknown_task_is_an_error(vote, rows):
    with pytest.raises(TaskFileError, match=r"^the rows must have the column 'text'"):
        vote.predict(rows[["id"]])
    with pytest.raises(StudyError, match=r"be one of the tasks of moods: mood; got 'moods'"):
        vote.predict(rows, "moods")


def test_members_without_weights_cannot_predict(study, rows, tmp_path):
    place = Path(shutil.copytree(study.folder.path, tmp_path / "moods"))
    shutil.rmtree(place / "trials")
    with pytest.raises(StudyError, match="have weights"):
        open_study(place).ensemble("baseline").predict(rows)


def test_a_complete_study_is_run_again_from_its_folder_wherever_that_is(study, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    place = shutil.copytree(study.folder.path, tmp_path / "moved" / "moods", symlinks=True)
    tuned = open_study(place).tune(1)
    assert [trial.key for trial in tuned.trials] == ["t0000"]
    assert (tuned.best, tuned.ended_early) == (tuned.trials[0], None)
    assert "1 of 1 trial done" in capsys.readouterr().out
    with pytest.raises(StudyError, match="be new in"):
        open_study(place, quiet=True).tune(resume=False)
    assert capsys.readouterr().out == ""
