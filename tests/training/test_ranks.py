"""Two gloo workers compared with one. A single pair of processes does all ``RUNS`` for this file."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel
from transformers.trainer_pt_utils import safe_globals

from tutti.data.encode import EncodedPart
from tutti.modeling.adapters import has_bitsandbytes
from tutti.modeling.checkpoint import load_checkpoint
from tutti.tasks.task import Task
from tutti.training import EpochReport, FineTuned, fine_tune
from tutti.training.predict import predict

pytestmark = pytest.mark.slow
TRAINING = {"num_train_epochs": 2, "optim": "sgd", "learning_rate": 0.1, "head_dropout": 0.0, "logging_steps": 3}
TRAINING |= {"bf16": False}  # compared with the tolerance of float32
GREEDY = {"lr_scheduler_type": "greedy", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.9}}  # rises at once
RUNS: dict[str, dict[str, Any]] = {
    # 53 and 37 rows in global batches of up to 8: those of 7 rows need a filler
    "plain": {**TRAINING, "per_device_train_batch_size": 8},
    "accumulated": {**TRAINING, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 3},
    "balanced": {
        **TRAINING,
        "per_device_train_batch_size": 8,
        "loss_balancing": "uncertainty",
        "adversarial": "fgm",
        "class_weights": "balanced",
        "focal_gamma": 1.0,
        **GREEDY,
        "layer_lr_decay": 0.9,
        "swa_epochs": 2,
    },
    "averaged": {**TRAINING, "per_device_train_batch_size": 8, "ema_decay": 0.9, "label_smoothing_factor": 0.1},
    "adapter": {**TRAINING, "per_device_train_batch_size": 8, "adapter": "lora", "lora_dropout": 0.0},
}
# In these runs two workers each hold half of every weight; the single worker holds whole weights.
SHARDED = {
    "sharded": {
        **TRAINING,
        "per_device_train_batch_size": 8,
        "adversarial": "fgm",
        "layer_lr_decay": 0.9,
        "max_grad_norm": 0.5,
        **GREEDY,
        "swa_epochs": 2,
    },
    "sharded adapter": {**RUNS["adapter"], "ema_decay": 0.9, "gradient_accumulation_steps": 3},
    "sharded stages": {
        **TRAINING,
        "per_device_train_batch_size": 8,
        "pooling_layers": 2,
        "stages": [{"num_train_epochs": 1}, {"num_train_epochs": 1, "freeze_encoder": True}],
    },
}
RUNS |= SHARDED
if has_bitsandbytes():
    RUNS["quantised"] = {**RUNS["adapter"], "bits": 4}


def _steps(state: Path) -> int:
    return int(state.name.rpartition("-")[2])


def _rows(part: EncodedPart) -> dict[str, Any]:
    return {
        "ids": part.ids.tolist(),
        "input_ids": [list(row) for row in part.encoded["input_ids"]],
        "labels": None if part.labels is None else part.labels.tolist(),
        "weights": part.weights.tolist(),
    }


@pytest.fixture(scope="module")
def by_two(
    tmp_path_factory: pytest.TempPathFactory,
    steady_backbone: Path,
    tasks: tuple[Task, ...],
    parts: dict[str, dict[str, EncodedPart]],
) -> tuple[list[dict[str, Any]], Path]:
    """The outcomes written by ranks 0 and 1, and the folder of the runs."""
    folder = tmp_path_factory.mktemp("ranks")
    runs = {
        name: {"training": {**training, "per_device_train_batch_size": 4}, "folder": str(folder / name)}
        for name, training in RUNS.items()
    }
    for name in SHARDED:
        runs[name]["training"]["fsdp"] = True
    # only a backward pass frees gathered weights, and an evaluation has none
    runs["sharded adapter"]["training"]["fsdp_config"] = {"reshard_after_forward": False}
    again = {"training": {**runs["plain"]["training"], "head_dropout": 0.3, "ema_decay": 0.9}}
    again["training"] |= {"optim": "adamw_torch_fused", "learning_rate": 1e-3}  # unlike SGD it has a state
    runs["whole"] = {**again, "folder": str(folder / "whole")}
    runs["stopped"] = {**again, "folder": str(folder / "stopped"), "stop_after": 1}
    runs["resumed"] = {**again, "folder": str(folder / "stopped")}
    within = {"training": {**again["training"], "state_steps": 4}}
    runs["whole within"] = {**within, "folder": str(folder / "whole within")}
    runs["cut within"] = {**within, "folder": str(folder / "cut within"), "lose": "stage-0-step-24"}
    runs["resumed within"] = {**within, "folder": str(folder / "cut within")}
    shards = {"training": {**again["training"], "fsdp": True, "state_steps": 4, "num_train_epochs": 1}}
    runs["whole of shards"] = {**shards, "folder": str(folder / "whole of shards")}
    runs["cut shards"] = {**shards, "folder": str(folder / "cut shards"), "lose": "stage-0-step-12"}
    runs["resumed shards"] = {**shards, "folder": str(folder / "cut shards")}
    diverging = {**runs["plain"]["training"], "learning_rate": 1e30, "warmup_steps": 0}
    runs["diverging"] = {"training": diverging, "folder": str(folder / "diverging")}
    (folder / "blocked").write_text("a file where a folder should be")
    runs["blocked"] = {**again, "folder": str(folder / "blocked" / "trial")}
    file = _write_job(folder / "job.json", steady_backbone, tasks, parts, runs)
    return _start(file, world=2), folder


def _write_job(
    file: Path,
    backbone: Path,
    tasks: tuple[Task, ...],
    parts: Mapping[str, Mapping[str, EncodedPart]],
    runs: Mapping[str, Any],
) -> Path:
    job = {
        "backbone": str(backbone),
        "tasks": [task.to_dict(file.parent) for task in tasks],
        "parts": {task: {name: _rows(part) for name, part in by_part.items()} for task, by_part in parts.items()},
        "runs": runs,
    }
    file.write_text(json.dumps(job))
    return file


def _start(file: Path, *, world: int) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank.py")), str(file)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)},
        )
        for rank in range(world)
    ]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0] * world
    finally:
        for rank in ranks:
            rank.kill()
    return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(world)]


@pytest.fixture(scope="module", params=list(RUNS))
def both(
    request: pytest.FixtureRequest,
    by_two: tuple[list[dict[str, Any]], Path],
    tmp_path_factory: pytest.TempPathFactory,
    steady_backbone: Path,
    tasks: tuple[Task, ...],
    parts: dict[str, dict[str, EncodedPart]],
) -> tuple[Mapping[str, Any], Path, list[EpochReport], FineTuned, Path]:
    """Rank 0's outcome and folder, and the single worker's reports, result and folder."""
    folder, reports = tmp_path_factory.mktemp("one"), []
    done = fine_tune(
        backbone=str(steady_backbone),
        tasks=tasks,
        parts=parts,
        training=RUNS[request.param],
        folder=folder,
        on_epoch=reports.append,
    )
    return by_two[0][0][request.param], by_two[1] / request.param, reports, done, folder


def test_two_workers_give_the_loss_gradient_norm_and_scores_of_one(both: tuple[Any, ...]) -> None:
    outcome, _, reports, _, _ = both
    assert len(outcome["reports"]) == len(reports) == 2
    assert outcome["rows"] == reports[-1].usage.rows == 2 * (53 + 37)
    for two, one in zip(outcome["reports"], reports, strict=True):
        assert two["metrics"] == pytest.approx(one.metrics, rel=1e-4)
        assert [step for step, _ in two["steps"]] == [step for step, _ in one.steps]
        for (_, values), (_, expected) in zip(two["steps"], one.steps, strict=True):
            assert values == pytest.approx(expected, rel=1e-3)


def test_two_workers_give_the_weights_of_one(both: tuple[Any, ...]) -> None:
    _, two, _, _, one = both
    (newest,) = {max((folder / "resume").glob("stage-*"), key=_steps).name for folder in (one, two)}
    for file in (two / "resume" / newest).glob("*.safetensors"):
        expected = load_file(one / "resume" / newest / file.name)
        torch.testing.assert_close(load_file(file), expected, rtol=1e-4, atol=1e-5)


def test_two_workers_learn_several_labels_and_numbers_as_one_does(steady_backbone, tasks, parts, tmp_path):
    def several(part: EncodedPart) -> EncodedPart:
        labels = np.array([[1, 0, 1], [0, 1, np.nan], [np.nan, np.nan, np.nan]], dtype=np.float32)
        return part if part.labels is None else replace(part, labels=labels[part.labels])

    names = ("a", "b", "c")
    own = (
        Task("news.v1", names, False, "macro_f1", "csv", "labels"),
        Task("mood", names, False, "mcrmse", "csv", "values"),
    )
    given = {task: {name: several(part) for name, part in by_part.items()} for task, by_part in parts.items()}
    keys = {**TRAINING, "num_train_epochs": 1, "class_weights": "balanced", "rdrop_alpha": 1.0}
    reports: list[EpochReport] = []
    whole = {**keys, "per_device_train_batch_size": 8}
    fine_tune(
        backbone=str(steady_backbone),
        tasks=own,
        parts=given,
        training=whole,
        folder=tmp_path / "one",
        on_epoch=reports.append,
    )
    run = {"training": {**keys, "per_device_train_batch_size": 4}, "folder": str(tmp_path / "two")}
    first, _ = _start(_write_job(tmp_path / "job.json", steady_backbone, own, given, {"kinds": run}), world=2)
    assert first["kinds"]["error"] is None
    (two,), (one,) = first["kinds"]["reports"], reports
    assert two["metrics"] == pytest.approx(one.metrics, rel=1e-4, nan_ok=True)


def test_two_workers_predict_every_row_in_input_order(both: tuple[Any, ...]) -> None:
    outcome, _, _, done, _ = both
    for task, by_part in done.predictions.items():
        for part, predictions in by_part.items():
            assert predictions.outputs is not None
            np.testing.assert_allclose(outcome["probabilities"][f"{task}/{part}"], predictions.outputs, atol=1e-4)


def test_every_rank_gets_the_same_reports_and_predictions(by_two: tuple[list[dict[str, Any]], Path]) -> None:
    (first, second), _ = by_two
    assert first == second


def test_ranks_draw_dropout_of_their_own(by_two: tuple[list[dict[str, Any]], Path]) -> None:
    state = by_two[1] / "whole" / "resume" / "stage-0-step-12"
    with safe_globals():
        one, other = (torch.load(state / f"rng_state_{rank}.pth", weights_only=True)["cpu"] for rank in (0, 1))
    assert not torch.equal(one, other)


def test_two_workers_stopped_after_an_epoch_resume_bit_equal(by_two: tuple[list[dict[str, Any]], Path]) -> None:
    (outcome, _), folder = by_two
    assert outcome["stopped"]["error"].startswith("InterruptedError")
    first, *others = outcome["whole"]["reports"]
    assert outcome["resumed"]["reports"] == [{**first, "repeated": True}, *others]
    assert outcome["resumed"]["probabilities"] == outcome["whole"]["probabilities"]
    _assert_same_weights(folder / "stopped", folder / "whole")


def test_two_workers_resume_bit_equal_from_the_middle_of_an_epoch(by_two: tuple[list[dict[str, Any]], Path]) -> None:
    (outcome, _), folder = by_two
    assert outcome["resumed within"]["reports"] == outcome["whole within"]["reports"][1:]
    assert outcome["resumed within"]["probabilities"] == outcome["whole within"]["probabilities"]
    _assert_same_weights(folder / "cut within", folder / "whole within")


def test_two_workers_with_shards_resume_bit_equal_from_the_middle_of_an_epoch(by_two):
    (outcome, _), folder = by_two
    assert outcome["resumed shards"]["reports"] == outcome["whole of shards"]["reports"]
    assert outcome["resumed shards"]["probabilities"] == outcome["whole of shards"]["probabilities"]
    _assert_same_weights(folder / "cut shards", folder / "whole of shards", step=12)
    _assert_same_weights(folder / "cut shards", folder / "whole of shards", step=12, file="average.safetensors")


def test_the_checkpoint_of_workers_with_shards_is_whole(by_two, parts):
    (outcome, _), folder = by_two
    assert (folder / "sharded" / "resume" / "stage-0-step-24" / "optimizer.bin").is_file()  # only sharded runs write it
    model, metadata = load_checkpoint(folder / "sharded" / "best")
    plain = AutoModel.from_pretrained(folder / "sharded" / "best", add_pooling_layer=False)
    torch.testing.assert_close(plain.state_dict(), model.encoder.state_dict(), rtol=0, atol=0)
    for task in metadata.tasks:
        part = parts[task.name]["test"]
        expected = predict(model, part, task=task.name, batch_size=64, device=torch.device("cpu"))
        np.testing.assert_allclose(outcome["sharded"]["probabilities"][f"{task.name}/test"], expected, atol=1e-6)


def _assert_same_weights(one: Path, other: Path, *, step: int = 24, file: str = "model.safetensors") -> None:
    states = [load_file(folder / "resume" / f"stage-0-step-{step}" / file) for folder in (one, other)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_loss_that_is_not_finite_ends_the_trial_on_every_rank(by_two: tuple[list[dict[str, Any]], Path]) -> None:
    for outcome in by_two[0]:
        assert outcome["diverging"]["error"].startswith("TrialError: the training loss at step")


def test_a_folder_that_cannot_be_written_ends_the_trial_on_every_rank(by_two):
    for outcome in by_two[0]:
        assert outcome["blocked"]["error"].startswith("StorageError")


def test_a_process_group_of_one_trains_as_a_plain_process_does(tmp_path, steady_backbone, tasks, parts):
    runs = {"plain": {"training": RUNS["plain"], "folder": str(tmp_path / "group")}}
    file = _write_job(tmp_path / "job.json", steady_backbone, tasks, parts, runs)
    (outcome,) = _start(file, world=1)
    reports: list[EpochReport] = []
    fine_tune(
        backbone=str(steady_backbone),
        tasks=tasks,
        parts=parts,
        training=RUNS["plain"],
        folder=tmp_path / "plain",
        on_epoch=reports.append,
    )
    for report, expected in zip(outcome["plain"]["reports"], reports, strict=True):
        assert report["metrics"] == pytest.approx(expected.metrics, rel=1e-5)
