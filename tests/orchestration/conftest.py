from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from memory_tracker import MemoryTracker

from tutti.config.folder import StudyFolder
from tutti.config.space import SearchSpace
from tutti.config.study import Resources, StudyConfig
from tutti.orchestration.broker.messages import trial_config
from tutti.orchestration.driver.ending import Ender
from tutti.orchestration.driver.log import StudyLog
from tutti.orchestration.driver.pictures import PictureDrawer
from tutti.orchestration.driver.recording import Recorder
from tutti.orchestration.driver.study import StudyOutcome, run_study
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Proposal

SPACE = {"learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-3}}


@pytest.fixture
def store(tmp_path, empty_database) -> StudyStore:
    shutil.copy(empty_database, tmp_path / "optuna.db")
    space = SearchSpace.model_validate(SPACE)
    return StudyStore.open(f"sqlite:///{tmp_path / 'optuna.db'}", name="s", space=space, sampler="random", seed=0)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of async tests."""
    return "asyncio"


@pytest.fixture
def seed_that_gives(tmp_path) -> Callable[[list[float]], int]:
    """A seed of random search whose first trials have these learning rates, in this order, of just these choices."""

    def find_seed(wanted: list[float]) -> int:
        space = SearchSpace.model_validate({"learning_rate": {"type": "categorical", "choices": wanted}})
        for seed in range(500):
            url = f"sqlite:///{tmp_path / f'seed-{seed}.db'}"
            store = StudyStore.open(url, name="s", space=space, sampler="random", seed=seed)
            drawn = [store.ask().parameters["learning_rate"] for _ in wanted]
            store.close()
            if drawn == wanted:
                return seed
        raise AssertionError("no such seed")

    return find_seed


@dataclass
class Logged:
    """A study's log with all that it writes to, and Ray's events as calls."""

    store: StudyStore
    tracker: MemoryTracker
    folder: StudyFolder
    log: StudyLog
    watched: list[None]
    pruned: list[int]
    FINAL: ClassVar = {  # what the last report of a trial holds besides
        "final": True,
        "best_score": 0.8,
        "best_epoch": 2,
        "best_task_scores": {"mood": 0.8},
    }

    def start(self) -> Any:
        """A new trial of the store, started as Ray Tune would."""
        return self.go_on(self.store.ask())

    def go_on(self, proposal: Proposal) -> Any:
        """A trial of the store, started as Ray Tune would."""
        from ray.tune.experiment import Trial

        trial = Trial("tutti", config=trial_config(proposal), stub=True)
        self.log.on_trial_start(0, [], trial)
        return trial

    def epoch(self, trial: Any, epoch: int, score: float, **more: Any) -> None:
        result = {
            "epoch": epoch,
            "score": score,
            "task_scores": {"mood": score},
            "metrics": {"train_loss": 1.0 / epoch, "mood/accuracy": score},
            "steps": [(10 * epoch, {"loss": 1.0 / epoch})],
            "at": 1000.0 + epoch,
        }
        self.log.on_trial_result(0, [], trial, {**result, **more})

    def record(self, trial: Any) -> Any:
        return self.store.records()[trial.config["number"]]

    def run(self, trial: Any) -> Any:
        return self.tracker.runs[trial.config["key"]]


@pytest.fixture
def folds() -> bool:
    """Whether the logged study has folds."""
    return False


@pytest.fixture
def logged(store, tmp_path, folds) -> Logged:
    tracker = MemoryTracker()
    tracker.start_study(parameters={}, tags={}, files=[])
    folder, watched, pruned = StudyFolder(Path(tmp_path / "study")), [], []
    recorder = Recorder(
        store=store, tracker=tracker, folder=folder, tags={"tutti.host": "here"}, folds=folds, evals_per_epoch=1
    )
    pictures = PictureDrawer(
        folder=folder,
        tracker=tracker,
        picture=lambda task, predictions: f"{task}: {len(predictions.ids)} rows".encode(),
    )
    ender = Ender(
        recorder,
        pictures,
        measure=None,
        prune=lambda: pruned.append(sum(record.state is not TrialState.RUNNING for record in store.records())),
    )
    log = StudyLog(recorder, ender, watch=lambda: watched.append(None), notify=print)
    return Logged(store, tracker, folder, log, watched, pruned)


@pytest.fixture(scope="package")
def cluster_of_two() -> Iterator[None]:
    """A Ray in which two trials run at a time."""
    from tutti.cluster.connect import connected

    with connected(Resources(concurrent_trials=2)):
        yield


def _wait_until_free() -> None:
    """Waits 5 s at most until nothing of the cluster is kept for trials."""
    from ray.util import placement_group_table

    until = time.monotonic() + 5
    while kept := {group["state"] for group in placement_group_table().values()} - {"REMOVED"}:
        assert time.monotonic() < until, f"placement groups stay behind, {kept}"
        time.sleep(0.1)


@pytest.fixture
def run_alone(cluster_of_two) -> Callable[..., tuple[StudyOutcome, StudyFolder]]:
    """Runs a study without its command, or goes on with it, its trials made of ``train``."""

    from ray import cloudpickle

    def run(
        folder: Path,
        train: Any,
        *,
        concurrent: int = 1,
        isolation: str = "auto",
        watch: Callable[[], None] = lambda: None,
        **search: Any,
    ) -> tuple[StudyOutcome, StudyFolder]:
        document = {
            "study": "s",
            "backbone": "b",
            "tasks": {"a": {"layout": "competition", "train": "/x"}},
            "search": {"trials": 3, "scheduler": "none", "retries": 1, **search},
            "resources": {"isolation": isolation},
        }
        study, place = StudyConfig.model_validate(document), StudyFolder(folder / "s")
        place.path.mkdir(exist_ok=True)
        store = StudyStore.open(place.optuna_url, name="s", space=study.search_space, sampler="random", seed=0)
        tracker = MemoryTracker()
        tracker.start_study(parameters={}, tags={}, files=[])
        # Ray's workers import nothing from the current folder, thus no module of the tests.
        if train is not None:
            cloudpickle.register_pickle_by_value(sys.modules[train.__module__])
        try:
            done = run_study(
                study,
                place,
                store=store,
                tracker=tracker,
                concurrent_trials=concurrent,
                tags={},
                watch=watch,
                picture=lambda task, predictions: b"",
                notify=print,
                train=train,
            )
        finally:
            store.close()
        _wait_until_free()
        return done, place

    return run
