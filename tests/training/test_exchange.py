"""A trial goes on from another one's state: its weights, its optimizer, its place, with rates of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tutti.data.encode import EncodedPart
from tutti.errors import StorageError
from tutti.tasks.task import Task
from tutti.training import EpochReport, fine_tune
from tutti.training.exchange import exchange_of, take_over
from tutti.training.resume import MANIFEST, newest_state, states
from tutti.training.trainer import MultiTaskTrainer

TOLD = {"donor": "t0001", "epoch": 2, "parameters": {"learning_rate": 2e-4}}
RATE = 1e-3
TRAINING = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "logging_steps": 4,
    "bf16": False,
    "ema_decay": 0.9,
}


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def train(backbone: Path, tasks: tuple[Task, ...], parts: dict[str, dict[str, EncodedPart]]) -> Any:
    def run(folder: Path, *, stop_after: int = 0, **training: Any) -> list[EpochReport]:
        reports: list[EpochReport] = []

        def on_epoch(report: EpochReport) -> None:
            reports.append(report)
            if report.epoch == stop_after:
                raise Stopped

        given: Mapping[str, Any] = {**TRAINING, **training}
        with suppress(Stopped):
            fine_tune(
                backbone=str(backbone), tasks=tasks, parts=parts, training=given, folder=folder, on_epoch=on_epoch
            )
        return reports

    return run


@pytest.fixture(scope="module")
def trained(train: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a donor after its second epoch and of a weak trial after its first."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder / "donor", stop_after=2, learning_rate=RATE)
    train(folder / "weak", stop_after=1, learning_rate=1e-6, seed=3)
    return folder


@pytest.fixture
def both(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Their folders of states, to be changed."""
    shutil.copytree(trained, tmp_path / "both")
    return tmp_path / "both" / "donor" / "resume", tmp_path / "both" / "weak" / "resume"


def test_its_weights_are_the_donor_s_before_its_next_step_and_its_rate_is_its_own(
    train: Any, both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    donor, own = both
    take_over(donor, own, best_score=0.1, exchange=TOLD)
    seen: dict[str, Any] = {}
    plain = MultiTaskTrainer.training_step

    def step(self: MultiTaskTrainer, *given: Any, **named: Any) -> Any:
        if not seen:
            optimizer: Any = self.optimizer
            seen["weights"] = {name: each.clone() for name, each in self.model.trained_state().items()}
            seen["average"] = {name: each.clone() for name, each in self.average.state_dict().items()}
            seen["moments"] = [each["exp_avg"].clone() for each in optimizer.state.values()]
            seen["rates"] = {group["initial_lr"] for group in optimizer.param_groups}
            seen["rate"], seen["step"] = optimizer.param_groups[0]["lr"], self.state.global_step
        return plain(self, *given, **named)

    monkeypatch.setattr(MultiTaskTrainer, "training_step", step)
    reports = train(own.parent, learning_rate=RATE * 1.2, seed=3)
    state = states(donor)[0]
    torch.testing.assert_close(seen["weights"], load_file(state / "model.safetensors"), rtol=0, atol=0)
    torch.testing.assert_close(seen["average"], load_file(state / "average.safetensors"), rtol=0, atol=0)
    kept = torch.load(state / "optimizer.pt", weights_only=True)
    moments = [each["exp_avg"] for each in kept["state"].values()]
    torch.testing.assert_close(seen["moments"], moments, rtol=0, atol=0)
    assert seen["rates"] == {RATE * 1.2}
    assert seen["rate"] == pytest.approx(kept["param_groups"][0]["lr"] * 1.2)
    assert seen["step"] == json.loads((state / MANIFEST).read_text())["position"]["step"] == 24
    assert [report.epoch for report in reports] == [3]
    rates = [values["learning_rate"] for _, values in reports[0].steps]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < seen["rate"]


def test_a_state_that_was_taken_over_says_so_and_is_the_only_one(both: tuple[Path, Path]) -> None:
    donor, own = both
    assert exchange_of(own) is None
    take_over(donor, own, best_score=0.25, exchange=TOLD)
    assert [state.name for state in states(own)] == [states(donor)[0].name]
    assert exchange_of(own) == TOLD
    position = json.loads((states(own)[0] / MANIFEST).read_text())["position"]
    assert position["best_score"] == 0.25  # its best checkpoint is its own
    assert exchange_of(donor) is None


def test_a_donor_s_state_that_is_not_as_it_was_written_is_refused_and_the_trial_keeps_its_own(
    both: tuple[Path, Path],
) -> None:
    donor, own = both
    before = sorted(file for file in own.rglob("*") if file.is_file())
    (states(donor)[0] / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(StorageError, match="be as it was written"):
        take_over(donor, own, best_score=0.0, exchange=TOLD)
    for state in states(donor):
        shutil.rmtree(state)
    with pytest.raises(StorageError, match="hold a state that another trial can go on from"):
        take_over(donor, own, best_score=0.0, exchange=TOLD)
    assert sorted(file for file in own.rglob("*") if file.is_file()) == before


def test_a_run_that_goes_on_from_its_own_state_has_the_rates_that_it_had(train: Any, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", learning_rate=RATE)
    train(tmp_path / "cut", stop_after=1, learning_rate=RATE)
    rest = train(tmp_path / "cut", learning_rate=RATE)
    assert [report.steps for report in rest] == [report.steps for report in whole[1:]]


@pytest.mark.parametrize("half", [("manifest.json",), ("model.safetensors",), ("manifest.json", "model.safetensors")])
def test_an_exchange_is_known_where_a_kill_left_half_of_a_later_state_of_the_trial_s_own(
    both: tuple[Path, Path], half: tuple[str, ...]
) -> None:
    donor, own = both
    later = shutil.copytree(states(own)[0], own / "stage-0-step-99")
    kept = shutil.copytree(later, own.parent / "kept")
    take_over(donor, own, best_score=0.0, exchange=TOLD)
    shutil.copytree(kept, later)
    assert exchange_of(own) is None  # it was killed before: the trial goes on from its own
    for name in half:
        (later / name).unlink()
    state, _ = newest_state(own)
    assert state is not None
    assert state.folder.name == states(donor)[0].name
    assert exchange_of(own) == TOLD
