"""Warm start: a new study learns from older studies' trials, which do not count as its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from tutti.config.search_facts import LEARNING
from tutti.config.space import SearchSpace
from tutti.errors import StudyError
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Resumption
from tutti.search.warm_start import OlderStudy, add_older_trials, fitting_trials

TRIALS = 30  # finished ones
OLDER = TRIALS + 1


@pytest.fixture(scope="module")
def older(tmp_path_factory, space) -> OlderStudy:
    """A study of 30 finished trials, of which those with high dropout are best, and one trial stopped early."""
    url = f"sqlite:///{tmp_path_factory.mktemp('older') / 'optuna.db'}"
    store = StudyStore.open(url, name="old", space=space, sampler="random", seed=0)
    for number in range(TRIALS + 1):
        proposal = store.ask()
        store.report(proposal.key, epoch=1, score=proposal.parameters["dropout"], task_scores={})
        store.finish(proposal.key, state=TrialState.FINISHED if number < TRIALS else TrialState.STOPPED)
    store.close()
    return OlderStudy("old", url)


def test_older_trials_are_not_counted_not_shown_and_take_no_key(opened, older, url):
    store = opened(older=[older])
    assert (store.records(), store.unfinished()) == ([], [])
    proposal = store.ask()
    assert (proposal.key, proposal.number, proposal.optuna_number) == ("t0000", 0, OLDER)
    store.report(proposal.key, epoch=1, score=0.4, task_scores={"a": 0.4})
    assert [(left.key, left.optuna_number) for left in store.unfinished()] == [("t0000", OLDER)]
    store.finish(proposal.key, state=TrialState.FINISHED)
    assert [(record.key, record.number, record.score) for record in store.records()] == [("t0000", 0, 0.4)]
    reader = StudyStore.load(url, name="s")
    assert reader.records() == store.records()
    reader.close()


@pytest.mark.parametrize("key", ["t-001", "t0001"])
def test_an_older_trial_cannot_be_reached_by_a_key(opened, older, key):
    store = opened(older=[older])
    with pytest.raises(StudyError, match=key):
        store.finish(key, state=TrialState.FAILED)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", *(pytest.param(each, marks=pytest.mark.strain) for each in LEARNING[1:])])
def test_the_first_trials_are_like_the_best_older_ones(opened, older, run_trials, sampler):
    store = opened(sampler=sampler, older=[older])
    first = [point for _ in range(6) for point in run_trials(store, 1)]
    assert sum(point["dropout"] for point in first) / 6 > 0.3  # 0.25 is expected by chance


@pytest.mark.parametrize("objectives", [("score",), ("score", "seconds")])
def test_a_stopped_trial_is_one_for_the_new_sampler_too(opened, space, tmp_path, objectives):
    url = f"sqlite:///{tmp_path / 'old.db'}"
    store = opened(url=url, name="old", sampler="random", objectives=objectives)
    stopped: dict[str, Any] = {"state": TrialState.STOPPED}
    ends: dict[str, dict[str, Any]] = {
        "good": {"state": TrialState.FINISHED, "measured": {"seconds": 1.0}},
        "stopped": stopped,
        "too large": {"state": TrialState.FAILED, "infeasible": True},
        "mute": stopped,
    }
    for number, (name, given) in enumerate(ends.items()):
        key = store.ask().key
        for epoch in (1, 2) if name != "mute" else ():
            store.report(key, epoch=epoch, score=0.1 * number + 0.01 * epoch, task_scores={})
        store.finish(key, **given)
    good, early = fitting_trials(OlderStudy("old", url), space, fixed={})
    assert (good.state.name, good.value) == ("COMPLETE", pytest.approx(0.02))
    assert (early.state.name, early.intermediate_values) == ("PRUNED", pytest.approx({1: 0.11, 2: 0.12}))


def test_a_trial_that_went_on_from_another_s_checkpoint_is_left_out(opened, space, tmp_path):
    url = f"sqlite:///{tmp_path / 'old.db'}"
    store = opened(url=url, name="old", sampler="random")
    for number, score in enumerate((0.5, 0.9)):
        key = store.ask().key
        if number:
            store.keep(key, Resumption(exchanges=({"epoch": 1, "parameters": {"dropout": 0.1}},)))
        store.finish(key, state=TrialState.FINISHED, score=score)
    assert [trial.value for trial in fitting_trials(OlderStudy("old", url), space, fixed={})] == [0.5]


def test_stopped_trials_alone_are_no_study_to_learn_from(opened, space, tmp_path):
    url = f"sqlite:///{tmp_path / 'old.db'}"
    store = opened(url=url, name="old")
    key = store.ask().key
    store.report(key, epoch=1, score=0.5, task_scores={})
    store.finish(key, state=TrialState.STOPPED)
    message = r"the older study 'old' must have a finished trial .*got no finished trial"
    with pytest.raises(StudyError, match=message):
        fitting_trials(OlderStudy("old", url), space, fixed={})


def test_cmaes_goes_on_from_older_trials_though_a_range_was_changed_since(opened, run_trials, tmp_path):
    url = f"sqlite:///{tmp_path / 'old.db'}"

    def space(high: float) -> SearchSpace:
        kind = {"type": "uniform", "low": 0.0}
        return SearchSpace.model_validate({"a": {**kind, "high": 1.0}, "b": {**kind, "high": high}})

    store = opened(url=url, name="old", sampler="random", space=space(1.0))
    run_trials(store, 2)
    stopped = store.ask().key
    store.report(stopped, epoch=1, score=0.5, task_scores={})
    store.finish(stopped, state=TrialState.STOPPED)
    older = [OlderStudy("old", url)]
    run_trials(opened(sampler="cmaes", space=space(1.0), older=older), 1)
    store = opened(sampler="cmaes", space=space(0.5), older=older)
    for _ in range(2):  # from the first one with the new range on, the two keys are no longer common to all trials
        (point,) = run_trials(store, 1)
        assert point.keys() == {"a", "b"}
    assert point["b"] <= 0.5


def _points(older):
    trials = optuna.load_study(storage=older.url, study_name=older.name).get_trials(
        states=(optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    )
    return [trial.params for trial in trials]


def test_a_resumed_study_has_its_older_trials_even_where_the_older_study_is_gone(opened, older, url, tmp_path):
    gone = tmp_path / "gone.db"
    gone.write_bytes(Path(older.url.removeprefix("sqlite:///")).read_bytes())
    opened(older=[OlderStudy("old", f"sqlite:///{gone}")]).ask()
    gone.unlink()
    store = opened(older=[OlderStudy("old", f"sqlite:///{gone}")])
    assert [left.key for left in store.unfinished()] == ["t0000"]
    assert store.ask().key == "t0001"
    assert len(optuna.load_study(storage=url, study_name="s").trials) == OLDER + 2


def test_a_start_that_died_while_it_took_trials_over_takes_the_others_later(opened, older, url, space):
    whole = optuna.create_study(direction="maximize")
    add_older_trials(whole, [older], space, fixed={}, objectives=["score"], attributes={})
    study = optuna.create_study(storage=url, study_name="s", direction="maximize")
    study.add_trials(whole.trials[:5])
    for _ in range(2):
        opened(older=[older])
        assert len(optuna.load_study(storage=url, study_name="s").trials) == OLDER


def test_an_older_study_that_is_named_twice_counts_once(opened, older):
    assert opened(older=[older, older]).ask().optuna_number == OLDER


def test_older_studies_of_one_name_in_several_databases_all_count(opened, run_trials, tmp_path):
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]
    for url in urls:
        run_trials(opened(url=url, name="old", sampler="random"), 2)
    assert opened(older=[OlderStudy("old", url) for url in urls]).ask().optuna_number == 4


@pytest.mark.parametrize(("sampler", "key"), [("nsgaii", "NSGAIISampler"), ("nsgaiii", "NSGAIIISampler")])
def test_older_trials_are_the_first_generation_of_a_genetic_algorithm(opened, older, url, sampler, key):
    opened(sampler=sampler, older=[older]).ask()
    own = optuna.load_study(storage=url, study_name="s").trials[-1]
    assert own.system_attrs[f"{key}:generation"] == 1


def test_enqueued_points_come_first_beside_older_trials_too(opened, older):
    store = opened(older=[older], enqueued=[{"epochs": 7}])
    proposal = store.ask()
    assert (proposal.key, proposal.parameters["epochs"]) == ("t0000", 7)
    assert opened(older=[older], enqueued=[{"epochs": 7}]).ask().key == "t0001"


def _space(space, **changes) -> SearchSpace:
    document = space.model_dump()
    document |= changes
    return SearchSpace.model_validate({key: given for key, given in document.items() if given})


def test_trials_outside_of_the_new_space_are_left_out(older, space):
    narrow = _space(space, epochs={"type": "int", "low": 1, "high": 4})
    expected = [point for point in _points(older) if point["epochs"] <= 4]
    assert [trial.params for trial in fitting_trials(older, narrow, fixed={})] == expected
    assert 0 < len(expected) < TRIALS


def test_a_condition_is_judged_by_what_an_older_trial_drew_also_where_the_study_sets_that_key(opened, tmp_path):
    space = SearchSpace.model_validate(
        {
            "adapter": {"type": "categorical", "choices": ["lora"]},
            "lora_r": {"type": "int", "low": 4, "high": 16, "when": {"adapter": "lora"}},
        }
    )
    url, fixed = f"sqlite:///{tmp_path / 'old.db'}", {"adapter": None}
    store = opened(url=url, name="old", space=space, fixed=fixed)
    proposal = store.ask()
    store.finish(proposal.key, state=TrialState.FINISHED, score=0.5)
    (trial,) = fitting_trials(OlderStudy("old", url), space, fixed=fixed)
    assert trial.params == proposal.parameters
    assert trial.params.keys() == {"adapter", "lora_r"}


def test_a_key_that_is_new_must_have_been_set_for_all_older_trials(older, space):
    wider = _space(space, weight_decay={"type": "uniform", "low": 0.0, "high": 0.1})
    with pytest.raises(StudyError, match="got 30 finished trials, none of which fits"):
        fitting_trials(older, wider, fixed={})
    known = OlderStudy("old", older.url, {"weight_decay": 0})
    assert {trial.params["weight_decay"] for trial in fitting_trials(known, wider, fixed={})} == {0.0}
    beyond = OlderStudy("old", older.url, {"weight_decay": 0.2})
    with pytest.raises(StudyError, match="none of which fits"):
        fitting_trials(beyond, wider, fixed={})


def test_what_an_older_trial_drew_counts_and_not_what_its_study_set(older, space):
    drawn = fitting_trials(OlderStudy("old", older.url, {"epochs": 1}), space, fixed={})
    assert [trial.params for trial in drawn] == _points(older)


def test_trials_that_an_older_study_itself_started_from_are_not_taken_over(opened, older, space, url):
    store = opened(older=[older])
    store.finish(store.ask().key, state=TrialState.FINISHED, score=0.4)
    assert [trial.value for trial in fitting_trials(OlderStudy("s", url), space, fixed={})] == [0.4]


def test_a_key_that_is_no_longer_drawn_must_be_set_to_what_an_older_trial_drew(older, space):
    fewer = _space(space, pooling=None)
    with pytest.raises(StudyError, match="none of which fits"):
        fitting_trials(older, fewer, fixed={})
    taken = fitting_trials(older, fewer, fixed={"pooling": "mean"})
    assert len(taken) == sum(point["pooling"] == "mean" for point in _points(older)) > 0
    assert all("pooling" not in trial.params for trial in taken)


@pytest.mark.parametrize("high", [0.3, 0.35])
def test_the_top_step_of_a_wider_range_fits_whatever_its_rounding(opened, tmp_path, high):
    def stepped(high: float) -> SearchSpace:
        return SearchSpace.model_validate({"x": {"type": "uniform", "low": 0.0, "high": high, "step": 0.1}})

    url = f"sqlite:///{tmp_path / 'older.db'}"
    store = opened(url=url, name="older", space=stepped(0.5), enqueued=[{"x": 3 * 0.1}])
    key = store.ask().key
    store.finish(key, state=TrialState.FINISHED, score=0.5)
    assert store.record(key).parameters == {"x": 0.30000000000000004}
    [trial] = fitting_trials(OlderStudy("older", url), stepped(high), fixed={})
    assert trial.params == {"x": 0.3}
    opened(space=stepped(high), older=[OlderStudy("older", url)]).ask()


def test_another_folder_s_study_of_that_name_teaches_nothing(opened, tmp_path):
    url = f"sqlite:///{tmp_path / 'older.db'}"
    store = opened(url=url, name="older", owner="them")
    store.finish(store.ask().key, state=TrialState.FINISHED, score=0.5)
    opened(older=[OlderStudy("older", url, owner="them")])
    with pytest.raises(StudyError, match="got no finished trial"):
        opened(name="other", older=[OlderStudy("older", url, owner="us")])
