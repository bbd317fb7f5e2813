"""Settings of generation that are tried without training again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kind_studies import study_with_weights

from tutti.errors import ConfigError, StudyError
from tutti.workflows.study import Study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study_with_weights(tmp_path_factory.mktemp("texts"), "text")


def test_texts_under_each_combination_of_settings_vote_as_guests(study: Study) -> None:
    found = study.generate({"max_new_tokens": [3, 6], "num_beams": [1, 2]}, trials=["t0001"])
    names = [f"t0001-max_new_tokens-{new}-num_beams-{beams}" for new in (3, 6) for beams in (1, 2)]
    assert sorted(record.key for record in found) == names
    assert [record.score for record in found] == sorted((record.score for record in found), reverse=True)
    assert {record.source for record in found if record.key == names[0]} == {
        "t: t0001 with max_new_tokens 3, num_beams 1"
    }
    for part in ("validation", "test", "unlabeled"):
        short, long = (study.bank.predictions(name, "t", part) for name in (names[0], names[2]))
        assert short.log_probabilities is not None
        pairs = list(zip(short.outputs, long.outputs, strict=True))
        assert all(longer.startswith(text) for text, longer in pairs)  # the same model, without chance
        assert max(len(text.split()) for text in short.outputs) <= 3 < max(len(text.split()) for text in long.outputs)
    again = study.generate({"max_new_tokens": [3], "num_beams": [1]}, trials=["t0001"])
    np.testing.assert_array_equal(
        study.bank.predictions(again[0].key, "t", "test").outputs, study.bank.predictions(names[0], "t", "test").outputs
    )
    vote = study.ensemble("auto")
    assert vote.card.tasks[0].members


def test_guests_that_a_trial_writes_predict_new_rows_under_their_own_settings(study: Study, tmp_path: Path) -> None:
    study.generate({"max_new_tokens": [2], "num_beams": [2]}, trials=["t0001"])
    recipe = tmp_path / "best.yaml"
    recipe.write_text("members: {top: 9, by: task}\n", encoding="utf-8")
    vote = study.ensemble(str(recipe))
    assert "t0001-max_new_tokens-2-num_beams-2" in [member.key for member in vote.members["t"]]
    rows = study.prepared.rows("t", "test")[["id", "text"]]
    assert vote.predict(rows)["text"].tolist() == vote.submission("t").iloc[:, 1].tolist()


def test_settings_that_cannot_be_tried_are_told(study: Study) -> None:
    with pytest.raises(ConfigError, match="did you mean 'num_beams'"):
        study.generate({"num_beam": [2]})
    with pytest.raises(StudyError, match="t0009"):
        study.generate({"num_beams": [2]}, trials=["t0009"])
