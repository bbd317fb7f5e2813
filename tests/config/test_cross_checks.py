"""Checks across the sections of a study file."""

from __future__ import annotations

from typing import Any

import pytest

from tutti.config.cross_checks import (
    chain_faults,
    device_faults,
    objective_weight_faults,
    packing_faults,
    population_faults,
    precision_faults,
    unknown_task_faults,
    worker_faults,
)


def _weight_faults(weights: Any) -> list[str]:
    raw = {"tasks": {"mood": {}, "tone": {}}, "objective_weights": weights}
    checks = (unknown_task_faults, objective_weight_faults)
    return [str(fault) for check in checks for fault in check(raw, what=lambda key: key)]


@pytest.mark.parametrize(
    "place", ["training.task_weights.Mood", "training.stages.0.sampling_weights.Mood", "split.group.Mood"]
)
def test_a_task_that_another_section_names_is_one_of_the_study(place: str) -> None:
    weights = {"Mood": 2, "a.b": 1}
    raw = {
        "tasks": {"mood": {}, "a.b": {}},
        "training": {"task_weights": weights, "stages": [{"sampling_weights": weights}, None]},
        "split": {"group": {"Mood": "text"}},
        "search_space": {"task_weights.a.b": {}, "sampling_weights.A.b": {}, "learning_rate": {}},
    }
    told = [str(fault) for fault in unknown_task_faults(raw, what=lambda key: key)]
    assert len(told) == 4
    assert f"{place} must name a task of the study; got 'Mood'; did you mean 'mood'? Correct the name." in told
    assert told[-1].startswith("search_space.sampling_weights.A.b must name a task of the study; got 'A.b'; did you")
    assert unknown_task_faults({**raw, "tasks": None}, what=str) == []


@pytest.mark.parametrize("weights", [{}, {"mood": 0}, {"mood": 0.5, "tone": 2}, {"mood": "2"}, None])
def test_weights_of_the_study_s_tasks_are_sound_here_whatever_their_types(weights: Any) -> None:
    assert _weight_faults(weights) == []


def test_weights_name_tasks_of_the_study_of_which_one_counts() -> None:
    assert _weight_faults({"moods": 2}) == [
        "objective_weights.moods must name a task of the study; got 'moods'; did you mean 'mood'? Correct the name."
    ]
    assert _weight_faults({"mood": 0, "tone": 0.0}) == [
        "objective_weights must be above 0 for a task at least, whose score trials are compared by; got 0 for every "
        "task; raise one."
    ]


def test_candidates_are_packed_where_all_are_answered_by_letters_alone() -> None:
    raw: dict[str, Any] = {"tasks": {"pick": {"columns": {"choices": "own"}}}, "training": {"batching": "packed"}}
    heads = ({"choices": ["verbalizer"]}, {"choices": ["linear", "verbalizer"]}, None)
    faults = [packing_faults(raw | {"search_space": {"head": head}}, what=str) for head in heads]
    assert [len(each) for each in faults] == [0, 1, 1]


def test_entities_that_may_overlap_are_no_chain() -> None:
    raw: dict[str, Any] = {"tasks": {"names": {"layout": "tokens", "spans": "overlapping"}}}
    searched = raw | {"search_space": {"tag_head": {"type": "categorical", "choices": ["softmax", "crf"]}}}
    assert [fault.what for fault in chain_faults(searched, what=str)] == ["search_space.tag_head"]
    assert not chain_faults(raw | {"training": {"tag_head": "softmax"}}, what=str)


def _worker_places(**raw: Any) -> list[str]:
    return [fault.what for fault in worker_faults(raw, what=lambda key: key)]


@pytest.mark.parametrize("training", [{}, {"fsdp": False}, {"fsdp": None}])
def test_one_worker_is_enough_where_weights_stay_whole(training: dict[str, Any]) -> None:
    assert _worker_places(training=training) == []


def test_sharded_weights_need_two_workers() -> None:
    assert _worker_places(training={"fsdp": True}) == ["resources.workers"]
    assert _worker_places(training={"fsdp": True}, resources={"workers": 1}) == ["resources.workers"]
    assert _worker_places(training={"fsdp": True}, resources={"workers": 2}) == []


def test_a_search_space_does_not_vary_how_weights_are_held() -> None:
    assert _worker_places(search_space={"fsdp": {"type": "categorical", "choices": [None, True]}}) == [
        "search_space.fsdp"
    ]


@pytest.mark.parametrize("key", ["ema_decay", "head_learning_rate"])
def test_a_population_varies_no_key_that_some_trials_lack(key: str) -> None:
    def faults(*choices: float | None) -> list[str]:
        space = {key: {"type": "categorical", "choices": [*choices]}}
        raw = {"search": {"scheduler": "pbt"}, "search_space": space}
        return [str(fault) for fault in population_faults(raw, what=lambda key: key)]

    assert faults(0.9, 0.99) == []
    assert len(faults(None, 0.99)) == 1
    assert f"search_space.{key}.choices must have no null beside numbers with the scheduler pbt" in faults(None, 0.9)[0]


def test_a_population_has_one_length_of_texts_at_which_its_checkpoints_predict() -> None:
    space = {
        "max_length": {"type": "categorical", "choices": [64, 128]},
        "truncation": {"type": "categorical", "choices": ["longest_first", "windows"]},
        "learning_rate": {},
    }
    raw = {"search": {"scheduler": "pbt"}, "search_space": space}
    assert [fault.what for fault in population_faults(raw, what=lambda key: key)] == [
        "search_space.max_length",
        "search_space.truncation",
    ]


def test_a_gpu_that_trials_on_the_cpu_would_leave_idle_is_told() -> None:
    def faults(**raw: Any) -> list[str]:
        return [str(fault) for fault in device_faults(raw, what=lambda key: key)]

    (fault,) = faults(training={"use_cpu": True}, resources={"gpus_per_worker": 0.5})
    assert fault.startswith("training.use_cpu must be left out where resources.gpus_per_worker is 0.5: each worker")
    assert not faults(training={"use_cpu": True})
    assert not faults(training={"use_cpu": False}, resources={"gpus_per_worker": 1})


def test_a_population_trains_all_its_trials_equally_long() -> None:
    patience = {"early_stopping_patience": 2}
    for key, raw in {"training": patience, "training.stages": {"stages": [patience]}}.items():
        given = {"search": {"scheduler": "pbt"}, "search_space": {"learning_rate": {}}, "training": raw}
        places = [fault.what for fault in population_faults(given, what=lambda key: key)]
        assert "training.early_stopping_patience" in places, key


def _precision_places(**raw: Any) -> list[str]:
    return [fault.what for fault in precision_faults(raw, what=lambda key: key)]


@pytest.mark.parametrize("key", ["fp16", "tf32"])
def test_a_precision_of_gpus_is_refused_where_every_trial_would_have_it_on_a_cpu(key: str) -> None:
    one, both = ({key: {"type": "categorical", "choices": choices}} for choices in ([True], [True, False]))
    assert _precision_places(training={key: True}) == [f"training.{key}"]
    assert _precision_places(training={key: True}, resources={"gpus_per_worker": 0}) == [f"training.{key}"]
    assert _precision_places(search_space=one) == [f"search_space.{key}"]
    assert _precision_places(training={key: True}, search_space=both) == []
    assert _precision_places(training={key: True}, resources={"gpus_per_worker": 0.5}) == []
    assert _precision_places(training={key: False}) == []


def test_texts_are_neither_sharded_nor_have_a_gain() -> None:
    tasks = {"answers": {"layout": "instructions"}}
    raw = {"tasks": tasks, "training": {"fsdp": True}, "resources": {"workers": 2}, "search": {"objectives": ["gain"]}}
    assert [fault.what for fault in worker_faults(raw, what=str)] == ["training.fsdp", "search.objectives"]
