"""A batch that does not fit into memory is cut, and the rows of a step stay."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from broker_calls import trial
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import TrialMemoryError
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.memory import is_node_out_of_memory, is_out_of_memory, with_smaller_batches
from tutti.orchestration.worker.pool import reason_of
from tutti.orchestration.worker.trial import train_trial
from tutti.orchestration.worker.trial_listener import TrialListener

FOUR_EIB = 1 << 62


def cut_batches(training: dict[str, Any], lengths: Sequence[int] = (20, 100)) -> dict[str, Any]:
    return with_smaller_batches(training, lengths=[np.array([150]), np.array(lengths)])


def raised(action: Any) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (whatever it raises is what is looked at)
        action()
    return caught.value


@pytest.mark.parametrize(
    "action",
    [
        lambda: bytearray(FOUR_EIB),
        lambda: np.empty(FOUR_EIB, np.uint8),
        lambda: torch.empty(FOUR_EIB, dtype=torch.uint8),
        lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB")),
        lambda: (_ for _ in ()).throw(RuntimeError("could not create a primitive")),
    ],
    ids=["Python", "NumPy", "torch on a CPU", "torch on a GPU", "oneDNN"],
)
def test_an_allocation_that_failed_is_known_whoever_tried_it(action):
    assert is_out_of_memory(raised(action))


def test_what_a_worker_s_error_was_made_of_counts():
    error = RuntimeError("training failed")
    assert not is_out_of_memory(error)
    error.cause = MemoryError()
    assert is_out_of_memory(error)


def test_a_worker_that_ray_ended_for_its_memory_ran_out_of_it_and_one_that_died_otherwise_did_not():
    message = "1 worker(s) were killed due to the node running low on memory.\nRefer to the documentation.\n"
    starved = WorkerHealthCheckFailedError("A worker health check failed.", failure=OutOfMemoryError(message))
    assert is_out_of_memory(starved)
    assert is_node_out_of_memory(starved)
    assert not is_node_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_node_out_of_memory(MemoryError())
    reason = "worker 1: OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory."
    assert reason_of({1: starved}) == reason
    assert not is_out_of_memory(WorkerHealthCheckFailedError("A worker health check failed.", ActorDiedError()))


@pytest.mark.parametrize(
    "action",
    [
        lambda: torch.ones(2) @ torch.ones(3),
        lambda: {}["memory"],
        lambda: (_ for _ in ()).throw(RuntimeError("could not create a primitive descriptor for a matmul primitive")),
    ],
)
def test_other_errors_are_no_matter_of_memory(action):
    assert not is_out_of_memory(raised(action))


@pytest.mark.parametrize(
    ("given", "rows", "times"),
    [
        ({}, 8, 2),
        ({"per_device_train_batch_size": 6}, 3, 2),
        ({"per_device_train_batch_size": 15}, 5, 3),
        ({"per_device_train_batch_size": 7}, 1, 7),
        ({"gradient_accumulation_steps": 3}, 8, 6),
    ],
)
def test_a_step_keeps_its_rows_in_more_and_smaller_batches(given, rows, times):
    cut = cut_batches({"learning_rate": 1e-3, **given})
    assert (cut["per_device_train_batch_size"], cut["gradient_accumulation_steps"]) == (rows, times)
    before = given.get("per_device_train_batch_size", 16) * given.get("gradient_accumulation_steps", 1)
    assert rows * times == before
    assert (cut["learning_rate"], cut["per_device_eval_batch_size"]) == (1e-3, 32)


def test_a_budget_of_tokens_is_halved_where_it_decides_how_many_rows_a_batch_has():
    cut = cut_batches({"max_tokens_per_batch": 1000, "per_device_train_batch_size": 32})
    expected = {"max_tokens_per_batch": 500, "per_device_train_batch_size": 32, "gradient_accumulation_steps": 2}
    assert {key: cut[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("budget", "lengths"), [(128, (20, 200)), (200, (20, 200)), (299, (150, 200)), (160, (90, 81))]
)
def test_a_budget_is_not_cut_where_the_batches_that_need_most_have_one_row(budget, lengths):
    row = f"a batch of one row, of {max(150, *lengths)} tokens with max_tokens_per_batch={budget}"
    with pytest.raises(TrialMemoryError, match=f"out of memory: the batch must be .* got {row}; narrow"):
        cut_batches({"max_tokens_per_batch": budget, "per_device_eval_batch_size": 1}, lengths)
    cut = cut_batches({"max_tokens_per_batch": budget}, lengths)  # the evaluation's may be the larger ones
    assert cut == {"max_tokens_per_batch": budget, "per_device_eval_batch_size": 32}


def test_ungrouped_batches_have_as_many_rows_as_the_longest_ones_allow():
    training = {"max_tokens_per_batch": 350, "group_by_length": False}
    assert cut_batches(training, (20, 30, 200))["max_tokens_per_batch"] == 350
    assert cut_batches(training, (20, 30, 170))["max_tokens_per_batch"] == 175


@pytest.mark.parametrize(("budget", "lengths"), [(400, (200, 200)), (201, (20, 90, 200))])
def test_a_budget_is_cut_where_batches_of_several_rows_need_more_than_the_longest_row(budget, lengths):
    assert cut_batches({"max_tokens_per_batch": budget}, lengths)["max_tokens_per_batch"] == budget // 2


def test_every_stage_is_cut_by_what_it_has():
    training = {"per_device_train_batch_size": 8, "stages": [{}, {"per_device_train_batch_size": 4}]}
    first, second = cut_batches(training)["stages"]
    assert (first["per_device_train_batch_size"], second["per_device_train_batch_size"]) == (4, 2)
    assert first["gradient_accumulation_steps"] == second["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize("whole", [{"per_device_train_batch_size": 1}, {"adversarial": "fgm"}])
@pytest.mark.parametrize("place", [0, 1])
def test_a_stage_that_cannot_be_cut_stays_as_it_is_and_keeps_no_other_from_being_cut(whole, place):
    stages = [{"per_device_train_batch_size": 32}]
    stages.insert(place, whole)
    cut = cut_batches({"learning_rate": 1e-3, "stages": stages})["stages"]
    assert cut[place] == {"learning_rate": 1e-3, **whole}
    other = cut[1 - place]
    assert (other["per_device_train_batch_size"], other["gradient_accumulation_steps"]) == (16, 2)


@pytest.mark.parametrize(
    ("training", "batch"),
    [
        ({"per_device_train_batch_size": 1}, "a batch of one row"),
        ({"max_tokens_per_batch": 15}, "max_tokens_per_batch=15"),
        (
            {"max_tokens_per_batch": 128, "per_device_eval_batch_size": 1},
            "a batch of one row, of 150 tokens with max_tokens_per_batch=128",
        ),
        ({"adversarial": "fgm"}, "adversarial=fgm, which takes a batch as a whole"),
        ({"stages": [{"per_device_train_batch_size": 1}, {"adversarial": "fgm"}]}, "a batch of one row"),
    ],
)
def test_a_batch_that_cannot_be_cut_says_so_and_is_out_of_memory(training, batch):
    with pytest.raises(TrialMemoryError, match=f"out of memory: the batch must be .* got {batch}; narrow"):
        cut_batches(training)


@pytest.mark.parametrize(
    "training",
    [
        {"per_device_train_batch_size": 1},
        {"max_tokens_per_batch": 128, "per_device_eval_batch_size": 1},
        {"max_tokens_per_batch": 250, "per_device_eval_batch_size": 1, "pooling": "bi_encoder"},  # two texts of 100
    ],
)
def test_a_trial_that_begins_anew_forgets_its_states_and_cuts_its_batches(tmp_path, monkeypatch, training):
    rows = SimpleNamespace(batch_lengths=lambda *, apart: np.array([20, 100]) * (2 if apart else 1))
    prepared = SimpleNamespace(tasks=[SimpleNamespace(name="a", pair=True)])
    monkeypatch.setattr("tutti.orchestration.worker.build.load_prepared", lambda folder: prepared)
    monkeypatch.setattr("tutti.data.encode.load_parts", lambda *_, **__: {"a": {"train": rows}})
    task = {"layout": "competition", "train": "/x"}
    study = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"a": task}, "training": training})
    folder = StudyFolder(tmp_path)
    state = folder.trial("t0000").resume / "stage-0-step-3"
    state.mkdir(parents=True)
    reports: list[Any] = []
    train_trial(study, folder, trial(0, halved="no memory", fitted=True), tell=reports.append)
    assert state.is_dir()  # of the smaller batches: to go on from
    train_trial(study, folder, trial(0, halved="no memory"), tell=reports.append)
    assert not state.parent.exists()
    assert all(report["infeasible"] and "a batch of one row" in report["failed"] for report in reports)
    assert len(reports) == 2
    parameters: dict[str, Any] = {"key": "t0000", "number": 0, "parameters": training}
    with pytest.raises(TrialMemoryError):
        fine_tune_once(study, folder, **parameters, listener=TrialListener(), main=True, smaller_batches=True)
