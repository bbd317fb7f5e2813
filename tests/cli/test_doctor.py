"""``tutti doctor`` finds each thing that a crash can leave of a study, mends it, and then finds nothing."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import optuna
import pytest
from bad_input_run import Result, run
from doctor_faults import (
    CUT_OFF,
    FAULTS,
    pruning_cut_off,
    study_still_running,
    temporary_file,
    temporary_folder,
)
from stored_study import NONE, StoredStudy, make_stored_study

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.orchestration.upkeep.doctor import _predictions
from tutti.orchestration.upkeep.lock import study_lock
from tutti.records import CheckpointRecord, Repair, TrialRecord, TrialState
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.workflows import stores

HEALTHY = "The study moods is healthy."


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> StoredStudy:
    return make_stored_study(tmp_path_factory.mktemp("doctor") / "moods")


@pytest.fixture
def study(template: StoredStudy, tmp_path: Path) -> StoredStudy:
    return template.copy(tmp_path / "moods")


def doctor(study: StoredStudy, *options: str, code: int = 0) -> Result:
    return run(study.folder.path.parent, " ".join(["doctor", "moods", *options]), code=code, env=PLACE)


PLACE = {"TUTTI_STUDIES": "."}


def contents(path: Path) -> Mapping[str, bytes]:
    """Every file with its content, except the lock and SQLite's side files."""
    files = (file for file in path.rglob("*") if file.is_file() and file.suffix not in (".lock", ".db-wal", ".db-shm"))
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def lacking(output: str, lines: Iterable[str], *, becomes: str) -> list[str]:
    """The lines that the output lacks; each line is a thing, what was found, and what becomes of it."""
    wanted = []
    for line in lines:
        found, done = map(re.escape, line.rsplit("; ", 1))
        wanted.append(f"{found}; {becomes}{done}".replace(r"\*", ".{8}"))
    return [line for line in wanted if not re.search(line, output)]


@pytest.mark.parametrize("group", FAULTS)
def test_faults_are_shown_by_a_dry_run_then_mended_and_then_gone(study, group):
    resumable = contents(study.folder.trial("t0002").path)
    for plant in FAULTS[group]:
        plant(study)
    before = contents(study.folder.path)
    dry = doctor(study, "--dry-run").out
    assert lacking(dry, FAULTS[group].values(), becomes="to be ") == [], dry
    assert contents(study.folder.path) == before
    result = doctor(study).out
    assert lacking(result, FAULTS[group].values(), becomes="") == [], result
    assert re.search(r"Study moods: \d+ findings mended, 0 left\.", result)
    assert doctor(study).out.splitlines() == [CUT_OFF, HEALTHY]
    assert contents(study.folder.trial("t0002").path) == resumable


def test_a_trial_that_was_being_asked_for_is_one_that_goes_on(study):
    storage = optuna.storages.RDBStorage(study.folder.optuna_url)
    optuna.load_study(study_name="moods", storage=storage).ask()
    storage.engine.dispose()  # the last connection to close writes the file
    before = contents(study.folder.path)
    assert doctor(study).out.splitlines() == [CUT_OFF, CUT_OFF.replace("t0002", "t0003"), HEALTHY]
    assert contents(study.folder.path) == before


def test_after_it_the_stores_tell_the_truth_and_a_report_has_arrived(study):
    for plant in FAULTS["stores"]:
        plant(study)
    doctor(study)
    store = stores.load_store(study.config, study.folder)
    states = [TrialState.FINISHED, TrialState.STOPPED, TrialState.RUNNING]
    assert [record.state for record in store.records()] == states
    store.close()
    assert study.states() == {
        "": ("KILLED", "interrupted"),
        "t0000": ("FINISHED", "finished"),
        "t0001": ("FINISHED", "stopped early"),
        "t0002": ("KILLED", "interrupted"),
        "t0002/fold-0": ("KILLED", "interrupted"),
    }
    runs = {run.data.tags.get("tutti.trial"): run.data.metrics for run in study.runs()}
    assert runs["t0002"]["late"] == 1.0
    assert (runs["t0001"]["score"], runs["t0001"]["score/mood"]) == (0.8, 0.8)  # as its trial has them


def test_a_complete_study_s_run_is_told_as_finished_with_the_best_score(study):
    store = stores.load_store(study.config, study.folder, mend=True)
    store.finish("t0002", state=TrialState.STOPPED)
    store.close()
    study_still_running(study)
    doctor(study)
    assert doctor(study).out.splitlines() == [HEALTHY]
    [parent] = [run for run in study.runs() if "tutti.trial" not in run.data.tags]
    assert (parent.info.status, parent.data.metrics["best_score"]) == ("FINISHED", 0.9)


def test_the_bank_is_told_of_weights_whose_pruning_was_cut_off(study):
    pruning_cut_off(study)
    assert "bank/t0000: it names weights that were pruned; put right" in doctor(study).out
    [record] = Bank(study.folder.bank).records()
    assert (record.key, record.path) == ("t0000", None)
    assert doctor(study).out.splitlines() == [CUT_OFF, HEALTHY]


def test_a_run_of_somebody_s_own_is_not_touched(study):
    client, experiment = study.tracker()._client, study.runs()[0].info.experiment_id
    mine = client.create_run(experiment, run_name="mine")
    assert doctor(study).out.splitlines() == [CUT_OFF, HEALTHY]
    assert client.get_run(mine.info.run_id).info.status == "RUNNING"


def test_runs_of_another_study_of_the_name_are_not_touched(study):
    theirs = MlflowTracker(study.folder.mlflow_uri, experiment="moods", owner="they")
    theirs.start_study(**NONE, files=[])
    for key in ("t0000", "t0000/fold-0", "t0007"):
        theirs.start_trial(
            key, number=0, parameters={}, tags={"tutti.checkpoint": str(study.folder.trial("t0007").path)}
        )
    before = {run.info.run_id: (run.info.status, run.data.tags) for run in study.runs()}
    assert doctor(study).out.splitlines() == [CUT_OFF, HEALTHY]
    assert {run.info.run_id: (run.info.status, run.data.tags) for run in study.runs()} == before


def test_a_study_that_a_process_holds_is_refused_and_not_looked_at(study):
    temporary_file(study)
    with study_lock(study.folder):
        result = doctor(study, code=2)
    assert "the study 'moods' must be run by one process at a time" in result.message
    assert result.out == ""
    assert (study.folder.path / ".study.json.ab_12xyz.tmp").is_file()


def test_a_tracking_store_that_is_away_is_said_and_all_else_is_mended(study):
    temporary_file(study)
    document = json.loads(study.folder.study_file.read_text())
    document["tracking"] = {"uri": "http://127.0.0.1:9"}
    study.folder.study_file.write_text(json.dumps(document))
    result = doctor(study, code=1)
    assert "MLflow was not checked: the MLflow store http://127.0.0.1:9 must be reachable; got" in result.out
    assert not (study.folder.path / ".study.json.ab_12xyz.tmp").exists()


def test_what_a_process_that_holds_no_lock_may_be_writing_now_is_left(study):
    young = study.folder.path / "ensembles" / ".vote.abcdefgh.tmp"
    predicting = study.folder.soups / ".soup.abcdefgh.tmp"
    dead = study.folder.soups / ".mixed.abcdefgh.tmp"
    for place, seconds in {young: 0, predicting: 36000, dead: 86401}.items():
        place.mkdir(parents=True)
        os.utime(place, (time.time() - seconds,) * 2)
    retired = study.folder.soups / ".old.abcdefgh.old"
    (retired / "old").mkdir(parents=True)
    for place in (retired / "old", retired):
        os.utime(place, (time.time() - 601,) * 2)
    in_the_bank = study.folder.bank / ".t0000.abcdefgh.tmp"  # only trials write there
    in_the_bank.touch()
    temporary_file(study)
    temporary_folder(study)
    result = doctor(study, code=0).out
    for place in (young, predicting):
        assert place.is_dir()
        assert place.name not in result
    assert not dead.exists()
    assert not in_the_bank.exists()
    assert (study.folder.soups / "old").is_dir()
    assert not (study.folder.path / ".study.json.ab_12xyz.tmp").exists()
    assert not list(study.folder.trial("t0000").path.glob(".*"))


def test_what_a_killed_encoding_left_in_the_cache_of_all_studies_is_removed_a_day_later(study):
    cache = study.folder.encoded
    ages = {"kept": 90000, ".dead.abcdefgh.tmp": 86401, ".growing.abcdefgh.tmp": 0, ".slow.ab_12xyz.tmp": 36000}
    for name, seconds in ages.items():
        (cache / name).mkdir(parents=True)
        (cache / name / "encoded.arrow").write_bytes(b"rows")
        os.utime(cache / name / "encoded.arrow", (time.time() - seconds,) * 2)
        os.utime(cache / name, (time.time() - 90000,) * 2)
    result = doctor(study, code=0).out
    assert ".encoded/.dead.abcdefgh.tmp: what was being written by a process that died; removed" in result
    assert {path.name for path in cache.iterdir()} == ages.keys() - {".dead.abcdefgh.tmp"}


def test_a_cache_that_leads_elsewhere_is_not_touched(study, tmp_path):
    dead = tmp_path / "elsewhere" / ".dead.abcdefgh.tmp"
    dead.mkdir(parents=True)
    os.utime(dead, (time.time() - 90000,) * 2)
    study.folder.encoded.symlink_to(dead.parent)
    assert doctor(study).out.splitlines() == [CUT_OFF, HEALTHY]
    assert dead.is_dir()


def test_a_study_that_was_never_tracked_gets_no_store(study):
    (study.folder.path / "mlflow.db").unlink()
    assert doctor(study).out.splitlines() == [CUT_OFF, HEALTHY]
    assert not (study.folder.path / "mlflow.db").exists()


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.STOPPED])
def test_predictions_of_a_trial_that_did_not_finish_are_removed(tmp_path: Path, state: TrialState) -> None:
    folder, trial = StudyFolder(tmp_path), TrialRecord("t0000", 0, state)
    Bank(folder.bank).put(CheckpointRecord("t0000", 0, 1, 0.5, {}, None), {})
    [finding] = _predictions(folder, [trial])
    assert isinstance(finding.remedy, Repair)
    finding.remedy.run()
    assert Bank(folder.bank).records() == [*_predictions(folder, [trial])] == []


def test_states_that_cannot_be_removed_are_left_and_said(study, monkeypatch):
    def refused(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    state = study.folder.trial("t0000").resume
    state.mkdir(parents=True)
    monkeypatch.setattr("tutti.orchestration.upkeep.doctor.rmtree", refused)
    result = doctor(study, code=1)
    assert "0 findings mended, 1 left" in result.out
    assert state.is_dir()
