"""A trial resumes from another trial's state: weights, optimizer state and position, but with its own rates."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tutti.errors import StorageError
from tutti.training import EpochReport
from tutti.training.loop.exchange import exchange_of, take_over
from tutti.training.loop.resume import MANIFEST, newest_state, states
from tutti.training.loop.trainer import MultiTaskTrainer

EXCHANGE = {"donor": "t0001", "epoch": 2, "parameters": {"learning_rate": 2e-4}}
RATE = 1e-3
TRAINING = {
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "logging_steps": 4,
    "bf16": False,
    "ema_decay": 0.9,
}


@pytest.fixture(scope="module")
def train(make_tune: Any, backbone: Path) -> Any:
    tune = make_tune(backbone, **TRAINING)

    def run(folder: Path, **training: Any) -> list[EpochReport]:
        with suppress(InterruptedError):
            return tune(folder, **training)[1]
        return []

    return run


@pytest.fixture(scope="module")
def trained(train: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a donor trial after its second epoch, and of a weak trial after its first."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder / "donor", stop_after=2, learning_rate=RATE)
    train(folder / "weak", stop_after=1, learning_rate=1e-6, seed=3)
    return folder


@pytest.fixture
def both(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of both trials' folders of states."""
    shutil.copytree(trained, tmp_path / "both")
    return tmp_path / "both" / "donor" / "resume", tmp_path / "both" / "weak" / "resume"


def test_its_weights_are_the_donor_s_before_its_next_step_and_its_rate_is_its_own(train, both, monkeypatch):
    donor, own = both
    take_over(donor, own, best_score=0.1, exchange=EXCHANGE)
    seen: dict[str, Any] = {}
    plain = MultiTaskTrainer.training_step

    def step(self: MultiTaskTrainer, *args: Any, **kwargs: Any) -> Any:
        if not seen:
            optimizer: Any = self.optimizer
            seen["weights"] = {name: each.clone().cpu() for name, each in self.model.trained_state().items()}
            seen["average"] = {name: each.clone().cpu() for name, each in self.average.state_dict().items()}
            seen["moments"] = [each["exp_avg"].clone().cpu() for each in optimizer.state.values()]
            seen["rates"] = {group["initial_lr"] for group in optimizer.param_groups}
            seen["decays"] = {group["weight_decay"] for group in optimizer.param_groups}
            seen["rate"], seen["step"] = optimizer.param_groups[0]["lr"], self.state.global_step
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(MultiTaskTrainer, "training_step", step)
    reports = train(own.parent, learning_rate=RATE * 1.2, weight_decay=0.05, seed=3)
    state = states(donor)[0]
    torch.testing.assert_close(seen["weights"], load_file(state / "model.safetensors"), rtol=0, atol=0)
    torch.testing.assert_close(seen["average"], load_file(state / "average.safetensors"), rtol=0, atol=0)
    optimizer_state = torch.load(state / "optimizer.pt", weights_only=True, map_location="cpu")
    moments = [each["exp_avg"] for each in optimizer_state["state"].values()]
    torch.testing.assert_close(seen["moments"], moments, rtol=0, atol=0)
    assert seen["rates"] == {RATE * 1.2}
    assert seen["rate"] == pytest.approx(optimizer_state["param_groups"][0]["lr"] * 1.2)
    assert seen["step"] == json.loads((state / MANIFEST).read_text())["position"]["step"] == 24
    assert [report.epoch for report in reports] == [3]
    rates = [values["learning_rate"] for _, values in reports[0].steps]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(RATE * 1.2 * (36 - 27) / (36 - 4))  # after a warm-up of 4 steps
    assert seen["decays"] == {0.05, 0.0}


def test_a_state_that_was_taken_over_says_so_and_is_the_only_one(both: tuple[Path, Path]) -> None:
    donor, own = both
    assert exchange_of(own) is None
    take_over(donor, own, best_score=0.25, exchange=EXCHANGE)
    assert [state.name for state in states(own)] == [states(donor)[0].name]
    assert exchange_of(own) == EXCHANGE
    position = json.loads((states(own)[0] / MANIFEST).read_text())["position"]
    assert position["best_score"] == 0.25  # the trial keeps its own best checkpoint
    assert exchange_of(donor) is None


@pytest.mark.parametrize(
    ("file", "content"), [("model.safetensors", "damaged"), (MANIFEST, ""), (MANIFEST, '{"files": {}}')]
)
def test_a_donor_s_state_that_is_not_as_it_was_written_is_refused_and_the_trial_keeps_its_own(both, file, content):
    donor, own = both
    before = sorted(file for file in own.rglob("*") if file.is_file())
    (states(donor)[0] / file).write_text(content)
    with pytest.raises(StorageError, match="be as it was written"):
        take_over(donor, own, best_score=0.0, exchange=EXCHANGE)
    for state in states(donor):
        shutil.rmtree(state)
    with pytest.raises(StorageError, match="hold a state that another trial can go on from"):
        take_over(donor, own, best_score=0.0, exchange=EXCHANGE)
    assert sorted(file for file in own.rglob("*") if file.is_file()) == before


def test_a_run_that_goes_on_from_its_own_state_has_the_rates_that_it_had(train: Any, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", learning_rate=RATE)
    train(tmp_path / "cut", stop_after=1, learning_rate=RATE)
    rest = train(tmp_path / "cut", learning_rate=RATE)
    assert [report.steps for report in rest] == [report.steps for report in whole]


@pytest.mark.parametrize("half", [("manifest.json",), ("model.safetensors",), ("manifest.json", "model.safetensors")])
def test_an_exchange_is_known_where_a_kill_left_half_of_a_later_state_of_the_trial_s_own(both, half):
    donor, own = both
    later = shutil.copytree(states(own)[0], own / "stage-0-step-99")
    copy = shutil.copytree(later, own.parent / "kept")
    take_over(donor, own, best_score=0.0, exchange=EXCHANGE)
    shutil.copytree(copy, later)
    assert exchange_of(own) is None  # killed before the removal: the trial resumes from its own state
    for name in half:
        (later / name).unlink()
    state, _ = newest_state(own, best=own.parent / "best")
    assert state is not None
    assert state.folder.name == states(donor)[0].name
    assert exchange_of(own) == EXCHANGE
