"""Studies with several objectives, or with another objective than the score."""

from __future__ import annotations

import warnings

import optuna
import pytest

from tutti.errors import StudyError
from tutti.records import TrialRecord, TrialState
from tutti.search.objectives import pareto_front
from tutti.search.samplers import POPULATION, STARTUP_TRIALS
from tutti.search.study_store import StudyStore
from tutti.search.warm_start import OlderStudy

FINISHED, STOPPED, FAILED = TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED
BOTH = ("score", "seconds")


def finish(store: StudyStore, score: float = 0.5, **measured: float) -> None:
    store.finish(store.ask().key, state=FINISHED, score=score, measured=measured)


def test_optuna_is_told_the_objectives_in_their_order_and_the_record_has_them_by_name(opened, url):
    store = opened(objectives=("seconds", "score"))
    key = store.ask().key
    store.report(key, epoch=1, score=0.7, task_scores={"a": 0.7})
    store.report(key, epoch=2, score=0.6, task_scores={"a": 0.6})
    store.finish(key, state=FINISHED, measured={"seconds": 12.0})
    stored = optuna.load_study(storage=url, study_name="s")
    assert [direction.name for direction in stored.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert stored.metric_names == ["seconds", "score"]  # as Optuna's dashboard calls them
    assert stored.trials[0].values == [12.0, 0.7]
    reader = StudyStore.load(url, name="s")
    for (record,) in (store.records(), reader.records()):
        assert (record.score, record.measured) == (0.7, {"score": 0.7, "seconds": 12.0})
        assert (record.scores_by_epoch, record.task_scores) == ({1: 0.7, 2: 0.6}, {"a": 0.7})
    reader.close()


def test_a_study_of_the_gain_alone_keeps_the_score_beside_it(opened, url):
    store = opened(objectives=["gain"])
    key = store.ask().key
    store.report(key, epoch=1, score=0.7, task_scores={})
    store.finish(key, state=FINISHED, score=0.7, measured={"gain": -0.01})
    assert optuna.load_study(storage=url, study_name="s").trials[0].values == [-0.01]
    assert (store.records()[0].score, store.records()[0].measured) == (0.7, {"score": 0.7, "gain": -0.01})


def test_a_finished_trial_without_one_of_the_objectives_has_failed(opened):
    store = opened(objectives=BOTH)
    finish(store)
    assert store.records()[0].state is FAILED
    assert "the seconds None, not a finite number" in store.records()[0].reason


def test_a_study_is_not_gone_on_with_for_other_objectives(opened):
    finish(opened(objectives=BOTH), seconds=1.0)
    opened(objectives=BOTH)
    for objectives in (("score", "disk"), ("score",), ("seconds", "score")):
        with pytest.raises(StudyError, match=r"have the objectives .*; got score \(maximize\), seconds \(minimize\)"):
            opened(objectives=objectives)


@pytest.mark.parametrize("objectives", [("gain",), BOTH])
def test_a_study_without_trials_takes_other_objectives_and_has_given_points_once(opened, url, tmp_path, objectives):
    older = f"sqlite:///{tmp_path / 'older.db'}"
    finish(opened(url=older, name="older", objectives=BOTH), seconds=1.0)
    learnt = [] if "gain" in objectives else [OlderStudy("older", older)]
    for each in (("score",), objectives, ("score",), objectives):
        opened(objectives=each, older=learnt, enqueued=[{"learning_rate": 1e-4}], owner="us", begun=False).close()
    study = optuna.load_study(storage=url, study_name="s")
    assert study.metric_names == [*objectives]
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE"] * len(learnt) + ["WAITING"]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsgaii", "nsgaiii", "qmc", "random"])
def test_samplers_go_on_after_trials_of_every_end(opened, sampler):
    store, ends = opened(objectives=BOTH, sampler=sampler), [FINISHED, STOPPED, FINISHED, FAILED, FINISHED]
    trials = 2 * POPULATION if sampler.startswith("nsga") else STARTUP_TRIALS + 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(trials):
            proposal, state = store.ask(), ends[number % len(ends)]
            store.report(proposal.key, epoch=1, score=proposal.parameters["dropout"], task_scores={})
            infeasible = state is FAILED and number % 2 == 0
            store.finish(proposal.key, state=state, measured={"seconds": float(number)}, infeasible=infeasible)
    wanted = [ends[number % len(ends)] for number in range(trials)]
    assert [record.state for record in store.records()] == wanted
    assert store.records()[1].scores_by_epoch.keys() == {1}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "nsgaii"])
def test_the_search_moves_towards_the_front(opened, sampler):
    """Dropout improves the score, pooling has no effect, epochs only cost time."""
    store = opened(objectives=BOTH, sampler=sampler)
    for _ in range(60):
        proposal = store.ask()
        parameters = proposal.parameters
        measured = {"seconds": float(parameters["epochs"])}
        store.finish(proposal.key, state=FINISHED, score=parameters["dropout"], measured=measured)
    epochs = [record.parameters["epochs"] for record in store.records()]
    assert sum(epochs[-20:]) < sum(epochs[:20])


def test_an_older_study_serves_the_objectives_that_it_has_measured(opened, tmp_path, space):
    older = f"sqlite:///{tmp_path / 'older.db'}"
    store = opened(url=older, name="older", objectives=BOTH)
    for number in range(3):
        finish(store, score=number / 10, seconds=float(number))
    same = opened(name="same", objectives=("seconds", "score"), older=[OlderStudy("older", older)])
    values = [trial.values for trial in same._study.get_trials() if trial.values]
    assert values == [[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]]
    score = opened(name="score", older=[OlderStudy("older", older)])
    assert [trial.value for trial in score._study.get_trials()] == [0.0, 0.1, 0.2]
    with pytest.raises(StudyError, match="none of which fits"):
        opened(name="disk", objectives=("score", "disk"), older=[OlderStudy("older", older)])


def record(number: int, state: TrialState = FINISHED, **measured: float) -> TrialRecord:
    return TrialRecord(f"t{number}", number, state, measured.get("score"), measured=measured)


def test_on_the_front_are_the_trials_that_none_is_better_than():
    records = [
        record(0, score=0.9, seconds=9.0),
        record(1, score=0.8, seconds=9.0),  # dominated by t0, which is as fast
        record(2, score=0.8, seconds=1.0),
        record(3, score=0.8, seconds=1.0),  # as good as t2 in both
        record(4, score=0.7, seconds=2.0),
        record(5, STOPPED),
        record(6),  # finished without having been measured
    ]
    assert pareto_front(records, BOTH) == ["t0", "t2", "t3"]
    assert pareto_front(records, ["score"]) == ["t0"]
    assert pareto_front([], BOTH) == []
