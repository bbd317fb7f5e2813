"""Workers that stay for the next trial: nothing of one trial may be felt in another, and their loss loses no trial."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from contextlib import closing
from typing import Any

import optuna
import pytest
import torch
from ray.exceptions import OutOfMemoryError

from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.errors import ClusterError, StorageError
from tutti.orchestration.driver import study as study_module
from tutti.orchestration.worker.trial import Stopped
from tutti.records import TrialState
from tutti.search import database
from tutti.search.study_store import StudyStore

pytestmark = [pytest.mark.ray, pytest.mark.slow]
# Trials that leave as much behind as they can: averages, moved weights, another precision, layers that are others.
SPACE = {
    "learning_rate": {"type": "log_uniform", "low": 1e-3, "high": 1e-2},
    "bf16": {"type": "categorical", "choices": [True, False]},
    "pooling": {"type": "categorical", "choices": ["attention", "cls", "mean"]},
    "adversarial": {"type": "categorical", "choices": [None, "awp"]},
    "ema_decay": {"type": "categorical", "choices": [None, 0.9]},
    "adapter": {"type": "categorical", "choices": [None, "lora"]},
    "optim": {"type": "categorical", "choices": ["adamw_torch_fused", "adafactor"]},
}
WORKER = "ray::RayTrainWorker"


def outcomes(study) -> dict[str, Any]:
    return {record.key: (record.state, record.parameters, record.scores_by_epoch) for record in study.records()}


def weights(study, key: str) -> dict[str, str]:
    """File of a trial's checkpoint to its SHA-256."""
    return json.loads((study.folder.trial(key).best / "tutti.json").read_text(encoding="utf8"))["files"]


def runs_of(folder: StudyFolder) -> int:
    return len(list((folder.ray / "pools").glob("pool-*")))


def test_a_trial_gives_the_same_weights_after_others_in_its_process_and_in_one_of_its_own(make_study, tutti, tmp_path):
    changes = {
        "search_space": SPACE,
        "search": {"trials": 3, "sampler": "random", "scheduler": "none", "seed": 3},
        "resources": {"concurrent_trials": 1},
    }
    warm = make_study(tmp_path / "warm", **changes)
    changes["resources"] = {**changes["resources"], "isolation": "isolated"}
    isolated = make_study(tmp_path / "isolated", **changes)
    for study in (warm, isolated):
        tutti("tune", study.file)
    assert outcomes(warm) == outcomes(isolated)
    assert {state for state, _, _ in outcomes(warm).values()} == {TrialState.FINISHED}
    for key in outcomes(warm):
        assert weights(warm, key) == weights(isolated, key)
    assert runs_of(warm.folder) == 1
    assert runs_of(isolated.folder) == 3


@pytest.mark.strain
def test_the_memory_of_a_worker_does_not_grow_over_50_trials(make_study, tutti_command, tmp_path):
    """Half of them are stopped in mid-training, where a traceback might hold on to model and optimizer."""
    study = make_study(
        tmp_path,
        training__num_train_epochs=2,
        search={"trials": 50, "scheduler": "asha"},
        resources={"concurrent_trials": 1, "isolation": "warm"},
    )
    running = tutti_command("tune", study.file)
    held: dict[int, int] = {}
    while running.process.poll() is None:
        ended = sum(record.state is not TrialState.RUNNING for record in study.records())
        for worker in running.descendants(WORKER):
            held[ended] = worker.memory_info().rss
        time.sleep(0.2)
    assert running.wait() == 0, running.output
    states = [record.state for record in study.records()]
    assert len(states) == 50
    assert states.count(TrialState.STOPPED) > 10
    early = max(rss for ended, rss in held.items() if 5 <= ended <= 12)
    late = max(rss for ended, rss in held.items() if ended >= 40)
    assert late - early < 40 * 2**20  # 1 MiB a trial
    assert runs_of(study.folder) == 1  # no worker was replaced on the way
    assert running.left_behind() == []


def test_a_pool_that_loses_its_host_or_a_worker_is_replaced_and_no_trial_is_lost(make_study, tutti_command, tmp_path):
    """Of trials with one worker, tests/chaos kills that."""
    study = make_study(
        tmp_path,
        training__num_train_epochs=15,
        search={"trials": 3, "scheduler": "none"},
        resources={"concurrent_trials": 1, "workers": 2},  # all CPUs, which the lost pool must free
    )
    running = tutti_command("tune", study.file)
    for process, count, key in (("ray::PoolHost", 1, "t0001"), (WORKER, 2, "t0002")):
        running.wait_for(lambda key=key: max(study.resume_epochs(key), default=0) >= 3, what=f"{key} under way")
        victims = running.descendants(process)
        assert len(victims) == count
        victims[-1].kill()
    assert running.wait() == 0, running.output
    assert [record.state for record in study.records()] == [TrialState.FINISHED] * 3
    for key in ("t0000", "t0001", "t0002"):
        epochs = study.reported_epochs(key)
        assert epochs == sorted(set(epochs))
    assert runs_of(study.folder) == 3
    assert running.left_behind() == []


def epoch_report(epoch: int, score: float, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, "score": score, "task_scores": {"a": score}, "metrics": {}, "at": 0.0, "host": "", **more}


def fails_in_many_ways(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
    """Trials that train nothing: t0000 fits with half its batch and t0001 never does; t0002 raises what may pass, once,
    and t0003 what comes again whenever it is tried.
    """
    file = folder.path / "tries"
    tries = file.read_text().splitlines() if file.exists() else []
    file.write_text("\n".join([*tries, f"{trial['key']} {'halved' if trial['resumption'].halved else 'whole'}"]))
    if trial["number"] == 0 and not trial["resumption"].halved:
        bytearray(1 << 62)
    if trial["number"] == 1:
        torch.empty(1 << 62, dtype=torch.uint8)
    if trial["number"] == 2 and "t0002 whole" not in tries:
        raise OSError("the disk is away")
    if trial["number"] == 3:
        raise KeyError("what is not there")
    if not tell(epoch_report(1, 0.5)):
        raise Stopped
    tell(epoch_report(1, 0.5, final=True, best_epoch=1, best_score=0.5, best_task_scores={"a": 0.5}))


def test_a_trial_out_of_memory_is_tried_again_with_half_its_batch(run_alone, tmp_path):
    done, folder = run_alone(tmp_path, fails_in_many_ways, trials=4)
    finished, failed = TrialState.FINISHED, TrialState.FAILED
    assert [trial.state for trial in done.trials] == [finished, failed, finished, failed]
    assert done.trials[1].reason.startswith("out of memory, with half the batch too: worker 0: RuntimeError: ")
    assert "can't allocate memory" in done.trials[1].reason
    reason = r"worker 0: KeyError: 'what is not there' in fails_in_many_ways \(orchestration/test_pools.py, line \d+\)"
    assert re.fullmatch(reason, done.trials[3].reason)
    tries = ["t0000 whole", "t0000 halved", "t0001 whole", "t0001 halved", *["t0002 whole"] * 2, "t0003 whole"]
    assert (folder.path / "tries").read_text().splitlines() == tries
    stored = optuna.load_study(study_name="s", storage=folder.optuna_url).trials
    assert [trial.constraints for trial in stored] == [{}, {"memory": 1.0}, {}, {}]
    assert "MemoryError" in stored[0].user_attrs["resumption"]["halved"]


def scores_hidden_gpus(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
    score = float(os.environ["CUDA_VISIBLE_DEVICES"] == "")
    tell(epoch_report(1, score, final=True, best_epoch=1, best_score=score, best_task_scores={"a": score}))


@pytest.mark.parametrize("isolation", ["warm", "isolated"])
def test_workers_that_request_no_gpu_see_none(run_alone, tmp_path, isolation):
    done, _ = run_alone(tmp_path, scores_hidden_gpus, trials=1, isolation=isolation)
    assert [trial.score for trial in done.trials] == [1.0]


def test_tune_itself_saves_nothing_at_the_end_of_a_trial(run_alone, tmp_path):
    done, folder = run_alone(tmp_path, scores_hidden_gpus, trials=1)
    assert [trial.state for trial in done.trials] == [TrialState.FINISHED]
    assert (folder.ray / "tune").is_dir()
    assert list((folder.ray / "tune").rglob("checkpoint_*")) == []


def test_a_study_whose_workers_cannot_start_ends_with_the_reason_and_fails_no_trial(run_alone, tmp_path):
    folder = StudyFolder(tmp_path / "s")
    folder.ray.mkdir(parents=True)
    (folder.ray / "pools").write_text("where a folder has to be")
    with pytest.raises(ClusterError, match="the study's workers must start and stay"):
        run_alone(tmp_path, fails_in_many_ways)
    store = StudyStore.load(folder.optuna_url, name="s")
    assert {record.state for record in store.records()} == {TrialState.RUNNING}  # to go on with
    store.close()


def holds_the_database(study: StudyConfig, folder: StudyFolder, trial: dict[str, Any], *, tell: Any) -> None:
    """Trials that train nothing: t0001 keeps everybody else from the database."""
    if not tell(epoch_report(1, 0.5)):
        raise Stopped
    if trial["number"] == 1:
        with closing(sqlite3.connect(folder.path / "optuna.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            tell(epoch_report(2, 0.6))
            time.sleep(5)
        raise Stopped
    tell(epoch_report(2, 0.6, final=True, best_epoch=2, best_score=0.6, best_task_scores={"a": 0.6}))


class Starved:
    """A tuner whose own actor Ray has killed, as Tune tells of it."""

    def fit(self) -> None:
        raise RuntimeError("Caught unexpected exception") from OutOfMemoryError("8 worker(s) were killed")


def test_a_study_that_ray_killed_for_its_node_s_memory_ends_with_one_sentence(run_alone, tmp_path, monkeypatch):
    monkeypatch.setattr(study_module, "_tuner", lambda *_, **__: Starved())
    with pytest.raises(ClusterError, match=r"the memory of a node must be enough .* go on with --resume"):
        run_alone(tmp_path, None)


def test_a_study_whose_database_stays_locked_ends_with_one_error_and_loses_no_trial(run_alone, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.5)
    with pytest.raises(StorageError, match=r"optuna\.db .*database is locked; end what holds it .*--resume"):
        run_alone(tmp_path, holds_the_database)
    store = StudyStore.load(StudyFolder(tmp_path / "s").optuna_url, name="s")
    states = [record.state for record in store.records()]
    store.close()
    assert states == [TrialState.FINISHED, TrialState.RUNNING]  # to go on with
