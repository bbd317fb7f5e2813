"""Every sampler is seeded, proposes points of the space, resumes, and supports conditions."""

from __future__ import annotations

import warnings

import numpy as np
import optuna
import pytest
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import FloatDistribution
from optuna.samplers import NSGAIIISampler, NSGAIISampler
from optuna.trial import create_trial

from tutti.config.conditions import applies
from tutti.config.points import grid, value_fault
from tutti.config.search_facts import LEARNING, SAMPLERS
from tutti.config.space import SearchSpace
from tutti.records import TrialState
from tutti.search import space as search_space
from tutti.search.samplers import POPULATION, STARTUP_TRIALS, _CmaEs, _WithUnfinished
from tutti.search.trial_attributes import Resumption

ALL = tuple(SAMPLERS)
MANY = STARTUP_TRIALS + POPULATION


@pytest.fixture
def space() -> SearchSpace:
    """A finite space with a conditional key, which comes before the key that its condition names."""
    return SearchSpace.model_validate(
        {
            "lora_r": {"type": "int", "low": 4, "high": 16, "step": 4, "when": {"adapter": "lora"}},
            "adapter": {"type": "categorical", "choices": [None, "lora"]},
            "dropout": {"type": "uniform", "low": 0.0, "high": 0.5, "step": 0.1},
            "weight_decay": {"type": "uniform", "low": 0.0, "high": 0.3, "step": 0.1},
            "per_device_train_batch_size": {"type": "categorical", "choices": [16]},
        }
    )


@pytest.fixture
def one_by_one(run_trials):
    """Runs trials one after the other, so that each can learn from those before it."""
    return lambda store, trials, **options: [point for _ in range(trials) for point in run_trials(store, 1, **options)]


@pytest.mark.parametrize("sampler", ALL)
def test_every_proposal_has_the_keys_whose_conditions_hold_and_values_of_the_space(opened, one_by_one, space, sampler):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = one_by_one(opened(sampler=sampler), 20 if sampler == "grid" else STARTUP_TRIALS + 3)
    for point in points:
        assert point.keys() == {key for key, distribution in space.root.items() if applies(distribution, point)}
        assert [key for key in point if value_fault(space.root[key], point[key])] == []
    assert {"lora_r" in point for point in points} == {True, False}


@pytest.mark.parametrize("sampler", ALL)
def test_the_same_seed_gives_the_same_points_and_another_seed_another(opened, one_by_one, tmp_path, sampler):
    sequences = [
        one_by_one(opened(url=f"sqlite:///{tmp_path / str(i)}.db", sampler=sampler, seed=seed), STARTUP_TRIALS + 2)
        for i, seed in enumerate([1, 1, 2])
    ]
    assert sequences[0] == sequences[1] != sequences[2]


def test_the_next_seed_does_not_draw_the_same_points_one_trial_earlier(opened):
    points = []
    for seed in (1, 2):
        store = opened(name=str(seed), sampler="random", seed=seed, space=PLANE)
        points.append([dict(store.ask().parameters) for _ in range(3)])
    assert not any(point in points[1] for point in points[0])


@pytest.mark.parametrize("sampler", ALL)
def test_a_resumed_study_goes_on_with_the_points_of_the_undisturbed_one(opened, one_by_one, tmp_path, sampler):
    options = {"sampler": sampler, "enqueued": [{"adapter": "lora"}, {"dropout": 0.2}]}
    undisturbed = one_by_one(opened(**options), 3 * 4)
    url = f"sqlite:///{tmp_path / 'resumed.db'}"
    resumed = [point for _ in range(3) for point in one_by_one(opened(url=url, **options), 4)]
    assert resumed == undisturbed


@pytest.mark.parametrize("number", [2, STARTUP_TRIALS + 2])
@pytest.mark.parametrize("sampler", ALL)
def test_trials_have_their_points_after_a_driver_died_amid_one(
    opened, one_by_one, monkeypatch, tmp_path, sampler, number
):
    """Every key has its own uniform draw, so that one which got that of another key would show."""
    space = SearchSpace.model_validate({key: {"type": "uniform", "low": 0.0, "high": 1.0} for key in "abc"})
    if sampler == "grid":
        space = SearchSpace.model_validate({key: {"type": "categorical", "choices": [0, 1, 2]} for key in "abc"})
    suggest = search_space._suggest

    def dies(trial, key, kind):
        suggest(trial, key, kind)
        raise KeyboardInterrupt

    def sum_of(point):
        return float(sum(point.values()))

    runs = []
    for killed in (False, True):
        url = f"sqlite:///{tmp_path / str(killed)}.db"
        store = opened(url=url, sampler=sampler, space=space)
        points = one_by_one(store, number, score=sum_of)
        if killed:
            monkeypatch.setattr(search_space, "_suggest", dies)
            with pytest.raises(KeyboardInterrupt):
                store.ask()
            monkeypatch.undo()
            store = opened(url=url, sampler=sampler, space=space)
            (proposal,) = store.unfinished()
        else:
            proposal = store.ask()
        points.append(dict(proposal.parameters))
        store.report(proposal.key, epoch=1, score=sum_of(proposal.parameters), task_scores={})
        store.finish(proposal.key, state=TrialState.FINISHED)
        runs.append(points + one_by_one(store, 2, score=sum_of))
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", *(pytest.param(each, marks=pytest.mark.strain) for each in LEARNING[1:])])
def test_a_sampler_that_learns_looks_where_scores_were_high(opened, one_by_one, sampler):
    points = one_by_one(opened(sampler=sampler), MANY + 30)
    assert sum(point["dropout"] for point in points[-30:]) / 30 > 0.3  # 0.25 is expected by chance


def test_cmaes_varies_what_all_trials_have_and_goes_on_in_its_generations(opened, one_by_one, url):
    one_by_one(opened(sampler="cmaes"), 8)
    one_by_one(opened(sampler="cmaes"), 8)
    trials = optuna.load_study(storage=url, study_name="s").trials
    generations = [trial.system_attrs["cma:generation"] for trial in trials[1:]]
    assert generations == sorted(generations)
    assert generations[-1] >= 1


def test_cmaes_keeps_its_generations_alone_and_comes_to_the_state_of_optuna_s_own(opened, one_by_one, url):
    one_by_one(opened(sampler="cmaes"), 8)
    trials = optuna.load_study(storage=url, study_name="s").trials
    assert {name for trial in trials for name in trial.system_attrs} == {"cma:generation"}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        theirs = optuna.samplers.CmaEsSampler(seed=1)
        ours = _CmaEs(seed=2, unconditional="ab", older=[])
    study = optuna.create_study(direction="maximize", sampler=theirs)
    study.optimize(lambda trial: -sum((trial.suggest_float(key, 0, 1) - 0.2) ** 2 for key in "ab"), n_trials=20)
    transform = _SearchSpaceTransform(study.trials[0].distributions, transform_0_1=True)
    evolved, expected = ours._replay(transform, study.trials), theirs._restore_optimizer(study.trials)
    assert evolved.generation == expected.generation == 3
    assert np.array_equal(evolved.mean, expected.mean)
    assert np.array_equal(evolved._C, expected._C)


@pytest.fixture
def coarse(space) -> SearchSpace:
    """Three values of a key times five settings of an adapter (four ranks, or none): 15 points."""
    document = space.model_dump() | {"dropout": {"type": "uniform", "low": 0.0, "high": 0.5, "step": 0.25}}
    del document["weight_decay"]
    return SearchSpace.model_validate(document)


def test_a_grid_has_every_point_once_whatever_ends_it_and_however_often_it_is_resumed(opened, coarse):
    points = []
    for size in (3, 5, 7):
        store = opened(sampler="grid", space=coarse)
        for number in range(size):
            proposal = store.ask()
            points.append(dict(proposal.parameters))
            state = [TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED][number % 3]
            store.finish(proposal.key, state=state, score=0.5)
    whole = list(grid(coarse.root, {}))
    assert len(points) == len(whole) == 3 * (1 + 4)
    assert sorted(map(repr, (sorted(point.items()) for point in points))) == sorted(
        map(repr, (sorted(point.items()) for point in whole))
    )


def test_tpe_keeps_away_from_what_did_not_fit_into_memory_as_it_does_not_from_what_failed(opened):
    space = SearchSpace.model_validate({"rows": {"type": "int", "low": 1, "high": 64}})

    def drawn_large(name: str, *, infeasible: bool) -> int:
        store = opened(name=name, space=space)
        for _ in range(30):
            proposal = store.ask()
            if proposal.parameters["rows"] > 32:
                store.finish(proposal.key, state=TrialState.FAILED, infeasible=infeasible)
            else:
                store.report(proposal.key, epoch=1, score=0.5, task_scores={})
                store.finish(proposal.key, state=TrialState.FINISHED)
        return sum(record.state is TrialState.FAILED for record in store.records()[10:])

    learned, blind = drawn_large("infeasible", infeasible=True), drawn_large("failed", infeasible=False)
    assert learned < blind


@pytest.mark.parametrize("ending", ["infeasible", "failed", "stopped"])
def test_gp_leaves_a_point_whose_trials_do_not_finish(opened, ending):
    space = SearchSpace.model_validate({"rate": {"type": "uniform", "low": 0.0, "high": 1.0}})
    store = opened(sampler="gp", space=space)
    for _ in range(16):
        proposal = store.ask()
        rate, finishes = proposal.parameters["rate"], proposal.parameters["rate"] < 0.6
        if finishes or ending == "stopped":
            store.report(proposal.key, epoch=1, score=rate if finishes else 0.1, task_scores={})
        state = TrialState.STOPPED if ending == "stopped" else TrialState.FAILED
        store.finish(
            proposal.key,
            state=TrialState.FINISHED if finishes else state,
            infeasible=ending == "infeasible" and not finishes,
        )
    lost = [record.parameters["rate"] >= 0.6 for record in store.records()[STARTUP_TRIALS:]]
    assert sum(lost) <= 4  # without learning from them, all


def test_cmaes_takes_no_trial_for_a_good_one_that_ran_out_of_memory_after_a_good_score(opened):
    space = SearchSpace.model_validate({key: {"type": "uniform", "low": 0.0, "high": 1.0} for key in ("a", "b")})
    store = opened(sampler="cmaes", space=space)
    for _ in range(60):
        proposal = store.ask()
        a, b = proposal.parameters.values()
        fits = a < 0.5
        store.report(proposal.key, epoch=1, score=1 - b if fits else 2.0, task_scores={})
        store.finish(proposal.key, state=TrialState.FINISHED if fits else TrialState.FAILED, infeasible=not fits)
    assert sum(record.state is TrialState.FAILED for record in store.records()[-15:]) < 12  # otherwise all


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "nsgaii", "nsgaiii"])
def test_every_sampler_goes_on_after_a_trial_that_did_not_fit_into_memory(opened, sampler, recwarn):
    store = opened(sampler=sampler)
    for number in range(STARTUP_TRIALS + 3):
        proposal, fits = store.ask(), number % 3 < 2
        store.report(proposal.key, epoch=1, score=number / 10, task_scores={})
        store.finish(proposal.key, state=TrialState.FINISHED if fits else TrialState.FAILED, infeasible=not fits)
    assert [record.state for record in store.records()].count(TrialState.FAILED) == 2
    assert [str(each.message) for each in recwarn if "onstraint" in str(each.message)] == []


def test_for_gp_a_trial_that_did_not_finish_is_no_better_than_the_worst_one_that_did():
    study, distributions = optuna.create_study(direction="maximize"), {"a": FloatDistribution(0, 1)}
    ends = [("COMPLETE", 0.5), ("COMPLETE", 0.2), ("PRUNED", 0.9), ("PRUNED", 0.1), ("FAIL", None)]
    for state, score in ends:
        reports = {1: score} if state == "PRUNED" else None
        given = {"params": {"a": 0.5}, "distributions": distributions, "intermediate_values": reports}
        study.add_trial(create_trial(state=optuna.trial.TrialState[state], value=score, **given))
    study.add_trial(create_trial(state=optuna.trial.TrialState.FAIL))  # lacks the key: its place is unknown
    known = _WithUnfinished(study, {"a"})._get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    assert [trial.value for trial in known] == [0.5, 0.2, 0.2, 0.1, 0.2]
    assert {trial.state.name for trial in known} == {"COMPLETE"}


PLANE = SearchSpace.model_validate({key: {"type": "uniform", "low": 0.0, "high": 1.0} for key in ("a", "b")})
GENERATION = 6  # trials of CMA-ES in two dimensions


def test_cmaes_goes_on_to_its_next_generation_with_trials_that_were_stopped(opened, url):
    store = opened(sampler="cmaes", space=PLANE)
    store.finish(store.ask().key, state=TrialState.FINISHED, score=0.5)
    for _ in range(GENERATION + 1):
        key = store.ask().key
        store.report(key, epoch=1, score=0.4, task_scores={})
        store.finish(key, state=TrialState.STOPPED)
    trials = optuna.load_study(storage=url, study_name="s").trials
    assert [trial.system_attrs["cma:generation"] for trial in trials[1:]] == [0] * GENERATION + [1]


def test_a_generation_of_cmaes_is_of_the_trials_that_ended_first_and_later_ends_do_not_change_it(opened):
    """Two trials of the first generation are slow: the points that follow are the same before and after their end."""
    points = []
    for name, is_late in (("before", False), ("after", True)):
        store = opened(name=name, sampler="cmaes", space=PLANE)
        store.finish(store.ask().key, state=TrialState.FINISHED, score=0.5)
        proposals = [store.ask() for _ in range(2 + GENERATION)]
        for proposal in [*proposals[2:], *proposals[: 2 if is_late else 0]]:
            score = proposal.parameters["a"] if proposal in proposals[2:] else 9.0
            store.finish(proposal.key, state=TrialState.FINISHED, score=score)
        points.append(dict(store.ask().parameters))
    assert points[0] == points[1]


def test_cmaes_leaves_out_a_condition_s_key_that_a_stopped_trial_lacks_though_all_finished_ones_have_it(opened, space):
    points = [{"adapter": "lora"}, {"adapter": None}, {"adapter": "lora"}]
    store = opened(sampler="cmaes", enqueued=points)
    for number in range(2 * GENERATION):
        proposal = store.ask()
        store.report(proposal.key, epoch=1, score=0.5, task_scores={})
        is_whole = number < len(points) and proposal.parameters["adapter"] == "lora"
        store.finish(proposal.key, state=TrialState.FINISHED if is_whole else TrialState.STOPPED)
    assert len(store.records()) == 2 * GENERATION


@pytest.mark.parametrize("sampler", ["nsgaii", "nsgaiii"])
def test_a_point_that_was_given_whole_is_a_member_of_the_first_generation(opened, url, sampler):
    whole = {"a": 0.5, "b": 0.25}
    store = opened(sampler=sampler, space=PLANE, enqueued=[whole])
    assert store.ask().parameters == whole
    store.ask()
    generation = {"nsgaii": NSGAIISampler, "nsgaiii": NSGAIIISampler}[sampler]._get_generation_key()
    trials = optuna.load_study(storage=url, study_name="s").trials
    assert [trial.system_attrs.get(generation) for trial in trials] == [0, 0]


def test_a_score_that_was_reached_with_parameters_of_another_trial_is_not_held_to_be_of_the_sampled_ones(opened):
    space = SearchSpace.model_validate({"rate": {"type": "uniform", "low": 0.0, "high": 1.0}})
    store = opened(space=space)
    for proposal in [store.ask() for _ in range(20)]:
        rate = proposal.parameters["rate"]
        if rate > 0.7:
            store.keep(proposal.key, Resumption(exchanges=({"epoch": 1, "parameters": {"rate": 0.1}},)))
        store.finish(proposal.key, state=TrialState.FINISHED, score=1.2 if rate > 0.7 else 1 - rate)
    assert sum(store.ask().parameters["rate"] for _ in range(6)) / 6 < 0.4
