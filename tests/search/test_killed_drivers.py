"""A driver that is killed costs no trial, and leaves nothing that binds the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from typing import Any

import optuna
import pytest

from tutti.config.space import SearchSpace
from tutti.errors import StudyError
from tutti.records import TrialState
from tutti.search.samplers import STARTUP_TRIALS
from tutti.search.study_store import StudyStore
from tutti.search.warm_start import OlderStudy


@pytest.fixture
def url(each_database) -> str:
    return each_database


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
    """Asks like a driver that is killed after it has sampled so many of the parameters."""
    suggest, calls = optuna.Trial._suggest, iter(range(parameters))

    def count(*args) -> object:
        if next(calls, None) is None:
            raise Killed
        return suggest(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna.Trial, "_suggest", count)
        with pytest.raises(Killed):
            store.ask()


def dies_ending(store: StudyStore, key: str, **ending: Any) -> None:
    """Ends a trial like a driver that is killed before it sets the trial's state in Optuna."""
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
def test_a_driver_killed_while_it_asks_costs_no_trial(opened, run_trials, url, space, sampler, finished, chosen):
    store = opened(sampler=sampler)
    run_trials(store, finished)
    dies_after(chosen, store)
    had = optuna.load_study(storage=url, study_name="s").trials[finished].params
    assert len(had) == chosen
    store = opened(sampler=sampler)
    (left,) = store.unfinished()
    assert left.number == finished
    assert left.parameters.keys() == space.root.keys()
    assert had.items() <= left.parameters.items()
    assert opened(sampler=sampler).unfinished() == [left]  # a sampled point does not change


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


@pytest.mark.parametrize("enqueued", [(), [{"pooling": "cls"}]])
@pytest.mark.parametrize("warm", [False, True])
def test_a_start_that_died_before_its_first_trial_binds_nobody(opened, run_trials, url, enqueued, warm):
    run_trials(opened(name="older"), 1)
    older = [OlderStudy("older", url)] if warm else []
    opened(owner="it", older=older, enqueued=enqueued, objectives=["score", "seconds"][: 1 if warm else 2])
    store = opened(owner="us", enqueued=[{"pooling": "mean"}, {"pooling": None}])
    assert [store.ask().parameters["pooling"] for _ in range(2)] == ["mean", None]
    assert len(optuna.load_study(storage=url, study_name="s").trials) == 2
    with pytest.raises(StudyError, match="of another folder"):
        opened(owner="it")


def test_a_start_that_died_before_its_first_trial_leaves_its_own_folder_no_point_either(opened):
    opened(owner="us", enqueued=[{"epochs": 7}, {"epochs": 8}])
    store = opened(owner="us", enqueued=[{"epochs": 3}], begun=False)
    assert store.ask().parameters["epochs"] == 3
    opened(owner="us", enqueued=[{"epochs": 3}], begun=False)  # its trial is never deleted
    assert [left.parameters["epochs"] for left in opened(owner="us").unfinished()] == [3]


def test_a_study_that_was_not_made_here_is_never_taken_for_a_start_that_died(opened, url):
    optuna.create_study(storage=url, study_name="s", direction="maximize").enqueue_trial({"x": 1})
    with pytest.raises(StudyError, match="of another folder"):
        opened(owner="us", begun=False)
    assert len(optuna.load_study(storage=url, study_name="s").trials) == 1
