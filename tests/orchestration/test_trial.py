"""A trial's clock, which it time_reads at between two reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from broker_calls import trial as configured

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import Fault, TrialError, TrialMemoryError
from tutti.orchestration.worker import build, trial
from tutti.orchestration.worker.trial import CHECK_SECONDS, Stopped, train_trial


@pytest.mark.parametrize("pace", [0.01, 1.0, 45.0], ids=["quick steps", "steps of a second", "long steps"])
def test_a_trial_ends_soon_after_its_time_is_over_within_an_epoch_too(monkeypatch, tmp_path, pace):
    clock, reports, time_reads = SimpleNamespace(now=1000.0), [], []

    def epoch_without_end(*_: Any, listener: Any, **__: Any) -> None:
        while clock.now < 1e5:
            clock.now += pace
            listener.on_step()

    def monotonic() -> float:
        time_reads.append(clock.now)
        return clock.now

    def tell(report: dict[str, Any]) -> bool:
        reports.append(report)
        return False

    monkeypatch.setattr(trial, "time", SimpleNamespace(time=lambda: clock.now, monotonic=monotonic))
    monkeypatch.setattr(build, "fine_tune_once", epoch_without_end)
    task = {"layout": "competition", "train": "/x"}
    settings = {"study": "s", "backbone": "b", "tasks": {"a": task}, "search": {"max_trial_hours": 0.5}}
    study = StudyConfig.model_validate(settings)
    with pytest.raises(Stopped):
        train_trial(study, StudyFolder(tmp_path), configured(0), tell=tell)
    [report] = reports
    assert report["overtime"] is True
    assert 1800 <= report["at"] - report["began"] <= 1800 + max(CHECK_SECONDS, pace)
    assert len(time_reads) < 500  # ranks talk to each other for each


@pytest.mark.parametrize(("error", "infeasible"), [(TrialError, False), (TrialMemoryError, True)])
def test_a_trial_that_fails_reports_why_and_how_long_it_trained(monkeypatch, tmp_path, error, infeasible):
    clock, reports = SimpleNamespace(now=1000.0, wall=1e9), []

    def fails(*_: Any, **__: Any) -> None:
        clock.now += 60
        clock.wall += 60 + 8 * 3600  # the machine slept in between
        raise error(Fault("the loss", "be finite", "NaN", "lower the learning rate"))

    monkeypatch.setattr(trial, "time", SimpleNamespace(time=lambda: clock.wall, monotonic=lambda: clock.now))
    monkeypatch.setattr(build, "fine_tune_once", fails)
    study = StudyConfig.model_validate(
        {"study": "s", "backbone": "b", "tasks": {"a": {"layout": "competition", "train": "/x"}}}
    )
    train_trial(study, StudyFolder(tmp_path), configured(0), tell=reports.append)
    [report] = reports
    assert "the loss must be finite" in report["failed"]
    assert report["at"] - report["began"] == 60
    assert report.get("infeasible", False) is infeasible
