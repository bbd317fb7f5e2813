from __future__ import annotations

import numpy as np
import pytest

from tutti.bank.bank import Bank
from tutti.errors import StudyError
from tutti.outputs.members import elect, votes
from tutti.records import CheckpointRecord, Predictions
from tutti.tasks.task import Task

TASK = Task("a", ("no", "yes"), pair=False, metric="accuracy", submission="csv")


def part(*, ids: str = "xyz", classes: tuple[str, ...] = ("no", "yes"), labels: tuple[int, ...] = (0, 1, 1)):
    probabilities = np.full((len(ids), len(classes)), 1 / len(classes), np.float32)
    return Predictions(
        ids=np.array(list(ids)), probabilities=probabilities, labels=np.array(labels), class_names=classes
    )


@pytest.fixture
def bank(tmp_path) -> Bank:
    """Three trials: 0 is best at a, 1 at b and overall, 2 nowhere."""
    bank = Bank(tmp_path)
    for number, (a, b) in enumerate([(0.9, 0.0), (0.6, 0.8), (0.3, 0.2)]):
        record = CheckpointRecord(f"t{number:04d}", number, 1, (a + b) / 2, {"a": a, "b": b}, None)
        bank.put(record, {"a": {"validation": part()}, "b": {"validation": part()}})
    return bank


def choice(bank: Bank, **changes):
    plain = {"study": "demo", "needed": {"a": ["validation"], "b": ["validation"]}, "top": 2}
    return elect(bank=bank, **{**plain, "by": "objective", "weights": "uniform", **changes})


def keys(election, task: str) -> list[str]:
    return [member.key for member in election.members[task]]


def test_by_objective_the_same_members_vote_in_every_task(bank):
    election = choice(bank)
    assert keys(election, "a") == keys(election, "b") == ["t0001", "t0000"]
    assert [member.score for member in election.members["a"]] == [0.6, 0.9]
    assert election.notes == ()


def test_by_task_each_task_has_its_own_best(bank):
    election = choice(bank, by="task", top=1)
    assert (keys(election, "a"), keys(election, "b")) == (["t0000"], ["t0001"])


def test_weights_by_score_follow_the_task_s_own_score(bank):
    election = choice(bank, weights="score")
    assert [member.weight for member in election.members["a"]] == pytest.approx([0.4, 0.6])
    assert [member.weight for member in election.members["b"]] == [1, 0]


def test_all_checkpoints_are_listed_best_first(bank):
    assert [record.key for record in choice(bank).checkpoints] == ["t0001", "t0000", "t0002"]


def test_fewer_checkpoints_than_asked_for_all_vote_and_it_is_noted(bank):
    election = choice(bank, top=5)
    assert len(election.members["a"]) == 3
    assert election.notes == ("The recipe asks for 5 members; the study has only 3.",)


def test_an_empty_bank_says_to_wait_or_to_tune(tmp_path):
    with pytest.raises(StudyError, match=r"the study demo must have a finished trial; got none; wait .*tutti tune"):
        choice(Bank(tmp_path / "none"))


def test_every_missing_part_is_named_with_its_trial(bank):
    with pytest.raises(StudyError) as error:
        choice(bank, needed={"a": ["validation", "test"], "b": ["test-round1"]})
    assert len(error.value.faults) == 4
    assert "trial t0000 must have predictions for every part of task a; got none for test;" in str(error.value)
    assert "task b; got none for test-round1" in str(error.value)


def test_a_trial_that_does_not_vote_may_lack_parts(bank):
    record = CheckpointRecord("t0003", 3, 1, 0.1, {"a": 0.1, "b": 0.1}, None)
    bank.put(record, {"a": {"validation": part()}})
    assert keys(choice(bank), "b") == ["t0001", "t0000"]


def test_a_task_that_trials_have_no_score_for_is_named(bank):
    with pytest.raises(StudyError, match="trial t0002 must have a validation score for task c"):
        choice(bank, needed={"c": ["validation"]})


def test_a_trial_without_a_number_for_a_score_never_votes(bank):
    record = CheckpointRecord("t0003", 3, 1, float("nan"), {"a": float("nan"), "b": 0.1}, None)
    bank.put(record, {"a": {"validation": part()}, "b": {"validation": part()}})
    assert "t0003" not in keys(choice(bank, top=4), "a")
    assert "t0003" not in keys(choice(bank, top=4, by="task"), "a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": "xzy"}, "trial t0001, a/validation must hold the rows and labels that trial t0000 holds"),
        ({"labels": (0, 0, 1)}, "trial t0001, a/validation must hold the rows and labels"),
        ({"classes": ("no", "maybe")}, "must hold probabilities of the classes no, yes; got no, maybe"),
    ],
)
def test_members_that_do_not_fit_together_are_named(tmp_path, changes, message):
    bank = Bank(tmp_path)
    for number, said in enumerate([part(), part(**changes)]):
        record = CheckpointRecord(f"t{number:04d}", number, 1, 0.5, {"a": 0.5}, None)
        bank.put(record, {"a": {"validation": said}})
    members = choice(bank, needed={"a": ["validation"]}).members["a"]
    with pytest.raises(StudyError, match=message):
        votes(bank, task=TASK, part="validation", members=members)
