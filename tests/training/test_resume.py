"""A run that was cut off goes on from its newest whole state, and ends bit-equal to one that was not."""

from __future__ import annotations

import errno
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import EMA_AND_DROPOUT, Tune, assert_same_end, final_weights, newest_state

from tutti.errors import StorageError
from tutti.files import sha256_of
from tutti.training import EpochReport, FineTuned
from tutti.training.loop import resume
from tutti.training.loop.exchange import exchange_of
from tutti.training.loop.resume import Position, ResumeState, remove_later
from tutti.training.machine import precision


@pytest.mark.parametrize("killed_after", [3, 4], ids=["within an epoch", "at its end"])
def test_a_run_killed_after_an_evaluation_ends_bit_equal_to_one_that_was_not(tune, tmp_path, killed_after):
    often = {**EMA_AND_DROPOUT, "evals_per_epoch": 2, "loss_balancing": "dynamic"}
    done, reports = tune(tmp_path / "whole", **often)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=killed_after, **often)
    torch.manual_seed(99)
    resumed, later = tune(tmp_path / "cut", **often)
    assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")
    assert later == [replace(reports[killed_after - 1], repeated=True), *reports[killed_after:]]


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_run_stopped_after_an_epoch_ends_bit_equal_to_one_that_was_not(tune, tmp_path, stop_after, whole):
    done, reports, folder = whole
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=stop_after, **EMA_AND_DROPOUT)
    torch.manual_seed(99)  # resuming must not depend on the generator's state
    resumed, later = tune(tmp_path, **EMA_AND_DROPOUT)
    assert_same_end(done, resumed, folder, tmp_path)
    assert later == [replace(reports[stop_after - 1], repeated=True), *reports[stop_after:]]
    assert done.checkpoint.score == resumed.checkpoint.score
    assert done.checkpoint.parameters == resumed.checkpoint.parameters


EVERYTHING = {
    "ema_decay": 0.9,
    "head_dropout": 0.3,
    "pooling_layers": 2,
    "head_dropout_samples": 2,
    "rdrop_alpha": 1.0,
    "loss_balancing": "uncertainty",
    "adversarial": "awp",
    "mixout": 0.1,
    "layer_lr_decay": 0.9,
    "state_steps": 5,
    "stages": [{"num_train_epochs": 2}, {"num_train_epochs": 1, "freeze_encoder": True, "adversarial": None}],
}


@pytest.mark.parametrize("lost", [1, 2], ids=["in the second stage", "in the first stage"])
def test_a_run_cut_within_an_epoch_ends_bit_equal_with_every_trick_on(tune: Tune, tmp_path: Path, lost: int) -> None:
    done, reports = tune(tmp_path / "whole", **EVERYTHING)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=4 - lost, **EVERYTHING)
    states = sorted(path.name for path in (tmp_path / "cut" / "resume").glob("stage-*"))
    assert states == {1: ["stage-1-step-10", "stage-1-step-12"], 2: ["stage-0-step-20", "stage-0-step-24"]}[lost]
    shutil.rmtree(
        tmp_path / "cut" / "resume" / states[-1]
    )  # as if killed some steps later, before the state was complete
    torch.manual_seed(99)
    resumed, later = tune(tmp_path / "cut", **EVERYTHING)
    assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")
    assert [(report.epoch, report.metrics, report.steps) for report in later] == [
        (report.epoch, report.metrics, report.steps) for report in reports[-len(later) :]
    ]


def test_a_state_takes_no_more_space_the_longer_a_run_lasts(tune: Tune, tmp_path: Path) -> None:
    tune(tmp_path, logging_steps=1, num_train_epochs=3)
    sizes = [(state / "trainer_state.json").stat().st_size for state in resume.states(tmp_path / "resume")]
    assert sizes[0] == pytest.approx(sizes[1], abs=20)  # of 12 steps each; an entry has 100 bytes


def test_a_run_whose_data_workers_stay_ends_bit_equal_when_cut_within_an_epoch(tune: Tune, tmp_path: Path) -> None:
    staying = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "num_train_epochs": 2}
    staying |= {"evals_per_epoch": 2}
    done, _ = tune(tmp_path / "whole", **staying)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=1, **staying)
    resumed, _ = tune(tmp_path / "cut", **staying)
    assert_same_end(done, resumed, tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("gains", [True, False])
def test_a_run_goes_on_in_its_precision_on_a_machine_where_the_other_is_the_faster(tune, tmp_path, monkeypatch, gains):
    whole, _ = tune(tmp_path / "whole", bf16=gains, use_cpu=True)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: gains)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", bf16=None, use_cpu=True, stop_after=1)
    monkeypatch.setattr(precision, "cpu_gains_from_bf16", lambda: not gains)
    done, _ = tune(tmp_path / "cut", bf16=None, use_cpu=True)
    assert_same_end(whole, done, tmp_path / "whole", tmp_path / "cut")


def test_a_run_begun_in_fp16_goes_on_where_nothing_scales_the_loss(tune, tmp_path, whole):
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=1, **EMA_AND_DROPOUT)
    state = newest_state(tmp_path)
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
    torch.save({**scaler, "_growth_tracker": 12}, state / "scaler.pt")
    manifest = json.loads((state / "manifest.json").read_text())
    manifest["files"]["scaler.pt"] = sha256_of(state / "scaler.pt")
    (state / "manifest.json").write_text(json.dumps(manifest))
    done, later = tune(tmp_path, **EMA_AND_DROPOUT)
    assert [report.epoch for report in later] == [1, 2, 3]
    assert_same_end(whole[0], done, whole[2], tmp_path)


def test_a_state_of_other_workers_is_passed_over(tune: Tune, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tune(tmp_path, num_train_epochs=1)
    manifest = newest_state(tmp_path) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"workers": 1', '"workers": 2'))
    with caplog.at_level(logging.WARNING):
        _, reports = tune(tmp_path, num_train_epochs=1)
    assert len(reports) == 1
    assert "made by 2 workers" in caplog.text


def test_a_state_of_a_version_that_kept_no_report_is_resumed_from_without_one(tune, tmp_path, whole):
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=2, **EMA_AND_DROPOUT)
    manifest = newest_state(tmp_path) / "manifest.json"
    kept = json.loads(manifest.read_text())
    del kept["report"]
    manifest.write_text(json.dumps(kept))
    done, later = tune(tmp_path, **EMA_AND_DROPOUT)
    assert later == whole[1][2:]
    assert_same_end(whole[0], done, whole[2], tmp_path)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _of_another_version(manifest: Path) -> None:
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 1}))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda state: _cut(state / "optimizer.pt"), id="optimizer cut short"),
        pytest.param(lambda state: (state / "scheduler.pt").unlink(), id="scheduler missing"),
        pytest.param(lambda state: (state / "rng_state.pth").unlink(), id="random state missing"),
        pytest.param(lambda state: (state / "manifest.json").unlink(), id="manifest missing"),
        pytest.param(lambda state: _cut(state / "manifest.json"), id="manifest cut short"),
        pytest.param(lambda state: _of_another_version(state / "manifest.json"), id="of another version"),
    ],
)
def test_a_damaged_newest_state_is_passed_over_for_the_one_before(tune, tmp_path, damage, caplog, whole):
    done, _, folder = whole
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    damage(newest_state(damaged))
    with caplog.at_level(logging.WARNING):
        again, reports = tune(damaged, **EMA_AND_DROPOUT)
    assert [(report.epoch, report.repeated) for report in reports] == [(2, True), (3, False)]
    assert "stage-0-step-36 is passed over" in caplog.text
    assert_same_end(done, again, folder, damaged)


def test_a_fault_of_the_file_system_that_may_pass_costs_no_state(tmp_path, monkeypatch, whole):
    folder, read = whole[2], Path.read_text

    def stale(path: Path, **options: Any) -> str:
        if path.name == "manifest.json":
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", stale)
    with pytest.raises(StorageError, match=r"manifest\.json must be readable; got Stale file handle; .*--resume"):
        resume.newest_state(folder / "resume", best=folder / "best")
    with pytest.raises(StorageError, match="Stale file handle"):
        exchange_of(folder / "resume")
    monkeypatch.undo()
    state, notices = resume.newest_state(folder / "resume", best=folder / "best")
    assert state is not None
    assert notices == []


def test_without_a_whole_state_a_run_starts_anew(tune: Tune, tmp_path: Path) -> None:
    tune(tmp_path, num_train_epochs=1)
    for state in (tmp_path / "resume").iterdir():
        (state / "model.safetensors").unlink()
    _, reports = tune(tmp_path, num_train_epochs=1)
    assert [report.epoch for report in reports] == [1]


STAGED = {"stages": [{"num_train_epochs": 1}, {"num_train_epochs": 2, "learning_rate": 1e-2}]}


@pytest.mark.parametrize(
    ("stop_after", "damage"),
    [
        pytest.param(1, lambda folder: _cut(folder / "best/heads.safetensors"), id="best, before the stage"),
        pytest.param(2, lambda folder: _cut(folder / "best/heads.safetensors"), id="best, within it"),
        pytest.param(2, lambda folder: shutil.rmtree(folder / "best"), id="best missing"),
        pytest.param(2, lambda folder: _cut(folder / "resume/start-1/heads.safetensors"), id="stage start"),
        pytest.param(2, lambda folder: shutil.rmtree(folder / "resume/start-1"), id="stage start missing"),
    ],
)
def test_a_run_starts_anew_once_the_checkpoint_it_goes_on_from_is_damaged(tune, tmp_path, stop_after, damage, caplog):
    done, _ = tune(tmp_path / "whole", **STAGED)
    with pytest.raises(InterruptedError):
        tune(tmp_path / "cut", stop_after=stop_after, **STAGED)
    damage(tmp_path / "cut")
    with caplog.at_level(logging.WARNING):
        again, reports = tune(tmp_path / "cut", **STAGED)
    assert [report.epoch for report in reports] == [1, 2, 3]
    assert "no state in" in caplog.text
    assert_same_end(done, again, tmp_path / "whole", tmp_path / "cut")


def test_a_damaged_checkpoint_that_a_run_does_not_need_is_nothing_to_it(tune: Tune, tmp_path: Path) -> None:
    done, _ = tune(tmp_path, **STAGED)
    _cut(tmp_path / "resume/start-1/heads.safetensors")
    again, reports = tune(tmp_path, **STAGED)
    assert [(report.epoch, report.repeated) for report in reports] == [(3, True)]
    assert again.checkpoint == done.checkpoint


def test_a_state_of_a_stage_that_another_has_followed_does_not_serve(tune: Tune, tmp_path: Path) -> None:
    """The best checkpoint may be of the stage after it, which that stage must not begin from."""
    two_epochs = {"stages": [{"num_train_epochs": 2}, {"num_train_epochs": 1}]}
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=2, **two_epochs)
    shutil.copytree(tmp_path / "best", tmp_path / "resume/start-1")
    _cut(newest_state(tmp_path) / "model.safetensors")
    _, reports = tune(tmp_path, **two_epochs)
    assert [report.epoch for report in reports] == [1, 2, 3]


def test_states_that_do_not_serve_give_way_to_the_new_ones(tune: Tune, tmp_path: Path) -> None:
    """They are of later steps, and only the newest two states are kept."""
    tune(tmp_path)
    for state in (tmp_path / "resume").iterdir():
        (state / "model.safetensors").unlink()
    with pytest.raises(InterruptedError):
        tune(tmp_path, stop_after=1)
    assert [path.name for path in (tmp_path / "resume").iterdir()] == ["stage-0-step-12"]
    _, reports = tune(tmp_path)
    assert [report.epoch for report in reports] == [1, 2, 3]


@pytest.mark.parametrize(
    ("resumed", "left"),
    [
        (None, set()),
        ((0, 6, False), {"stage-0-step-6"}),
        ((0, 12, True), {"stage-0-step-6", "stage-0-step-12", "start-1"}),
        ((1, 6, False), {"stage-0-step-6", "stage-0-step-12", "start-1", "stage-1-step-6"}),
    ],
)
def test_what_a_run_writes_anew_is_removed_first(tmp_path, resumed, left):
    for name in ("stage-0-step-6", "stage-0-step-12", "start-1", "stage-1-step-6", "stage-1-step-12", "start-2"):
        (tmp_path / name).mkdir()
    state = None
    if resumed:
        stage, step, done = resumed
        position = Position(stage, step, epoch=1, epochs_before=0, steps_before=0, best_score=0.0, done=done)
        state = ResumeState(tmp_path / f"stage-{stage}-step-{step}", position, "float32")
    remove_later(tmp_path, state)
    assert {path.name for path in tmp_path.iterdir()} == left


def test_the_newest_two_states_are_kept(whole: tuple[FineTuned, list[EpochReport], Path]) -> None:
    folder = whole[2]
    assert sorted(path.name for path in (folder / "resume").iterdir()) == ["stage-0-step-24", "stage-0-step-36"]
    assert sorted(path.name for path in folder.iterdir()) == ["best", "resume"]


@pytest.mark.parametrize("training", [{}, {"max_steps": 17}])
def test_a_finished_run_trains_no_more_and_reports_its_last_evaluation_again(tune, tmp_path, training):
    whole, reports = tune(tmp_path, **training)
    assert reports[-1].done
    weights = final_weights(tmp_path)
    again, later = tune(tmp_path, **training)
    assert later == [replace(reports[-1], repeated=True)]
    assert later[0].at == reports[-1].at
    torch.testing.assert_close(weights, final_weights(tmp_path), rtol=0, atol=0)
    np.testing.assert_array_equal(whole.predictions["mood"]["test"].outputs, again.predictions["mood"]["test"].outputs)
