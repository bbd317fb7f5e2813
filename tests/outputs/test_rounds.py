"""Whether a round gains over its control."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tutti.bank.bank import Bank
from tutti.bank.electorate import Electorate
from tutti.ensembling.nested import Estimate
from tutti.errors import StorageError, StudyError
from tutti.outputs.election.poll import Poll, Rule
from tutti.outputs.pseudo.rounds import Comparison, Round, RoundFolder, compare, ended_rounds, next_round, write_round
from tutti.tasks.predictions import Predictions

RULE = Rule(top=3, by="task")


@pytest.fixture
def studies(make_finished, tmp_path):
    """The bank of a study, and of others whose members are right more often, as often, less often, and never."""
    study = make_finished()

    def improved(known: Predictions, better: float) -> Predictions:
        if known.labels is None or not better:
            return known
        label = known.labels if better > 0 else (known.labels + 1) % len(known.names)
        mixed = (1 - abs(better)) * known.outputs + abs(better) * np.eye(len(known.names))[label]
        return replace(known, outputs=mixed.astype(np.float32))

    def copy(name: str, better: float) -> Bank:
        bank = Bank(tmp_path / name)
        for record in study.bank.records():
            parts = study.bank.parts(record.key)
            predictions = {
                task: {part: improved(study.bank.predictions(record.key, task, part), better) for part in parts[task]}
                for task in parts
            }
            bank.put(record, predictions)
        return bank

    banks = {name: copy(name, better) for name, better in (("better", 0.4), ("same", 0), ("bad", -0.2), ("wrong", -1))}
    return study, {"first": study.bank, **banks}


def compared(studies, control: str, ours: str):
    study, banks = studies
    first = {"first": banks["first"]}
    return compare(
        Poll("first", study.tasks, study.validation(), Electorate(first), RULE),
        control=Electorate({**first, control: banks[control]}),
        with_round=Electorate({**first, ours: banks[ours]}),
        needed={},
    )


def test_a_round_with_better_members_is_kept_and_one_with_the_same_is_not(studies):
    better = compared(studies, "same", "better")
    assert better.kept
    assert better.objective["gain"].low > 0
    for task in better.gain:
        gain = better.round[task].score - better.control[task].score
        assert better.gain[task].score == pytest.approx(gain)
    none = compared(studies, "better", "better")
    assert not none.kept
    assert none.objective["gain"].score == 0
    assert none.objective["gain"].error < 0.05
    assert not compared(studies, "better", "same").kept


@pytest.mark.parametrize(("gain", "kept"), [(0.03, True), (0.02, False), (0.01, False), (-0.03, False)])
def test_a_round_is_kept_only_with_a_gain_above_one_standard_error(gain, kept):
    before, control, ours = ({"a": Estimate(score, 0.05)} for score in (0.5, 0.6, 0.6 + gain))
    assert Comparison(before, control, ours, {"a": Estimate(gain, 0.02)}, [[1.0]], {"a": 1.0}).kept == kept


def test_a_round_below_the_ensemble_before_is_not_kept_though_its_control_is_worse(studies):
    harmful = compared(studies, "wrong", "bad")
    assert harmful.objective["gain"].score > 0
    assert harmful.objective["round"].score < harmful.objective["before"].score
    assert not harmful.kept


def test_a_round_that_was_written_is_read_back_and_only_whole_ones_count(studies, tmp_path):
    comparison = compared(studies, "same", "better")
    first = Round(1, "self_training", "0" * 64, "a-round-1", ("a",), kept=True)
    write_round(tmp_path / "1", first, comparison)
    write_round(tmp_path / "3", replace(first, number=3), comparison)
    assert ended_rounds(tmp_path) == [first]
    content = json.loads((tmp_path / "1" / "round.json").read_text())
    assert content["objective"]["gain"]["low"] == pytest.approx(comparison.objective["gain"].low)
    assert content["round"].keys() == {"emotion", "CoLA", "topic"}


WRITTEN = {"number": 1, "recipe": "r", "recipe_sha256": "0", "study": "a-round-1", "teachers": ["a"], "kept": True}


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ({}, r"number \(field required\)"),
        ({name: value for name, value in WRITTEN.items() if name != "kept"}, r"kept \(field required\)"),
    ],
)
def test_a_damaged_round_is_named(tmp_path, content, got):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "round.json").write_text(json.dumps(content))
    with pytest.raises(StorageError, match=rf"1/round.json must be as `tutti round` wrote it; got {got}"):
        ended_rounds(tmp_path)


def test_a_round_that_was_not_kept_is_repeated_only_with_other_labels_or_teachers():
    unkept = Round(1, "r", "0", "a-round-1", ("a",), kept=False, trials=8)
    with pytest.raises(
        StudyError, match=r"the recipe r must differ from that of round 1, which was not kept; got the same"
    ):
        next_round([unkept], study="a", trials=8, recipe="r", recipe_sha256="0")
    assert next_round([unkept], study="a", trials=8, recipe="r", recipe_sha256="1").number == 2
    assert next_round([unkept], study="a", trials=28, recipe="r", recipe_sha256="0").trials == 28


def test_a_round_does_not_go_on_with_the_labels_of_other_teachers(tmp_path):
    place = RoundFolder(tmp_path / "2")
    begun = Round(2, "r", "0", "a-round-2", ("a", "a-round-1"), kept=False, trials=8)
    place.write_plan(begun, trials=2)
    assert place.check_plan(replace(begun, trials=28), trials=None, studies=tmp_path) == begun
    with pytest.raises(
        StudyError, match=r"the teachers a must be .*; got others than a and a-round-1; remove .*a-round-2"
    ):
        place.check_plan(replace(begun, teachers=("a",)), trials=None, studies=tmp_path)


def test_a_plan_whose_count_of_trials_is_no_count_is_named(tmp_path):
    place = RoundFolder(tmp_path / "1")
    begun = Round(1, "r", "0", "a-round-1", ("a",), kept=False, trials=8)
    place.write_plan(begun, trials=2)
    plan = place.path / "plan.json"
    plan.write_text(plan.read_text().replace('"finished": 8', '"finished": "many"'))
    with pytest.raises(StorageError, match=r"plan\.json must be as `tutti round` wrote it"):
        place.check_plan(begun, trials=None, studies=tmp_path)
