"""``tutti doctor`` finds each thing that a crash can leave of a study, mends it, and then finds nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import optuna
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers serve other files too, so they are no plugin

from bad_input_run import Result, run
from kept_study import NONE, Kept, make_study, put_checkpoint, put_predictions, put_state

from tutti.bank.bank import Bank
from tutti.cli import stores
from tutti.orchestration.study import study_lock
from tutti.records import TrialState
from tutti.tracking.mlflow_tracker import MlflowTracker
from tutti.tracking.spool import Spool

HEALTHY = "The study moods is healthy."


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return make_study(tmp_path_factory.mktemp("doctor") / "moods")


@pytest.fixture
def kept(template: Kept, tmp_path: Path) -> Kept:
    return template.copy(tmp_path / "moods")


def doctor(kept: Kept, *options: str, code: int = 0) -> Result:
    return run(kept.folder.path.parent, " ".join(["doctor", "moods", *options]), code=code, env=PLACE)


PLACE = {"TUTTI_STUDIES": "."}


def everything(path: Path) -> Mapping[str, bytes]:
    """Every file with its content, except the lock and SQLite's side files."""
    kept = (file for file in path.rglob("*") if file.is_file() and file.suffix not in (".lock", ".db-wal", ".db-shm"))
    return {str(file.relative_to(path)): file.read_bytes() for file in kept}


def run_of_an_ended_trial(kept: Kept) -> None:
    kept.tracker().start_trial("t0001", number=1, **NONE)


def run_of_a_trial_cut_off(kept: Kept) -> None:
    tracker = kept.tracker()
    tracker.start_trial("t0002", number=2, **NONE)
    tracker.start_trial("t0002/fold-0", number=2, **NONE)


def study_still_running(kept: Kept) -> None:
    kept.tracker().start_study(**NONE, files=[])


def run_of_no_trial(kept: Kept) -> None:
    place = {"tutti.checkpoint": str(kept.folder.trial("t0007") / "best")}
    kept.tracker().start_trial("t0007", number=7, parameters={}, tags=place)


def second_run(kept: Kept) -> None:
    """As made by two drivers that look for it at the same time."""
    first = next(run for run in kept.runs() if run.data.tags.get("tutti.trial") == "t0000")
    client = kept.tracker()._client
    tags = {name: value for name, value in first.data.tags.items() if name.startswith(("tutti.", "mlflow.parent"))}
    client.create_run(first.info.experiment_id, first.info.start_time + 1, tags, "t0000")


def run_below_another_study(kept: Kept) -> None:
    run = next(run for run in kept.runs() if run.data.tags.get("tutti.trial") == "t0000")
    kept.tracker()._client.set_tag(run.info.run_id, "mlflow.parentRunId", "0" * 32)


def run_deleted(kept: Kept) -> None:
    """In MLflow, by hand."""
    _delete(kept, "t0000")


def run_deleted_for_good(kept: Kept) -> None:
    """As `mlflow gc` does, which leaves a fold's run."""
    tracker = kept.tracker()
    tracker.start_trial("t0001/fold-0", number=1, **NONE)
    tracker.end_trial("t0001/fold-0", state=TrialState.STOPPED, reason=None, metrics={}, tags={})
    kept.tracker()._client._tracking_client.store._hard_delete_run(_delete(kept, "t0001"))


def _delete(kept: Kept, key: str) -> str:
    [run] = [run for run in kept.runs() if run.data.tags.get("tutti.trial") == key]
    kept.tracker()._client.delete_run(run.info.run_id)
    return str(run.info.run_id)


def pruning_cut_off(kept: Kept) -> None:
    """As left by a kill before the weights are removed and the bank is updated."""
    best = kept.folder.trial("t0000") / "best"
    (best / "tutti.json").rename(best.with_name("best.pruned.json"))


def reports_not_sent(kept: Kept) -> None:
    spool = Spool(kept.folder.path / "tracking.jsonl")
    spool.append({"call": "log_metrics", "key": "t0002", "metrics": {"late": 1.0}, "step": 1, "at": 5.0})


def torn_report(kept: Kept) -> None:
    with (kept.folder.path / "tracking.jsonl").open("a") as file:
        file.write('{"call": "log_me')


def half_checkpoint(kept: Kept) -> None:
    (kept.folder.trial("t0001") / "best" / "tutti.json").unlink()


def half_checkpoint_of_a_fold(kept: Kept) -> None:
    put_checkpoint(kept.folder.trial("t0001") / "fold-1" / "best", number=1, score=0.5)
    (kept.folder.trial("t0001") / "fold-1" / "best" / "tutti.json").unlink()


def half_predictions(kept: Kept) -> None:
    put_predictions(kept, 2, score=0.7)
    [entry] = (kept.folder.bank / "t0002").iterdir()
    (entry / "record.json").unlink()


def replaced_predictions(kept: Kept) -> None:
    [entry] = (kept.folder.bank / "t0000").iterdir()
    (entry.parent / "0000-00000000").mkdir()
    entry.rename(entry.parent / "0001-00000000")
    put_predictions(kept, 0, score=0.9)
    last = max((kept.folder.bank / "t0000").iterdir())
    (entry.parent / "0001-00000000" / "predictions").mkdir(parents=True)
    (entry.parent / "0000-00000000").rmdir()
    assert last.name.startswith("0002")


def predictions_of_a_stopped_trial(kept: Kept) -> None:
    put_predictions(kept, 1, score=0.6)


def temporary_file(kept: Kept) -> None:
    stray = kept.folder.path / ".study.json.ab_12xyz.tmp"
    stray.write_text("{")
    os.utime(stray, (time.time() - 601,) * 2)


def temporary_folder(kept: Kept) -> None:
    half = kept.folder.trial("t0000") / ".best.abcdefgh.tmp"
    half.mkdir()
    (half / "model.safetensors").write_text("half")


def retired_folder(kept: Kept) -> None:
    """As left by a kill between the two renames that replace a folder."""
    best = kept.folder.trial("t0002") / "best"
    retired = best.with_name(".best.abcdefgh.old")
    retired.mkdir()
    best.rename(retired / "best")


def states_of_an_ended_trial(kept: Kept) -> None:
    put_state(kept, "t0001")


CUT_OFF = "trial t0002: cut off, and goes on with `tutti tune STUDY.yaml --resume`, and --set as before"
FAULTS: dict[str, dict[Callable[[Kept], None], str]] = {
    "stores": {
        run_of_an_ended_trial: "run t0001 (*): it says running, and its trial is stopped early; told as stopped early",
        run_of_a_trial_cut_off: "run t0002 (*): it says running, and its trial is interrupted; told as interrupted",
        study_still_running: "run moods (*): nobody runs the study; told as interrupted",
        run_of_no_trial: "run t0007 (*): the study has no such trial; deleted in MLflow, which can restore it",
        second_run: "run t0000 (*): another run has the same key; deleted in MLflow, which can restore it",
        reports_not_sent: "tracking.jsonl: 1 report that MLflow was not told; sent to MLflow",
    },
    "places": {
        run_below_another_study: "run t0000 (*): it stands below no run of this study; put below the study's",
        torn_report: "tracking.jsonl: 1 report that MLflow was not told; sent to MLflow",
        half_checkpoint: "trials/t0001/best: half a checkpoint: it has no tutti.json; removed",
        half_checkpoint_of_a_fold: "trials/t0001/fold-1/best: half a checkpoint: it has no tutti.json; removed",
        half_predictions: "bank/t0002/0001-*: half of a trial's predictions, or replaced ones; removed",
        replaced_predictions: "bank/t0000/0001-00000000: half of a trial's predictions, or replaced ones; removed",
        predictions_of_a_stopped_trial: "bank/t0001: it votes in ensembles, and the trial was stopped early; removed",
        temporary_file: ".study.json.ab_12xyz.tmp: what was being written by a process that died; removed",
        temporary_folder: "trials/t0000/.best.abcdefgh.tmp: what was being written by a process that died; removed",
        retired_folder: "trials/t0002/.best.abcdefgh.old: what was being replaced by a process that died; put back",
        states_of_an_ended_trial: "trials/t0001: what it would go on from, and the trial has ended; removed",
    },
    "gone": {
        run_deleted: "run t0000 (*): it was deleted, and the study has its trial; restored",
        run_deleted_for_good: "MLflow, trial t0001: it has no run; told anew, from what the study's database has of it",
        pruning_cut_off: "trials/t0000/best: half a checkpoint: it has no tutti.json; removed",
    },
}


def lacking(output: str, lines: Iterable[str], *, becomes: str) -> list[str]:
    """The lines that the output lacks; each line is a thing, what was found, and what becomes of it."""
    wanted = []
    for line in lines:
        found, done = map(re.escape, line.rsplit("; ", 1))
        wanted.append(f"{found}; {becomes}{done}".replace(r"\*", ".{8}"))
    return [line for line in wanted if not re.search(line, output)]


@pytest.mark.parametrize("group", FAULTS)
def test_faults_are_shown_by_a_dry_run_then_mended_and_then_gone(kept, group):
    resumable = everything(kept.folder.trial("t0002"))
    for plant in FAULTS[group]:
        plant(kept)
    before = everything(kept.folder.path)
    dry = doctor(kept, "--dry-run").out
    assert lacking(dry, FAULTS[group].values(), becomes="to be ") == [], dry
    assert everything(kept.folder.path) == before
    result = doctor(kept).out
    assert lacking(result, FAULTS[group].values(), becomes="") == [], result
    assert re.search(r"Study moods: \d+ findings mended, 0 left\.", result)
    assert doctor(kept).out.splitlines() == [CUT_OFF, HEALTHY]
    assert everything(kept.folder.trial("t0002")) == resumable


def test_a_study_whose_driver_was_killed_is_healthy_and_what_it_goes_on_from_is_named(kept):
    assert doctor(kept).out.splitlines() == [CUT_OFF, HEALTHY]


def test_a_trial_that_was_being_asked_for_is_one_that_goes_on(kept):
    storage = optuna.storages.RDBStorage(kept.folder.optuna_url)
    optuna.load_study(study_name="moods", storage=storage).ask()
    storage.engine.dispose()  # the last connection to close writes the file
    before = everything(kept.folder.path)
    assert doctor(kept).out.splitlines() == [CUT_OFF, CUT_OFF.replace("t0002", "t0003"), HEALTHY]
    assert everything(kept.folder.path) == before


def test_after_it_the_stores_tell_the_truth_and_a_report_has_arrived(kept):
    for plant in FAULTS["stores"]:
        plant(kept)
    doctor(kept)
    store = stores.load_store(kept.config, kept.folder)
    states = [TrialState.FINISHED, TrialState.STOPPED, TrialState.RUNNING]
    assert [record.state for record in store.records()] == states
    store.close()
    assert kept.states() == {
        "": ("KILLED", "interrupted"),
        "t0000": ("FINISHED", "finished"),
        "t0001": ("FINISHED", "stopped early"),
        "t0002": ("KILLED", "interrupted"),
        "t0002/fold-0": ("KILLED", "interrupted"),
    }
    runs = {run.data.tags.get("tutti.trial"): run.data.metrics for run in kept.runs()}
    assert runs["t0002"]["late"] == 1.0
    assert (runs["t0001"]["score"], runs["t0001"]["score/mood"]) == (0.8, 0.8)  # as its trial has them


def test_a_complete_study_s_run_is_told_as_finished_with_the_best_score(kept):
    store = stores.load_store(kept.config, kept.folder, mend=True)
    store.finish("t0002", state=TrialState.STOPPED)
    store.close()
    study_still_running(kept)
    doctor(kept)
    assert doctor(kept).out.splitlines() == [HEALTHY]
    [parent] = [run for run in kept.runs() if "tutti.trial" not in run.data.tags]
    assert (parent.info.status, parent.data.metrics["best_score"]) == ("FINISHED", 0.9)


def test_a_run_that_is_told_anew_has_its_trial_s_parameters_scores_and_end_and_says_so(kept):
    run_deleted_for_good(kept)
    doctor(kept)
    store = stores.load_store(kept.config, kept.folder)
    parameters = {name: str(value) for name, value in store.record("t0001").parameters.items()}
    store.close()
    [told] = [run for run in kept.runs() if run.data.tags.get("tutti.trial") == "t0001"]
    assert kept.states()["t0001"] == ("FINISHED", "stopped early")
    assert told.data.params == parameters
    assert told.data.metrics == {"validation_score": 0.8, "score": 0.8, "score/mood": 0.8}
    assert told.data.tags["tutti.notice"].startswith("told anew by tutti doctor")


def test_a_run_that_a_waiting_report_may_begin_is_not_told_anew(kept):
    run_deleted_for_good(kept)
    spool = Spool(kept.folder.path / "tracking.jsonl")
    spool.append({"call": "start_trial", "key": "t0001", "number": 1, "parameters": {"old": 1}, "tags": {}})
    for options in (["--dry-run"], []):
        assert "it has no run" not in doctor(kept, *options).out
    assert kept.states()["t0001"] == ("FINISHED", "stopped early")


@pytest.mark.parametrize("given_up", [True, False])
def test_the_bank_is_told_of_weights_whose_pruning_was_cut_off_and_of_those_that_were_given_up(kept, given_up):
    pruning_cut_off(kept)
    if given_up:
        checkpoint_gone(kept)
        (kept.folder.trial("t0000") / "best.pruned.json").write_bytes(b"")
    assert "bank/t0000: it names weights that were pruned; put right" in doctor(kept).out
    [record] = Bank(kept.folder.bank).records()
    assert (record.key, record.path) == ("t0000", None)
    assert doctor(kept).out.splitlines() == [CUT_OFF, HEALTHY]


def test_a_run_of_somebody_s_own_is_not_touched(kept):
    client, experiment = kept.tracker()._client, kept.runs()[0].info.experiment_id
    mine = client.create_run(experiment, run_name="mine")
    assert doctor(kept).out.splitlines() == [CUT_OFF, HEALTHY]
    assert client.get_run(mine.info.run_id).info.status == "RUNNING"


def test_runs_of_another_study_of_the_name_are_not_touched(kept):
    theirs = MlflowTracker(kept.folder.mlflow_uri, experiment="moods", owner="they")
    theirs.start_study(**NONE, files=[])
    for key in ("t0000", "t0000/fold-0", "t0007"):
        theirs.start_trial(key, number=0, parameters={}, tags={"tutti.checkpoint": str(kept.folder.trial("t0007"))})
    before = {run.info.run_id: (run.info.status, run.data.tags) for run in kept.runs()}
    assert doctor(kept).out.splitlines() == [CUT_OFF, HEALTHY]
    assert {run.info.run_id: (run.info.status, run.data.tags) for run in kept.runs()} == before


def test_a_study_that_a_process_holds_is_refused_and_not_looked_at(kept):
    temporary_file(kept)
    with study_lock(kept.folder):
        result = doctor(kept, code=2)
    assert "the study 'moods' must be run by one process at a time" in result.message
    assert result.out == ""
    assert (kept.folder.path / ".study.json.ab_12xyz.tmp").is_file()


def damaged_weights(kept: Kept) -> None:
    (kept.folder.trial("t0000") / "best" / "model.safetensors").write_text("other")


def damaged_weights_to_go_on_with(kept: Kept) -> None:
    (kept.folder.trial("t0002") / "best" / "tutti.json").unlink()


def damaged_predictions(kept: Kept) -> None:
    next((kept.folder.bank / "t0000").rglob("*.parquet")).write_bytes(b"other")


def damaged_metadata(kept: Kept) -> None:
    next((kept.folder.bank / "t0000").rglob("record.json")).write_text("{")


def odd_metadata(kept: Kept) -> None:
    next((kept.folder.bank / "t0000").rglob("record.json")).write_text("{}")


def predictions_of_no_trial(kept: Kept) -> None:
    put_predictions(kept, 8, score=0.5)


def folder_of_no_trial(kept: Kept) -> None:
    (kept.folder.trial("t0008") / "resume").mkdir(parents=True)


def run_of_another_folder(kept: Kept) -> None:
    kept.tracker().start_trial("t0007", number=7, parameters={}, tags={"tutti.checkpoint": "/elsewhere/moods/t0007"})


def study_s_run_deleted(kept: Kept) -> None:
    [parent] = [run for run in kept.runs() if "tutti.trial" not in run.data.tags]
    kept.tracker()._client.delete_run(parent.info.run_id)


def half_checkpoint_of_a_finished_trial(kept: Kept) -> None:
    (kept.folder.trial("t0000") / "best" / "tutti.json").unlink()


def checkpoint_gone(kept: Kept) -> None:
    shutil.rmtree(kept.folder.trial("t0000") / "best")


def store_gone(kept: Kept) -> None:
    _told(kept)
    (kept.folder.path / "mlflow.db").unlink()


def experiment_deleted(kept: Kept) -> None:
    kept.tracker()._client.delete_experiment(kept.runs()[0].info.experiment_id)


def every_run_deleted(kept: Kept) -> None:
    _told(kept)
    for each in kept.runs():
        kept.tracker()._client.delete_run(each.info.run_id)


def _told(kept: Kept) -> None:
    spool = Spool(kept.folder.path / "tracking.jsonl")
    spool.append({"call": "start_trial", "key": "t0000", "number": 0, "parameters": {}, "tags": {}})
    spool.advance(spool.peek(1)[0][0])


def trial_in_another_place(kept: Kept) -> None:
    elsewhere = kept.folder.path.parent / "elsewhere"
    kept.folder.trial("t0001").rename(elsewhere)
    (elsewhere / "resume").mkdir()
    kept.folder.trial("t0001").symlink_to(elsewhere)


LEFT: dict[str, dict[Callable[[Kept], None], str]] = {
    "some": {
        damaged_weights: "trials/t0000/best: a damaged checkpoint: *; left: restore it from a copy, or remove it",
        damaged_weights_to_go_on_with: "trials/t0002/best: a damaged checkpoint: *; left: restore it from a copy",
        damaged_predictions: "bank/t0000: no whole predictions: a file that was cut short or changed since; left: ",
        predictions_of_no_trial: "bank/t0008: the study has no such trial; left: move it away",
        folder_of_no_trial: "trials/t0008: the study has no such trial; left: move it away",
        run_of_another_folder: "it was tracked from /elsewhere/moods/t0007; left: delete it in MLflow",
    },
    "others": {
        damaged_metadata: "bank/t0000: no whole predictions: an empty bank; left: restore",
        study_s_run_deleted: "MLflow, the study's run: it is gone, and its trials' runs are left; left: restore it",
        trial_in_another_place: "trials/t0001: a link; left: put the folder that it leads to in its place",
    },
    "gone": {
        checkpoint_gone: "trials/t0000/best: it is gone, and nothing says that it was pruned: the trial votes *; "
        "left: restore it from a copy, or make the empty file trials/t0000/best.pruned.json",
        store_gone: "mlflow.db: it is gone, and the study was told to it; left: restore it from a copy, or resume",
    },
    "gone in other ways": {
        half_checkpoint_of_a_finished_trial: "trials/t0000/best: half a checkpoint: *; left: restore tutti.json from",
        every_run_deleted: "MLflow, the study's run: it is gone, and its trials' runs with it; left: restore it",
    },
    "of another form": {
        odd_metadata: "bank/t0000/*/record.json: checkpoint (field required): the bank cannot be read with it; left: "
        "restore the file from a copy",
        folder_of_no_trial: "trials/t0008: the study has no such trial; left: move it away",
        run_of_another_folder: "it was tracked from /elsewhere/moods/t0007; left: delete it in MLflow",
    },
    "the experiment": {
        experiment_deleted: "MLflow, the study's experiment: it was deleted; left: restore it (`mlflow exp"
    },
}


@pytest.mark.parametrize("group", LEFT)
def test_what_cannot_be_mended_is_said_left_as_it_is_and_the_exit_code_is_1(kept, group):
    for plant in LEFT[group]:
        plant(kept)
    before = everything(kept.folder.path.parent)
    for _ in range(2):
        result = doctor(kept, code=1).out
        assert [
            line for line in LEFT[group].values() if not re.search(re.escape(line).replace(r"\*", ".+"), result)
        ] == []
        assert f"Study moods: 0 findings mended, {len(LEFT[group])} left." in result
    assert everything(kept.folder.path.parent) == before


def test_reports_that_wait_for_a_store_that_is_gone_are_kept_for_a_copy_of_it(kept):
    store_gone(kept)
    Spool(kept.folder.path / "tracking.jsonl").append({"call": "end_trial", "key": "t0000"})
    before = everything(kept.folder.path)
    result = doctor(kept, code=1).out
    assert "left: mlflow.db must be there to take them; got none; restore it from a copy" in result
    assert "Study moods: 0 findings mended, 2 left." in result
    assert everything(kept.folder.path) == before


def test_a_tracking_store_that_is_away_is_said_and_all_else_is_mended(kept):
    temporary_file(kept)
    document = json.loads(kept.folder.study_file.read_text())
    document["tracking"] = {"uri": "http://127.0.0.1:9"}
    kept.folder.study_file.write_text(json.dumps(document))
    result = doctor(kept, code=1)
    assert "MLflow: not looked at: the MLflow store http://127.0.0.1:9 must be reachable; got" in result.out
    assert not (kept.folder.path / ".study.json.ab_12xyz.tmp").exists()


def test_what_a_process_that_holds_no_lock_may_be_writing_now_is_left(kept):
    young = kept.folder.path / "ensembles" / ".vote.abcdefgh.tmp"
    predicting = kept.folder.soups / ".soup.abcdefgh.tmp"
    dead = kept.folder.soups / ".mixed.abcdefgh.tmp"
    for place, seconds in {young: 0, predicting: 36000, dead: 86401}.items():
        place.mkdir(parents=True)
        os.utime(place, (time.time() - seconds,) * 2)
    temporary_file(kept)
    temporary_folder(kept)
    result = doctor(kept, code=0).out
    for place in (young, predicting):
        assert place.is_dir()
        assert place.name not in result
    assert not dead.exists()
    assert not (kept.folder.path / ".study.json.ab_12xyz.tmp").exists()
    assert not list(kept.folder.trial("t0000").glob(".*"))


def test_a_study_that_was_never_tracked_gets_no_store(kept):
    (kept.folder.path / "mlflow.db").unlink()
    assert doctor(kept).out.splitlines() == [CUT_OFF, HEALTHY]
    assert not (kept.folder.path / "mlflow.db").exists()
