from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from polls import elect

from tutti.bank.bank import Bank
from tutti.bank.electorate import Electorate
from tutti.errors import StudyError
from tutti.outputs.election.poll import Rule
from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task

TASK, OTHER, THIRD = (Task(name, ("no", "yes"), pair=False, metric="accuracy", submission="csv") for name in "abc")


def part(*, ids: str = "xyz", classes: tuple[str, ...] = ("no", "yes"), labels: tuple[int, ...] = (0, 1, 1)):
    probabilities = np.full((len(ids), len(classes)), 1 / len(classes), np.float32)
    return Predictions(ids=np.array(list(ids)), outputs=probabilities, labels=np.array(labels), names=classes)


@pytest.fixture
def bank(tmp_path) -> Bank:
    """Three trials: 0 is best at a, 1 at b and overall, 2 nowhere."""
    bank = Bank(tmp_path)
    for number, (a, b) in enumerate([(0.9, 0.0), (0.6, 0.8), (0.3, 0.2)]):
        record = CheckpointRecord(f"t{number:04d}", number, 1, (a + b) / 2, {"a": a, "b": b}, None)
        bank.put(record, {"a": {"validation": part()}, "b": {"validation": part()}})
    return bank


def choice(bank: Bank, *, tasks=(TASK, OTHER), needed=None, validation=("x", "y", "z"), study="demo", **rule):
    rows = {task.name: pd.DataFrame({"id": validation, "text": validation}) for task in tasks}
    rule_ = Rule(**{"top": 2, **rule})
    return elect(study=study, bank=bank, tasks=tasks, validation=rows, needed=needed or {}, rule=rule_)


def keys(election, task: str) -> list[str]:
    return [member.key for member in election.tasks[task].members]


def test_by_objective_the_same_members_vote_in_every_task(bank):
    election = choice(bank)
    assert keys(election, "a") == keys(election, "b") == ["t0001", "t0000"]
    assert [member.score for member in election.tasks["a"].members] == [0.6, 0.9]
    assert election.notes == ()


@pytest.mark.parametrize("by", ["objective", "task"])
def test_a_task_s_ensemble_is_the_same_elected_alone_where_it_shares_texts_with_another(make_finished, by):
    study = make_finished(4, skill=0.5, validation=100)
    first, *_, last = (task.name for task in study.tasks)
    texts = {
        name: rows.assign(text=[f"{(row * 7) % 100}" if name == last else f"{row}" for row in range(100)])
        for name, rows in study.validation().items()
    }
    rule = Rule(top=3, by=by, method="auto", decision="offsets")
    given = {"study": "demo", "bank": study.bank, "tasks": study.tasks, "validation": texts, "needed": {}, "rule": rule}
    together, alone = elect(**given), elect(**given, wanted={last})
    assert set(alone.tasks) == {last} < set(together.tasks) > {first}
    ours, theirs = alone.tasks[last], together.tasks[last]
    assert ours.members == theirs.members
    assert ours.ensemble.temperature == theirs.ensemble.temperature
    np.testing.assert_array_equal(ours.held_out.decisions, theirs.held_out.decisions)


def test_of_a_task_that_is_not_wanted_only_estimates_need_the_predictions(make_finished):
    study = make_finished(3, validation=60)
    first, *_, last = (task.name for task in study.tasks)
    texts = {name: rows.assign(text=[f"{row}" for row in range(60)]) for name, rows in study.validation().items()}
    texts[first] = texts[first].assign(id=[f"another {row}" for row in range(60)])
    given = {"study": "demo", "bank": study.bank, "tasks": study.tasks, "validation": texts, "needed": {}}
    elected = elect(**given, rule=Rule(top=2), wanted={last}).tasks[last]
    assert len(elected.members) == 2
    with pytest.raises(StudyError, match=rf"trial t0000, {first}/validation must hold the study's validation rows"):
        _ = elected.held_out


def test_by_task_each_task_has_its_own_best(bank):
    election = choice(bank, by="task", top=1)
    assert (keys(election, "a"), keys(election, "b")) == (["t0000"], ["t0001"])


def test_weights_by_score_follow_the_task_s_own_score(tmp_path):
    bank = Bank(tmp_path)
    for number, right in enumerate([2, 1]):  # of three rows
        predictions = part()
        predictions.outputs[:] = np.where(np.arange(3)[:, None] < right, np.eye(2)[[0, 1, 1]], np.eye(2)[[1, 0, 0]])
        bank.put(
            CheckpointRecord(f"t{number:04d}", number, 1, right / 3, {"a": right / 3}, None),
            {"a": {"validation": predictions}},
        )
    election = choice(bank, tasks=[TASK], method="score")
    assert [member.weight for member in election.tasks["a"].members] == pytest.approx([2 / 3, 1 / 3])


def test_all_checkpoints_are_listed_best_first(bank):
    assert [record.key for record in choice(bank).checkpoints] == ["t0001", "t0000", "t0002"]


def test_fewer_checkpoints_than_asked_for_all_vote_and_it_is_noted(bank):
    election = choice(bank, top=5)
    assert len(election.tasks["a"].members) == 3
    assert election.notes == ("The recipe asks for 5 members; there are only 3.",)


def test_an_empty_bank_says_to_wait_or_to_tune(tmp_path):
    with pytest.raises(
        StudyError, match=r"the study demo must have predictions .*; got none; wait .*tutti tune.* restore"
    ):
        choice(Bank(tmp_path / "none"))


def test_every_missing_part_is_named_with_its_trial(bank):
    with pytest.raises(StudyError) as error:
        choice(bank, needed={"a": ["test"], "b": ["test-round1"]})
    assert len(error.value.faults) == 4
    assert "trial t0000 must have predictions for every part of task a; got none for test;" in str(error.value)
    assert "task b; got none for test-round1" in str(error.value)


def test_another_study_without_a_test_file_is_left_out_rather_than_taken_apart(bank, tmp_path):
    own = Bank(tmp_path / "own")
    for record in bank.records():
        parts = {"validation": part(), "test": part()}
        own.put(record, {"a": parts, "b": parts})
    together = Electorate({"demo": own, "other": bank})
    message = (
        r"trial other/t0000 must have .* got none for test; leave other out, or run a study like it with the files"
    )
    with pytest.raises(StudyError, match=message):
        choice(together, top=6, needed={"a": ["test"]})


def test_a_trial_that_does_not_vote_may_lack_parts_but_not_the_validation_rows(bank):
    record = CheckpointRecord("t0003", 3, 1, 0.1, {"a": 0.1, "b": 0.1}, None)
    for number in range(2):
        predictions = {"validation": part(), "test": part()}
        bank.put(
            next(trial for trial in bank.records() if trial.number == number), {"a": predictions, "b": predictions}
        )
    bank.put(record, {"a": {"validation": part()}, "b": {"validation": part()}})
    assert keys(choice(bank, needed={"b": ["test"]}), "b") == ["t0001", "t0000"]
    bank.put(record, {"a": {"validation": part()}})
    with pytest.raises(StudyError, match=r"trial t0003 must have predictions .* task b; got none for validation"):
        choice(bank)


def test_a_task_that_trials_have_no_score_for_is_named(bank):
    with pytest.raises(StudyError, match="trial t0002 must have a validation score for task c"):
        choice(bank, tasks=[THIRD])


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
        ({"classes": ("no", "maybe")}, r"must hold predictions of 2 classes \(no, yes\); got 2 classes \(no, maybe\)"),
    ],
)
def test_members_that_do_not_fit_together_are_named(tmp_path, changes, message):
    bank = Bank(tmp_path)
    for number, predictions in enumerate([part(), part(**changes)]):
        record = CheckpointRecord(f"t{number:04d}", number, 1, 0.5, {"a": 0.5}, None)
        bank.put(record, {"a": {"validation": predictions}})
    with pytest.raises(StudyError, match=message):
        choice(bank, tasks=[TASK])


@pytest.mark.parametrize(
    ("known", "got"),
    [("xyw", "3 rows, 2 of them the same"), ("xyzw", "3 rows, 3 of them the same"), ("xzy", "another order")],
)
def test_members_that_agree_on_other_rows_than_the_study_s_do_not_vote(bank, known, got):
    message = f"trial t0000, a/validation must hold the study's validation rows, in their order; got {got}; move the"
    with pytest.raises(StudyError, match=message) as error:
        choice(bank, validation=tuple(known))
    assert [fault.what for fault in error.value.faults] == [f"trial t0000, {task}/validation" for task in "ab"]


def test_near_copies_and_those_far_behind_do_not_vote(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=100)
    wrong = [np.arange(10), np.arange(10), np.arange(20, 32), np.arange(40, 80)]
    bank, ids = Bank(tmp_path), np.array([str(row) for row in range(100)])
    for number, rows in enumerate(wrong):
        right = np.isin(np.arange(100), rows, invert=True)
        probabilities = np.where(np.arange(2) == np.where(right, labels, 1 - labels)[:, None], 0.9, 0.1).astype(
            np.float32
        )
        held = Predictions(ids=ids, outputs=probabilities, labels=labels, names=TASK.names)
        score = float(right.mean())
        bank.put(CheckpointRecord(f"t{number:04d}", number, 1, score, {"a": score}, None), {"a": {"validation": held}})
    assert keys(choice(bank, tasks=[TASK], validation=ids, top=None), "a") == ["t0000", "t0001", "t0002", "t0003"]
    assert keys(choice(bank, tasks=[TASK], validation=ids, top=3, diversity=0.01), "a") == ["t0000", "t0002", "t0003"]
    election = choice(bank, tasks=[TASK], validation=ids, top=None, within=0.05, diversity=0.01)
    assert keys(election, "a") == ["t0000", "t0002"]
    assert election.rule == (
        "the best 2 by the study's objective, at most 0.05 below the best, "
        "each different from all better ones in 1 % of the rows or more, all with the same weight"
    )


def several(tmp_path, *, other=part, only=None) -> Electorate:
    """The studies ``first`` and ``second``, of two trials each."""
    banks = {}
    for place, name in enumerate(("first", "second")):
        banks[name] = Bank(tmp_path / name)
        for number in range(2):
            record = CheckpointRecord(f"t{number:04d}", number, 1, 0.5 + 0.1 * place, {"a": 0.5 + 0.1 * place}, None)
            banks[name].put(record, {"a": {"validation": other() if place else part()}})
    return Electorate(banks, only=only)


def test_trials_of_several_studies_vote_together_under_their_studies_names(tmp_path):
    election = choice(several(tmp_path), tasks=[TASK], top=3)
    assert keys(election, "a") == ["second/t0000", "second/t0001", "first/t0000"]
    assert election.notes == ("The trials of the studies first and second may vote together.",)


def test_only_those_who_may_vote_do_and_the_card_says_how_they_were_found(tmp_path):
    found = several(tmp_path, only={"first": {"t0001"}, "second": set()})
    election = choice(found, tasks=[TASK], filter="tags.vote = 'yes'", top=1)
    assert keys(election, "a") == ["first/t0001"]
    assert "found with tags.vote = 'yes'" in election.rule
    assert "The best trial, too, is one of those that the filter finds; others may be better." in election.notes


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"ids": "xyw"}, "got 3 rows, 2 of them the same; give both studies the same files and the same `split`"),
    ],
)
def test_trials_of_another_study_that_saw_another_split_are_named(tmp_path, changes, got):
    with pytest.raises(StudyError, match="trial second/t0000, a/validation must hold the rows and labels") as error:
        choice(several(tmp_path, other=lambda: part(**changes)), tasks=[TASK])
    assert got in str(error.value)


def test_trials_of_another_study_alone_are_held_to_the_split_of_the_one_that_asks(tmp_path):
    found = several(tmp_path, other=lambda: part(ids="uvw"), only={"first": set()})
    rule = "trial second/t0000, a/validation must hold the study's validation rows, in their order; got 3 rows, 0 of"
    with pytest.raises(StudyError, match=f"{rule} them the same; give both studies the same files"):
        choice(found, tasks=[TASK], study="first")
    with pytest.raises(StudyError, match=r"trial first/t0000, a/validation must hold the study's .*; move the trial's"):
        choice(several(tmp_path / "own"), tasks=[TASK], study="first", validation=("u",))


def with_a_specialist(tmp_path, *, tasks=("b",), ids="xyz", lacking=()) -> Electorate:
    """The study ``first``, of three trials at the tasks a and b, and ``second``, of two trials that are better at b."""
    banks = {"first": Bank(tmp_path / "first"), "second": Bank(tmp_path / "second")}
    for number, (a, b) in enumerate([(0.9, 0.1), (0.6, 0.5), (0.3, 0.3)]):
        scores = {"a": a, "b": b}
        record = CheckpointRecord(f"t{number:04d}", number, 1, (a + b) / 2, scores, None)
        banks["first"].put(record, {name: {"validation": part()} for name in scores})
    for number, score in enumerate([0.8, 0.4]):
        scores = {name: score for name in tasks if (number, name) not in lacking}
        record = CheckpointRecord(f"t{number:04d}", number, 1, score, scores, None)
        banks["second"].put(record, {name: {"validation": part(ids=ids)} for name in scores})
    return Electorate(banks)


def test_trials_of_a_study_of_one_task_vote_in_it_alone(tmp_path):
    election = choice(with_a_specialist(tmp_path), study="first", by="task")
    assert keys(election, "a") == ["first/t0000", "first/t0001"]
    assert keys(election, "b") == ["second/t0000", "first/t0001"]
    assert election.tasks["b"].best == "second/t0000"
    assert [len(each.keys) for each in election.tasks.values()] == [3, 5]
    assert election.notes == (
        "The trials of the studies first and second may vote together.",
        "Those of second may vote in b alone.",
    )


def test_a_study_that_has_no_task_of_a_vote_has_no_part_in_it(tmp_path):
    election = choice(with_a_specialist(tmp_path), study="first", by="task", tasks=(TASK,))
    assert keys(election, "a") == ["first/t0000", "first/t0001"]
    assert election.notes == ()


def test_the_objectives_of_studies_with_other_tasks_are_not_compared(tmp_path):
    with pytest.raises(StudyError, match="trial second/t0000 must have a validation score for task a"):
        choice(with_a_specialist(tmp_path), study="first")


def test_a_trial_that_lacks_a_task_of_its_own_study_is_named(tmp_path):
    damaged = with_a_specialist(tmp_path, tasks=("a", "b"), lacking={(1, "a")})
    with pytest.raises(StudyError, match="trial second/t0001 must have a validation score for task a"):
        choice(damaged, study="first", by="task")


def test_a_task_that_nobody_may_vote_in_is_named(tmp_path):
    found = with_a_specialist(tmp_path)
    only = Electorate({name: Bank(tmp_path / name) for name in ("first", "second")}, only={"first": set()})
    assert len(found.records()) == 5
    with pytest.raises(
        StudyError, match="the study first must have a trial with a score in every task; got none in a;"
    ):
        choice(only, study="first", by="task")


def test_the_standing_of_a_task_s_members_changes_by_its_weight_in_the_study_s_score(bank):
    tasks = replace(TASK, weight=3.0), OTHER
    by_objective, by_task = (choice(bank, tasks=tasks, by=by) for by in ("objective", "task"))
    assert by_objective.weights == {"a": 3.0, "b": 1.0}
    procedures = [each.procedure for each in by_objective.tasks.values()]
    assert [each.weight * each.share for each in procedures] == [0.75, 0.25]
    assert [(each.procedure.weight, each.procedure.share) for each in by_task.tasks.values()] == [(1, 1), (1, 1)]
