"""A study on object storage: what its driver stores, and a trial that goes on on another node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tutti import mirror
from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.copies import address_of
from tutti.errors import StudyError
from tutti.objects import Objects
from tutti.orchestration.before.rows import prepare_rows
from tutti.orchestration.driver.study import clear_ended
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.nodes import probe_of
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.records import TrialRecord, TrialState
from tutti.workflows import stores
from tutti.workflows.preparation import keep_files

POSTGRES = "postgresql://me@127.0.0.1:1/optuna"


class _Cut(TrialListener):
    """Notes the epochs that a trial reports, and cuts it off after some of them."""

    def __init__(self, after: int = 99) -> None:
        self.after, self.epochs = after, list[int]()

    def on_epoch(self, report: Any) -> None:
        self.epochs.append(report.epoch)
        if len(self.epochs) == self.after:
            raise KeyboardInterrupt


@pytest.fixture
def opened(s3, make_study, monkeypatch, tmp_path):
    """Opens the tiny study on a machine with a cache of its own."""

    def opened(machine: str, **changes: Any):
        monkeypatch.setenv("TUTTI_CACHE", str(tmp_path / machine))
        given = {"storage": {"path": s3.address, "database": POSTGRES}, "training__num_train_epochs": 3, **changes}
        study = make_study(tmp_path, **given)
        return stores.read_study_file(study.file, overrides=[])

    return opened


def _train(study: Any, folder: StudyFolder, listener: TrialListener, *, release: bool = True) -> None:
    point = {"learning_rate": 5e-3}
    with probe_of(folder) as probe, mirror.held(folder.trial("t0000").path, release=release):
        assert probe.is_seen()
        common = {"key": "t0000", "number": 0, "parameters": point, "main": True, "smaller_batches": False}
        fine_tune_once(study, folder, listener=listener, **common)


def test_a_trial_goes_on_on_another_node_as_if_it_had_never_been_cut_off(opened, s3):
    study, here = opened("here")
    study = keep_files(study, here)
    prepare_rows(study, here)
    mirror.push(here.path)
    mirror.push(here.backbones)
    s3.fail(0.05)
    with pytest.raises(KeyboardInterrupt):
        _train(study, here, _Cut(after=2))
    assert not here.trial("t0000").path.exists()  # the node keeps nothing of it

    _, there = opened("there")
    mirror.pull(there.path)
    resumed = _Cut()
    _train(keep_files(study, there), there, resumed, release=False)
    assert resumed.epochs == [2, 3]  # the second is told again, since its report may have been lost
    weights = load_file(there.trial("t0000").best / "model.safetensors")

    other = StudyFolder(there.path.with_name("undisturbed"))
    prepare_rows(study, other)
    mirror.push(other.path)
    _train(study, other, _Cut(), release=False)
    expected = load_file(other.trial("t0000").best / "model.safetensors")
    assert all((weights[name] == expected[name]).all() for name in expected)

    mirror.pull(here.path)
    assert [record.key for record in Bank(here.bank).records()] == ["t0000"]


def test_states_and_votes_of_trials_that_ended_are_removed_though_another_node_wrote_them(opened, s3):
    _, here = opened("here")
    for key in ("t0000", "t0001", "t0002"):
        for folder in (here.trial(key).best, here.trial(key).resume / "stage-0-step-1", here.bank / key / "0001-ab"):
            folder.mkdir(parents=True)
            (folder / "file").write_text(key)
    mirror.push(here.path)
    mirror.push(here.trials)
    states = {"t0000": TrialState.FINISHED, "t0001": TrialState.STOPPED, "t0002": TrialState.RUNNING}
    records = [TrialRecord(key, number, state, None, {}, {}) for number, (key, state) in enumerate(states.items())]
    clear_ended(opened("there")[1], records)
    left = Objects(f"{s3.address}/tiny").names()
    assert {name.split("/")[1] for name in left if "/resume/" in name} == {"t0002"}
    assert {name.split("/")[1] for name in left if name.startswith("bank/") and name.endswith("file")} == {
        "t0000",
        "t0002",
    }


def test_stores_that_other_machines_cannot_see_are_refused(opened):
    study, folder = opened("here", storage__max_gigabytes=1.0)
    alone = study.storage.model_copy(update={"database": None})
    with pytest.raises(StudyError) as caught:
        stores.check_stores(study.model_copy(update={"storage": alone}), folder)
    told = [fault.what for fault in caught.value.faults]
    assert told == ["storage.database", "tracking.uri", "storage.max_gigabytes"]
    assert f"name a PostgreSQL server where the study is in {address_of(folder.path)}" in str(caught.value)


def test_a_stored_study_names_the_files_of_the_working_copy_that_it_is_read_from(opened, tmp_path):
    from tutti.config.load import dump_study, parse_study

    study, here = opened("here")
    here.path.mkdir(parents=True)
    here.study_file.write_text(dump_study(keep_files(study, here)))
    mirror.push(here.path)
    mirror.push(here.backbones)
    there = opened("there")[1]
    mirror.pull(there.path)
    mirror.pull(there.backbones)
    read = parse_study(there.study_file)
    assert Path(read.backbone).is_relative_to(tmp_path / "there")
    assert (Path(read.backbone) / "config.json").is_file()
    assert json.loads(Path(read.ensemble.recipe).read_text())["members"] == {"top": 2}
    assert read.storage.address == study.storage.address


def test_a_checkpoint_comes_with_the_backbone_below_its_adapter_wherever_its_study_is_now(opened):
    from tutti.modeling.checkpoint import read_metadata
    from tutti.orchestration.after.weights import bring

    study, here = opened("here", training__adapter="lora")
    study = keep_files(study, here)
    prepare_rows(study, here)
    here.study_file.write_text("{}")
    for folder in (here.path, here.backbones):
        mirror.push(folder)
    _train(study, here, _Cut())
    _, there = opened("there", training__adapter="lora")
    mirror.pull(there.path)
    here.path.parents[3].rename(here.path.parents[3].with_name("gone"))  # the cache of the first machine
    best = there.trial("t0000").best
    bring(best)
    base = read_metadata(best).base
    assert base is not None
    assert Path(base.backbone).is_relative_to(there.path)
    assert (Path(base.backbone) / "model.safetensors").is_file()
