"""A study's trials are asked for, reported, ended, read, and taken up again."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.samplers import TPESampler
from sqlalchemy import create_engine, text

from tutti.config.space import SearchSpace
from tutti.errors import StorageError, StudyError
from tutti.records import TrialState
from tutti.search.samplers import STARTUP_TRIALS
from tutti.search.study_store import StudyStore
from tutti.search.warm_start import OlderStudy


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request, tmp_path) -> str:
    """A new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'optuna.db'}"
    return request.getfixturevalue("postgres").new_database()


def test_a_proposal_has_a_key_a_number_and_one_value_for_each_parameter(opened, space):
    store = opened()
    first, second = store.ask(), store.ask()
    assert (first.key, first.number) == ("t0000", 0)
    assert (second.key, second.number) == ("t0001", 1)
    assert list(first.parameters) == list(space.root)
    assert first.parameters != second.parameters


def test_an_empty_space_gives_different_trials_with_no_parameters(opened):
    store = opened(space=SearchSpace())
    assert [(p.key, p.parameters) for p in (store.ask(), store.ask())] == [("t0000", {}), ("t0001", {})]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_gives_the_same_sequence_and_another_seed_another(opened, run, tmp_path, sampler):
    sequences = [
        run(opened(url=f"sqlite:///{tmp_path / str(i)}.db", sampler=sampler, seed=seed), STARTUP_TRIALS + 3)
        for i, seed in enumerate([1, 1, 2])
    ]
    assert sequences[0] == sequences[1] != sequences[2]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_resumed_study_does_not_repeat_its_suggestions(opened, run, sampler):
    before = run(opened(sampler=sampler), 4)
    after = run(opened(sampler=sampler), 4)
    assert all(parameters not in before for parameters in after)


def test_tpe_looks_where_scores_were_high(opened, run):
    suggested = [p for _ in range(6) for p in run(opened(), STARTUP_TRIALS)]
    first, last = suggested[:STARTUP_TRIALS], suggested[-10:]
    assert sum(p["dropout"] for p in last) / 10 > sum(p["dropout"] for p in first) / STARTUP_TRIALS
    assert sum(p["dropout"] for p in last) / 10 > 0.3


def test_trials_asked_for_at_the_same_time_differ_once_tpe_is_at_work(opened, run):
    store = opened()
    run(store, STARTUP_TRIALS + 1)
    rates = [store.ask().parameters["learning_rate"] for _ in range(4)]
    assert len(set(rates)) == 4


def test_the_record_of_a_finished_trial_has_its_best_epoch(opened):
    store = opened()
    key = store.ask().key
    for epoch, score in ((1, 0.4), (2, 0.7), (3, 0.6)):
        store.report(key, epoch=epoch, score=score, task_scores={"a": score, "b": epoch})
    store.finish(key, state=TrialState.FINISHED, score=0.7, seconds=12.5)
    (record,) = store.records()
    assert record.state is TrialState.FINISHED
    assert (record.score, record.task_scores, record.seconds, record.reason) == (0.7, {"a": 0.7, "b": 2}, 12.5, None)
    assert record.scores_by_epoch == {1: 0.4, 2: 0.7, 3: 0.6}
    assert list(record.parameters) == ["learning_rate", "dropout", "epochs", "pooling"]


def test_the_record_of_one_trial_is_that_of_the_list_behind_older_ones_too(opened, run, url):
    run(opened(name="older"), 2)
    store = opened(older=[OlderStudy("older", url)])
    run(store, 1)
    store.ask()
    assert [store.record(key) for key in ("t0000", "t0001")] == store.records()
    with pytest.raises(StudyError, match="t0002"):
        store.record("t0002")


def test_the_record_of_a_trial_whose_end_tells_task_scores_has_these_whatever_was_reported(opened, url):
    store = opened()
    for state in (TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED):
        key = store.ask().key
        for fold, score in ((1, 0.9), (2, 0.7)):
            store.report(key, epoch=fold, score=score, task_scores={"a": score})
        value = math.nan if state is TrialState.FAILED else 0.6
        last = {"score": value, "task_scores": {"a": value}}
        store.finish(key, state=state, **last)
    assert [(record.score, record.task_scores) for record in store.records()] == [
        (0.6, {"a": 0.6}), (0.6, {"a": 0.6}), (0.9, {"a": 0.9}),
    ]  # fmt: skip
    assert [trial.value for trial in optuna.load_study(storage=url, study_name="s").trials] == [0.6, 0.7, None]


def test_optuna_knows_each_end_by_its_own_state(opened, url):
    store = opened()
    for state in (TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED):
        key = store.ask().key
        store.report(key, epoch=1, score=0.5, task_scores={})
        store.report(key, epoch=2, score=0.3, task_scores={})
        store.finish(key, state=state, reason=None if state is TrialState.FINISHED else "so it was")
    trials = optuna.load_study(storage=url, study_name="s").trials
    assert [(trial.state.name, trial.value) for trial in trials] == [("COMPLETE", 0.5), ("PRUNED", 0.3), ("FAIL", None)]
    assert [record.reason for record in store.records()] == [None, "so it was", "so it was"]
    assert [record.score for record in store.records()] == [0.5, 0.5, 0.5]


def test_a_repeated_report_or_end_changes_nothing(opened):
    store = opened()
    key = store.ask().key
    store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})
    store.report(key, epoch=1, score=0.9, task_scores={"a": 0.9})
    store.finish(key, state=TrialState.STOPPED, reason="first", seconds=1.0)
    ended = store.records()
    store.finish(key, state=TrialState.FAILED, reason="second", seconds=2.0)
    store.report(key, epoch=2, score=0.8, task_scores={})
    store.bind(key, reason="third")
    assert store.records() == ended
    assert (ended[0].score, ended[0].task_scores, ended[0].reason) == (0.5, {"a": 0.5}, "first")


@pytest.mark.parametrize("objectives", [["score"], ["score", "seconds"]])
def test_what_a_trial_that_begins_anew_had_reported_is_known_to_nobody(opened, url, objectives):
    store = opened(objectives=objectives)
    key, other = store.ask().key, store.ask().key
    for each in (key, other):
        for part, score in ((1, 0.9), (2, 0.8)):
            store.report(each, epoch=part, score=score, task_scores={"a": score})
    store.bind(key, halved="no memory")
    store.forget_reports(key)
    record = store.record(key)
    assert (record.score, record.task_scores, record.scores_by_epoch) == (None, {}, {})
    assert [left.halved for left in store.unfinished()] == ["no memory", None]
    store.report(key, epoch=1, score=0.7, task_scores={"a": 0.7})
    for each in (key, other):
        store.finish(each, state=TrialState.STOPPED)
        store.forget_reports(each)  # of one that has ended it takes nothing
    assert [(trial.score, trial.task_scores) for trial in store.records()] == [(0.7, {"a": 0.7}), (0.9, {"a": 0.9})]
    told = optuna.load_study(storage=url, study_name="s").trials
    assert [trial.value for trial in told] == ([0.7, 0.8] if objectives == ["score"] else [None, None])


def test_the_score_that_a_trial_ended_with_is_its_record_though_an_older_driver_kept_a_better_report(opened):
    store = opened()
    key = store.ask().key
    for part, score in ((1, 0.9), (2, 0.8)):
        store.report(key, epoch=part, score=score, task_scores={"a": score})
    store.finish(key, state=TrialState.FINISHED, score=0.8)
    assert (store.record(key).score, store.record(key).task_scores) == (0.8, {"a": 0.8})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused_and_the_trial_can_still_fail(opened, value):
    store = opened()
    key = store.ask().key
    with pytest.raises(ValueError, match="not a finite number"):
        store.report(key, epoch=1, score=value, task_scores={})
    with pytest.raises(ValueError, match="not a finite number"):
        store.report(key, epoch=1, score=0.5, task_scores={"a": value})
    store.finish(key, state=TrialState.FAILED, reason="NaN")
    assert store.records()[0].scores_by_epoch == {}
    assert store.unfinished() == []


@pytest.mark.parametrize("score", [None, math.nan])
def test_a_finished_trial_without_a_score_fails_rather_than_runs_for_ever(opened, score):
    store = opened()
    store.finish(store.ask().key, state=TrialState.FINISHED, score=score)
    (record,) = store.records()
    assert record.state is TrialState.FAILED
    assert "not a finite number" in record.reason


def test_a_trial_cannot_end_as_running(opened):
    store = opened()
    with pytest.raises(ValueError, match="running"):
        store.finish(store.ask().key, state=TrialState.RUNNING)


def test_bound_attributes_are_kept_with_the_trial(opened, url):
    store = opened()
    key = store.ask(ray_trial="abc").key
    store.bind(key, mlflow_run="def")
    attributes = optuna.load_study(storage=url, study_name="s").trials[0].user_attrs
    assert (attributes["ray_trial"], attributes["mlflow_run"]) == ("abc", "def")


def test_a_driver_asks_once_for_each_write_whether_the_study_is_still_its_own(opened):
    store, asked = opened(), []
    key = store.ask().key
    if store._claim:
        store._claim.close()
    store._claim = SimpleNamespace(ensure=lambda: asked.append(None), close=lambda: None)

    def times(call: Callable[[], object]) -> int:
        asked.clear()
        call()
        return len(asked)

    assert times(lambda: store.bind(key, ray_trial="abc")) == 1
    assert times(lambda: store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})) == 2
    assert times(lambda: store.forget_reports(key)) == 1
    assert times(lambda: store.finish(key, state=TrialState.STOPPED)) == 2
    assert times(store.unfinished) == 1  # by which it finds out where it has nothing to write


def test_an_unknown_trial_is_a_study_error(opened):
    store = opened()
    for key in ("t0009", "nonsense"):
        with pytest.raises(StudyError, match=key):
            store.finish(key, state=TrialState.FAILED)


def test_a_driver_that_was_killed_leaves_its_trial_to_be_run_again_under_the_same_key(opened, url, space, tmp_path):
    (tmp_path / "space.json").write_text(space.model_dump_json())
    script = f"""
import os, signal
from pathlib import Path
from tutti.config.space import SearchSpace
from tutti.search.study_store import StudyStore
space = SearchSpace.model_validate_json(Path({str(tmp_path / "space.json")!r}).read_text())
store = StudyStore.open({url!r}, name="s", space=space, sampler="tpe", seed=0)
proposal = store.ask()
store.report(proposal.key, epoch=1, score=0.5, task_scores={{"a": 0.5}})
print(dict(proposal.parameters), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    assert died.returncode == -signal.SIGKILL
    store = opened()
    (left,) = store.unfinished()
    assert (left.key, left.number, str(left.parameters)) == ("t0000", 0, died.stdout.strip())
    assert store.ask().key == "t0001"
    store.report(left.key, epoch=2, score=0.6, task_scores={"a": 0.6})
    store.finish(left.key, state=TrialState.FINISHED)
    assert store.records()[0].scores_by_epoch == {1: 0.5, 2: 0.6}


class Killed(BaseException):
    pass


def dies_after(parameters: int, store: StudyStore) -> None:
    """Asks as a driver does that is killed once it has chosen so many of the parameters."""
    suggest, calls = optuna.Trial._suggest, iter(range(parameters))

    def count(*given) -> object:
        if next(calls, None) is None:
            raise Killed
        return suggest(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna.Trial, "_suggest", count)
        with pytest.raises(Killed):
            store.ask()


def dies_ending(store: StudyStore, key: str, **ending: Any) -> None:
    """Ends a trial as a driver does that is killed before Optuna is told so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna.Study, "tell", lambda *_, **__: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            store.finish(key, **ending)


def test_a_trial_that_finishes_after_all_has_no_reason_of_an_end_that_was_cut_off(opened):
    store = opened()
    key = store.ask().key
    store.report(key, epoch=1, score=0.5, task_scores={})
    dies_ending(store, key, state=TrialState.STOPPED, reason="fell behind the others after epoch 1")
    store = opened()
    assert [left.key for left in store.unfinished()] == [key]
    store.finish(key, state=TrialState.FINISHED)
    assert [(record.state, record.reason) for record in store.records()] == [(TrialState.FINISHED, None)]


def test_a_trial_that_does_not_fit_runs_until_optuna_is_told_so_which_the_next_driver_does(opened, url):
    store = opened()
    key = store.ask().key
    dies_ending(store, key, state=TrialState.FAILED, reason="out of memory", infeasible=True)
    with closing(StudyStore.load(url, name="s")) as reader:
        assert [left.key for left in reader.unfinished()] == [key]
        assert [record.state for record in reader.records()] == [TrialState.RUNNING]
    store = opened()
    assert store.unfinished() == []
    assert [(record.state, record.reason) for record in store.records()] == [(TrialState.FAILED, "out of memory")]


@pytest.mark.parametrize(
    ("sampler", "finished", "chosen"),
    [("tpe", 0, 0), ("tpe", STARTUP_TRIALS, 2), ("cmaes", 3, 2), ("nsgaii", 1, 1), ("qmc", 1, 3), ("random", 0, 1)],
)
def test_a_driver_killed_while_it_asks_costs_no_trial(opened, run, url, space, sampler, finished, chosen):
    store = opened(sampler=sampler)
    run(store, finished)
    dies_after(chosen, store)
    had = optuna.load_study(storage=url, study_name="s").trials[finished].params
    assert len(had) == chosen
    store = opened(sampler=sampler)
    (left,) = store.unfinished()
    assert left.number == finished
    assert left.parameters.keys() == space.root.keys()
    assert had.items() <= left.parameters.items()
    assert opened(sampler=sampler).unfinished() == [left]  # once chosen, it stays so


def test_what_a_driver_that_was_killed_had_not_chosen_keeps_to_the_conditions(opened):
    space = SearchSpace.model_validate(
        {
            "adapter": {"type": "categorical", "choices": ["lora"]},
            "lora_r": {"type": "int", "low": 1, "high": 64, "when": {"adapter": ["lora"]}},
            "prefix": {"type": "int", "low": 1, "high": 64, "when": {"adapter": ["prefix"]}},
        }
    )
    dies_after(1, opened(space=space))
    (left,) = opened(space=space).unfinished()
    assert left.parameters.keys() == {"adapter", "lora_r"}


def test_a_study_kept_in_the_other_direction_is_refused(opened, url):
    optuna.create_study(storage=url, study_name="s", direction="minimize")
    with pytest.raises(StudyError, match=r"score \(maximize\); got score \(minimize\)"):
        opened()


def test_every_changed_parameter_is_named_when_a_study_is_opened_again(opened, run):
    run(opened(), 1)
    changed = {
        "pooling": {"type": "categorical", "choices": ["cls"]},
        "dropout": {"type": "int", "low": 1, "high": 2},
        "epochs": {"type": "int", "low": 2, "high": 30},
    }
    with pytest.raises(StudyError) as caught:
        opened(space=SearchSpace.model_validate(changed))
    assert [fault.what for fault in caught.value.faults] == ["search_space.dropout", "search_space.pooling"]


def test_a_reader_sees_what_the_driver_writes_and_cannot_write(opened, url):
    store = opened()
    key = store.ask().key
    reader = StudyStore.load(url, name="s")
    store.report(key, epoch=1, score=0.5, task_scores={})
    assert reader.records()[0].scores_by_epoch == {1: 0.5}
    with pytest.raises(StorageError, match=r"read-?only"):
        reader.finish(key, state=TrialState.FAILED)
    reader.close()


def test_reading_a_study_that_is_not_there_is_a_study_error_and_makes_no_file(opened, url, tmp_path):
    with pytest.raises(StudyError, match="no database"):
        StudyStore.load(url, name="s")
    assert list(tmp_path.iterdir()) == []
    opened()
    with pytest.raises(StudyError, match="'other'"):
        StudyStore.load(url, name="other")


def test_a_database_that_cannot_be_reached_is_named_without_its_password(space):
    with pytest.raises(StorageError) as caught:
        StudyStore.open("nosuch://me:secret@host/db", name="s", space=space, sampler="tpe", seed=0)
    assert "secret" not in str(caught.value)


def test_tables_that_another_optuna_has_made_are_a_fault_of_the_database(opened, url, space):
    opened().close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v99'"))
    engine.dispose()
    for call in (opened, lambda: StudyStore.load(url, name="s")):
        with pytest.raises(StorageError, match="be read and written; got The runtime optuna version"):
            call()


def test_a_mistake_of_a_sampler_is_no_fault_of_the_database(opened, monkeypatch):
    store = opened()

    def wrong(*given):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(TPESampler, "sample_relative", wrong)
    with pytest.raises(RuntimeError, match="a mistake"):
        store.ask()


def test_opening_a_study_logs_nothing(opened, run, capfd):
    run(opened(), STARTUP_TRIALS + 2)
    opened()
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("optuna").level == logging.ERROR


def test_a_study_can_be_made_under_the_eyes_of_readers(opened, url):
    """Optuna writes its version into a database that it opens, so that a reader might be there before the driver."""
    made = threading.Event()

    def look() -> None:
        while not made.is_set():
            with suppress(StudyError):
                StudyStore.load(url, name="s").close()

    with ThreadPoolExecutor(4) as readers:
        looks = [readers.submit(look) for _ in range(4)]
        try:
            assert opened().ask().key == "t0000"
        finally:
            made.set()
    for each in looks:
        each.result()


def test_studies_that_begin_at_once_in_one_database_are_all_made(opened):
    with ThreadPoolExecutor(4) as drivers:
        for store in drivers.map(lambda name: opened(name=name), "abcd"):
            assert store.ask().key == "t0000"


def test_the_time_that_a_study_has_run_is_kept_for_the_next_run_and_for_readers(opened, url):
    store = opened()
    assert store.run_seconds() == 0
    store.keep_run_seconds(12.5)
    store.keep_run_seconds(30.25)
    assert opened().run_seconds() == 30.25
    reader = StudyStore.load(url, name="s")
    assert reader.run_seconds() == 30.25
    reader.close()


def test_a_trial_that_went_on_from_another_one_is_taken_up_again_with_what_it_had_since(opened, url):
    store = opened()
    proposal = store.ask()
    later = {**proposal.parameters, "dropout": 0.25}
    store.exchange(proposal.key, epoch=1, donor="t0007", parameters=proposal.parameters)
    for _ in range(2):  # a driver that died may tell it again
        store.exchange(proposal.key, epoch=2, donor="t0003", parameters=later)
    assert [left.parameters for left in store.unfinished()] == [later]
    store.finish(proposal.key, state=TrialState.FINISHED, score=0.5)
    store.exchange(proposal.key, epoch=3, donor="t0001", parameters={})
    (record,) = store.records()
    assert [(each["epoch"], each["donor"]) for each in record.exchanges] == [(1, "t0007"), (2, "t0003")]
    assert record.exchanges[1]["parameters"] == later
    assert record.parameters == proposal.parameters  # what the sampler chose, and learns from


@pytest.mark.parametrize("enqueued", [(), [{"pooling": "cls"}]])
@pytest.mark.parametrize("warm", [False, True])
def test_a_start_that_died_before_its_first_trial_binds_nobody_and_leaves_nothing(opened, run, url, enqueued, warm):
    run(opened(name="older"), 1)
    older = [OlderStudy("older", url)] if warm else []
    opened(owner="it", older=older, enqueued=enqueued, objectives=["score", "seconds"][: 1 if warm else 2])
    store = opened(owner="us", enqueued=[{"pooling": "mean"}, {"pooling": None}])
    assert [store.ask().parameters["pooling"] for _ in range(2)] == ["mean", None]
    assert len(optuna.load_study(storage=url, study_name="s").trials) == 2
    with pytest.raises(StudyError, match="of another folder"):
        opened(owner="it")


def test_a_study_that_was_not_made_here_is_never_taken_for_a_start_that_died(opened, url):
    optuna.create_study(storage=url, study_name="s", direction="maximize").enqueue_trial({"x": 1})
    with pytest.raises(StudyError, match="of another folder"):
        opened(owner="us")
    assert len(optuna.load_study(storage=url, study_name="s").trials) == 1
