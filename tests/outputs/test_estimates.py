"""Nested estimates are computed once for the same recipe and predictions."""

from __future__ import annotations

import numpy as np
import pytest
from polls import elect

from tutti.ensembling.nested import Judged
from tutti.ensembling.procedure import OutOfFold
from tutti.outputs.election import estimates
from tutti.outputs.election.estimates import Estimates
from tutti.outputs.election.poll import Rule


@pytest.fixture
def estimated(make_finished, tmp_path):
    """What is estimated of a study by a rule: predictions and scores of the vote, and how many folds were computed."""
    study = make_finished(4)

    def of(rule: Rule = Rule(top=3), *, folder=tmp_path / "estimates", of_study=study):  # noqa: B008
        said = []
        election = elect(
            study="demo",
            bank=of_study.bank,
            tasks=of_study.tasks,
            validation=of_study.validation(),
            needed={},
            rule=rule,
            estimates=Estimates(folder, say=said.append),
        )
        emotion = election.tasks["emotion"]
        return emotion.together, emotion.alone, len(said)

    return of


def assert_equal(one, other) -> None:
    for first, second in zip(one, other, strict=True):  # of predictions, and of how they are judged
        for name, value in vars(first).items():
            np.testing.assert_array_equal(value, getattr(second, name))


def test_an_estimate_is_read_again_to_the_last_bit(estimated):
    vote, single, folds = estimated()
    assert folds == 2 * 25
    again, single_again, none = estimated()
    assert none == 0
    assert_equal(vote, again)
    assert_equal(single, single_again)


def test_every_number_of_an_estimate_is_kept(tmp_path):
    judged = Judged(score=0.5, resampled=np.array([0.4, 0.6]), one_row=0.01, least=0.25)  # least: of MAP@3, say
    found = OutOfFold(np.zeros((1, 2)), np.zeros((1, 2)), None, None, np.zeros(2), None)
    estimates._write(tmp_path / "estimates" / "one.safetensors", found, judged)
    kept = estimates._read(tmp_path / "estimates" / "one.safetensors")
    assert kept is not None
    assert_equal((found, judged), kept)
    assert kept[1].estimate == judged.estimate


def test_another_recipe_or_other_predictions_or_code_are_computed(estimated, make_finished, monkeypatch):
    estimated()
    assert estimated(Rule(top=2))[2] == estimated(of_study=make_finished(5))[2] == 2 * 25
    monkeypatch.setattr(estimates, "_code", lambda: "another")
    assert estimated()[2] == 2 * 25


@pytest.mark.parametrize("content", [b"", b"\x00" * 100])
def test_a_damaged_estimate_is_computed_again(estimated, tmp_path, content):
    vote, *_ = estimated()
    for file in (tmp_path / "estimates").iterdir():
        file.write_bytes(content)
    again, _, folds = estimated()
    assert folds == 2 * 25
    assert_equal(vote, again)


def test_a_folder_that_cannot_be_made_costs_nothing_but_time(estimated, tmp_path):
    (tmp_path / "file").write_text("")
    assert estimated(folder=tmp_path / "file" / "estimates")[2] == estimated(folder=None)[2] == 2 * 25


def test_only_the_latest_estimates_are_kept(estimated, tmp_path, monkeypatch):
    monkeypatch.setattr(estimates, "_MOST_FILES", 3)
    for top in (1, 2, 3):
        estimated(Rule(top=top))
    assert len([*(tmp_path / "estimates").iterdir()]) == 3
