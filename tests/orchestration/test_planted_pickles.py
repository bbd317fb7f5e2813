"""A pickle planted in any file that a resumed study reads is never executed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bad_input_run import Templates, inside, make_templates, run

from tutti.tracking.queued import QueuedTracker

STATE = "trials/t0000/resume/stage-0-step-4"
TORCH_FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors")
STATE_FILES = (*TORCH_FILES, "progress.json", "trainer_state.json")
BEST = "trials/t0000/best"
BEST_FILES = (
    *("model.safetensors", "pytorch_model.bin", "heads.safetensors"),
    *("config.json", "tokenizer.json", "tokenizer_config.json"),
)
JSON_FILES = (f"{STATE}/manifest.json", f"{BEST}/tutti.json")


class Harm:
    """What it is unpickled to is a folder that was not there."""

    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self._marker,)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return make_templates(tmp_path_factory.mktemp("pickles") / "templates")


@pytest.fixture
def folder(templates: Templates, tmp_path: Path) -> Path:
    return shutil.copytree(templates.finished, tmp_path / "case", symlinks=True)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed"


def plant(file: Path, marker: Path, *, as_torch: bool = False) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if as_torch:
        torch.save({"state": Harm(marker)}, file)
    else:
        file.write_bytes(pickle.dumps(Harm(marker)))


@pytest.mark.parametrize("as_torch", [False, True])
def test_a_planted_pickle_does_harm_where_it_is_unpickled(tmp_path, marker, as_torch):
    plant(tmp_path / "file", marker, as_torch=as_torch)
    if as_torch:
        torch.load(tmp_path / "file", weights_only=False)
    else:
        pickle.loads((tmp_path / "file").read_bytes())
    assert marker.is_dir()


RAY = [  # as Tune and Train name what they leave
    "ray/tune/tuner.pkl",
    "ray/tune/trainable.pkl",
    "ray/tune/experiment_state-2026-11-21_19-26-11.json",
    "ray/tune/search_gen_state-2026-11-21_19-26-11.json",
    "ray/pools/pool-0-1795289178173414877/checkpoint_manager_snapshot.json",
]
GROUPS = {
    "the stored study": ["study.json", "owner"],
    "the trials": ["optuna.db", "optuna.db.lock"],
    "the list of prepared parts": ["data/prepared.json", "data/backbone.json"],
    "the prepared rows": ["data/mood/*.parquet"],
    "the encoded texts": ["../.encoded/*/*"],
    "the tracker's files": ["mlflow.db", "tracking.jsonl", "tracking.jsonl.position", "study.lock"],
    "the bank": ["bank/t0000/*/record.json", "bank/t0000/*/predictions/mood/*"],
    "Ray's own": RAY,
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_planted_pickle_in_a_study_s_own_files_is_not_executed(folder, marker, group, monkeypatch):
    close = QueuedTracker.close  # which would try for a minute what is no database
    monkeypatch.setattr(QueuedTracker, "close", lambda tracker, timeout: close(tracker, timeout=1.0))
    study = folder / "studies" / "moods"
    for pattern in GROUPS[group]:
        for file in [*study.glob(pattern)] or [study / pattern]:
            plant(file, marker)
    for command in ("tune study.yaml --resume", "doctor studies/moods", "ensemble studies/moods"):
        assert "Traceback" not in run(folder, command).err
    assert not marker.exists()


@pytest.mark.ray
@pytest.mark.slow
def test_a_planted_pickle_in_what_tune_and_train_left_is_not_executed_by_a_run_that_trains(folder, marker, tutti):
    study = folder / "studies" / "moods"
    for name in RAY:
        plant(study / name, marker)
    tutti("tune", "study.yaml", "--resume", "--trials", "+1", cwd=folder, env={"HF_HUB_OFFLINE": "1"})
    assert (study / "trials" / "t0001" / "best" / "tutti.json").is_file()
    assert not marker.exists()
    own = {file.relative_to(study).as_posix() for file in (study / "ray").rglob("*.pkl")}
    assert own <= set(RAY), "plant it there too"


@pytest.mark.parametrize(
    ("name", "as_torch"),
    [
        *((name, False) for name in STATE_FILES),
        *((name, True) for name in TORCH_FILES),
    ],
)
def test_a_planted_pickle_in_what_a_trial_goes_on_from_is_not_executed(folder, marker, name, as_torch):
    """Its hash is mended too, as somebody would who plants it."""
    state = folder / "studies" / "moods" / STATE
    plant(state / name, marker, as_torch=as_torch)
    go_on(state, name)
    with pytest.raises(Exception, match=r"(?i)weights_only|pickle|header|decode|expecting") as refused:
        train(folder)
    assert not isinstance(refused.value, AssertionError)
    assert not marker.exists()


@pytest.mark.parametrize("name", BEST_FILES)
def test_a_planted_pickle_in_a_checkpoint_is_not_executed(folder, marker, name):
    best = folder / "studies" / "moods" / BEST
    if name == "pytorch_model.bin":
        (best / "model.safetensors").unlink()
    plant(best / name, marker, as_torch=name.endswith("bin"))
    metadata = json.loads((best / "tutti.json").read_text())
    metadata["files"] = {file.name: sha256(file) for file in best.iterdir() if file.name != "tutti.json"}
    (best / "tutti.json").write_text(json.dumps(metadata))
    with contextlib.suppress(Exception):  # what transformers does not need, it does not read
        train(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", JSON_FILES)
def test_a_planted_pickle_where_json_belongs_is_not_executed(folder, marker, name):
    plant(folder / "studies" / "moods" / name, marker)
    with contextlib.suppress(Exception):
        train(folder)
    assert not marker.exists()


def test_a_pickle_is_planted_in_every_file_that_a_study_has(folder):
    study = (folder / "studies" / "moods").resolve()
    planted = {file.resolve() for patterns in GROUPS.values() for pattern in patterns for file in study.glob(pattern)}
    planted |= {study / STATE / name for name in STATE_FILES} | {study / BEST / name for name in BEST_FILES}
    planted |= {study / name for name in JSON_FILES}
    files = {file for place in (study, study.parent / ".encoded") for file in place.rglob("*") if file.is_file()}
    assert files <= planted, "plant it there too"


def test_a_state_that_nobody_has_changed_is_gone_on_from(folder):
    """So that the tests above fail for what they plant."""
    go_on(folder / "studies" / "moods" / STATE, "optimizer.pt")
    assert train(folder) == [1, 2]  # its first epoch is the state's


def go_on(state: Path, changed: str) -> None:
    """Makes a state one that is gone on from in its stage, with the hash of a file that was changed."""
    manifest = json.loads((state / "manifest.json").read_text())
    manifest["files"][changed] = sha256(state / changed)
    manifest["position"]["done"] = False
    (state / "manifest.json").write_text(json.dumps(manifest))


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def train(folder: Path) -> list[int]:
    """What a worker does with a trial that was cut off; the epochs that it reported."""
    from tutti.orchestration.worker.build import fine_tune_once
    from tutti.orchestration.worker.trial_listener import TrialListener
    from tutti.training import EpochReport
    from tutti.workflows import stores

    class Recorder(TrialListener):
        def on_epoch(self, report: EpochReport) -> None:
            epochs.append(report.epoch)

    epochs: list[int] = []
    with inside(folder):
        # An epoch more than the state has: only what is trained on from it reads it whole.
        study, place = stores.read_study_file(Path("study.yaml"), overrides=["training.num_train_epochs=2"])
        parameters = {"learning_rate": 1e-4}
        fine_tune_once(
            study,
            place,
            key="t0000",
            number=0,
            parameters=parameters,
            listener=Recorder(),
            main=True,
            smaller_batches=False,
        )
        return epochs
