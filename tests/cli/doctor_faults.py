"""What a crash or a hand can leave of a study, and what ``tutti doctor`` says of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable

from stored_study import NONE, StoredStudy, prepared_rows, put_checkpoint, put_predictions, put_state

from tutti.data.prepared import PREPARED_FILE, write_part
from tutti.records import TrialState
from tutti.tracking.spool import Spool


def run_of_an_ended_trial(study: StoredStudy) -> None:
    study.tracker().start_trial("t0001", number=1, **NONE)


def run_of_a_trial_cut_off(study: StoredStudy) -> None:
    tracker = study.tracker()
    tracker.start_trial("t0002", number=2, **NONE)
    tracker.start_trial("t0002/fold-0", number=2, **NONE)


def study_still_running(study: StoredStudy) -> None:
    study.tracker().start_study(**NONE, files=[])


def run_of_no_trial(study: StoredStudy) -> None:
    place = {"tutti.checkpoint": str(study.folder.trial("t0007").best)}
    study.tracker().start_trial("t0007", number=7, parameters={}, tags=place)


def second_run(study: StoredStudy) -> None:
    """As made by two drivers that look for it at the same time."""
    first = next(run for run in study.runs() if run.data.tags.get("tutti.trial") == "t0000")
    client = study.tracker()._client
    tags = {name: value for name, value in first.data.tags.items() if name.startswith(("tutti.", "mlflow.parent"))}
    client.create_run(first.info.experiment_id, first.info.start_time + 1, tags, "t0000")


def run_below_another_study(study: StoredStudy) -> None:
    run = next(run for run in study.runs() if run.data.tags.get("tutti.trial") == "t0000")
    study.tracker()._client.set_tag(run.info.run_id, "mlflow.parentRunId", "0" * 32)


def run_deleted(study: StoredStudy) -> None:
    """In MLflow, by hand."""
    _delete(study, "t0000")


def run_deleted_for_good(study: StoredStudy) -> None:
    """As `mlflow gc` does, which leaves a fold's run."""
    tracker = study.tracker()
    tracker.start_trial("t0001/fold-0", number=1, **NONE)
    tracker.end_trial("t0001/fold-0", state=TrialState.STOPPED, reason=None, metrics={}, tags={})
    study.tracker()._client._tracking_client.store._hard_delete_run(_delete(study, "t0001"))


def _delete(study: StoredStudy, key: str) -> str:
    [run] = [run for run in study.runs() if run.data.tags.get("tutti.trial") == key]
    study.tracker()._client.delete_run(run.info.run_id)
    return str(run.info.run_id)


def pruning_cut_off(study: StoredStudy) -> None:
    """As left by a kill before the weights are removed and the bank is updated."""
    best = study.folder.trial("t0000").best
    (best / "tutti.json").rename(best.with_name("best.pruned.json"))


def reports_not_sent(study: StoredStudy) -> None:
    spool = Spool(study.folder.path / "tracking.jsonl")
    spool.append({"call": "log_metrics", "key": "t0002", "metrics": {"late": 1.0}, "step": 1, "at": 5.0})


def torn_report(study: StoredStudy) -> None:
    with (study.folder.path / "tracking.jsonl").open("a") as file:
        file.write('{"call": "log_me')


def half_checkpoint(study: StoredStudy) -> None:
    (study.folder.trial("t0001").best / "tutti.json").unlink()


def half_checkpoint_of_a_fold(study: StoredStudy) -> None:
    put_checkpoint(study.folder.trial("t0001").fold(1).best, number=1, score=0.5)
    (study.folder.trial("t0001").fold(1).best / "tutti.json").unlink()


def half_predictions(study: StoredStudy) -> None:
    put_predictions(study, 2, score=0.7)
    [entry] = (study.folder.bank / "t0002").iterdir()
    (entry / "record.json").unlink()


def replaced_predictions(study: StoredStudy) -> None:
    [entry] = (study.folder.bank / "t0000").iterdir()
    (entry.parent / "0000-00000000").mkdir()
    entry.rename(entry.parent / "0001-00000000")
    put_predictions(study, 0, score=0.9)
    last = max((study.folder.bank / "t0000").iterdir())
    (entry.parent / "0001-00000000" / "predictions").mkdir(parents=True)
    (entry.parent / "0000-00000000").rmdir()
    assert last.name.startswith("0002")


def predictions_of_a_stopped_trial(study: StoredStudy) -> None:
    put_predictions(study, 1, score=0.6)


def temporary_file(study: StoredStudy) -> None:
    stray = study.folder.path / ".study.json.ab_12xyz.tmp"
    stray.write_text("{")
    os.utime(stray, (time.time() - 601,) * 2)


def temporary_folder(study: StoredStudy) -> None:
    half = study.folder.trial("t0000").path / ".best.abcdefgh.tmp"
    half.mkdir()
    (half / "model.safetensors").write_text("half")


def retired_folder(study: StoredStudy) -> None:
    """As left by a kill between the two renames that replace a folder."""
    best = study.folder.trial("t0002").best
    retired = best.with_name(".best.abcdefgh.old")
    retired.mkdir()
    best.rename(retired / "best")


def states_of_an_ended_trial(study: StoredStudy) -> None:
    put_state(study, "t0001")


CUT_OFF = "trial t0002: cut off, and goes on with `tutti tune STUDY.yaml --resume`, and --set as before"


FAULTS: dict[str, dict[Callable[[StoredStudy], None], str]] = {
    "stores": {
        run_of_an_ended_trial: (
            "run t0001 (*): it says running, and its trial is stopped early; marked as stopped early"
        ),
        run_of_a_trial_cut_off: "run t0002 (*): it says running, and its trial is interrupted; marked as interrupted",
        study_still_running: "run moods (*): no process runs the study; marked as interrupted",
        run_of_no_trial: "run t0007 (*): the study has no such trial; deleted in MLflow, which can restore it",
        second_run: "run t0000 (*): another run has the same key; deleted in MLflow, which can restore it",
        reports_not_sent: "tracking.jsonl: 1 report that MLflow has not received; sent to MLflow",
    },
    "places": {
        run_below_another_study: "run t0000 (*): it is below no run of this study; put below the study's",
        torn_report: "tracking.jsonl: 1 report that MLflow has not received; sent to MLflow",
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
        run_deleted_for_good: (
            "MLflow, trial t0001: it has no run; created again, from what the study's database has of it"
        ),
        pruning_cut_off: "trials/t0000/best: half a checkpoint: it has no tutti.json; removed",
    },
}


def damaged_weights(study: StoredStudy) -> None:
    (study.folder.trial("t0000").best / "model.safetensors").write_text("other")


def damaged_weights_to_go_on_with(study: StoredStudy) -> None:
    (study.folder.trial("t0002").best / "tutti.json").unlink()


def prepared_rows_changed(study: StoredStudy) -> None:
    prepared = prepared_rows(study)
    rows = prepared.rows("A", "validation").assign(text="other")
    write_part(rows, prepared.parts["A"]["validation"].path)


def prepared_rows_damaged(study: StoredStudy) -> None:
    prepared_rows(study).parts["A"]["train"].path.write_text("no rows")


def prepared_list_damaged(study: StoredStudy) -> None:
    (prepared_rows(study).folder / PREPARED_FILE).write_text("{")


def prepared_rows_gone(study: StoredStudy) -> None:
    shutil.rmtree(study.folder.data)


def damaged_predictions(study: StoredStudy) -> None:
    next((study.folder.bank / "t0000").rglob("*.parquet")).write_bytes(b"other")


def damaged_metadata(study: StoredStudy) -> None:
    next((study.folder.bank / "t0000").rglob("record.json")).write_text("{")


def odd_metadata(study: StoredStudy) -> None:
    next((study.folder.bank / "t0000").rglob("record.json")).write_text("{}")


def predictions_of_no_trial(study: StoredStudy) -> None:
    put_predictions(study, 8, score=0.5)


def folder_of_no_trial(study: StoredStudy) -> None:
    study.folder.trial("t0008").resume.mkdir(parents=True)


def run_of_another_folder(study: StoredStudy) -> None:
    study.tracker().start_trial("t0007", number=7, parameters={}, tags={"tutti.checkpoint": "/elsewhere/moods/t0007"})


def study_s_run_deleted(study: StoredStudy) -> None:
    [parent] = [run for run in study.runs() if "tutti.trial" not in run.data.tags]
    study.tracker()._client.delete_run(parent.info.run_id)


def half_checkpoint_of_a_finished_trial(study: StoredStudy) -> None:
    (study.folder.trial("t0000").best / "tutti.json").unlink()


def checkpoint_gone(study: StoredStudy) -> None:
    shutil.rmtree(study.folder.trial("t0000").best)


def store_gone(study: StoredStudy) -> None:
    _track_a_trial(study)
    (study.folder.path / "mlflow.db").unlink()


def experiment_deleted(study: StoredStudy) -> None:
    study.tracker()._client.delete_experiment(study.runs()[0].info.experiment_id)


def every_run_deleted(study: StoredStudy) -> None:
    _track_a_trial(study)
    for each in study.runs():
        study.tracker()._client.delete_run(each.info.run_id)


def _track_a_trial(study: StoredStudy) -> None:
    spool = Spool(study.folder.path / "tracking.jsonl")
    spool.append({"call": "start_trial", "key": "t0000", "number": 0, "parameters": {}, "tags": {}})
    spool.advance(spool.peek(1)[0][0])


def trial_in_another_place(study: StoredStudy) -> None:
    elsewhere = study.folder.path.parent / "elsewhere"
    study.folder.trial("t0001").path.rename(elsewhere)
    (elsewhere / "resume").mkdir()
    study.folder.trial("t0001").path.symlink_to(elsewhere)


LEFT: dict[str, dict[Callable[[StoredStudy], None], str]] = {
    "some": {
        damaged_weights: "trials/t0000/best: a damaged checkpoint: *; left: restore it from a copy, or remove it",
        damaged_weights_to_go_on_with: "trials/t0002/best: a damaged checkpoint: *; left: restore it from a copy",
        damaged_predictions: "bank/t0000: no whole predictions: a file that was cut short or changed since; left: ",
        predictions_of_no_trial: "bank/t0008: the study has no such trial; left: move it away",
        folder_of_no_trial: "trials/t0008: the study has no such trial; left: move it away",
        run_of_another_folder: "it was tracked from /elsewhere/moods/t0007; left: delete it in MLflow",
        prepared_rows_changed: "data/A/validation.parquet: other texts than were prepared; left: remove ",
    },
    "others": {
        prepared_rows_damaged: "data/A/train.parquet: *; left: remove *tune` with --resume, which prepares the rows",
        damaged_metadata: "bank/t0000: no whole predictions: no entry; left: restore",
        study_s_run_deleted: "MLflow, the study's run: it is gone, and its trials' runs are left; left: restore it",
        trial_in_another_place: "trials/t0001: a link; left: put the folder that it leads to in its place",
    },
    "gone": {
        prepared_list_damaged: "data: *; left: remove *tune` with --resume, which prepares the rows again",
        checkpoint_gone: "trials/t0000/best: it is gone, and nothing says that it was pruned: the trial votes *; "
        "left: restore it from a copy, or make the empty file trials/t0000/best.pruned.json",
        store_gone: "mlflow.db: it is gone, and the study was told to it; left: restore it from a copy, or resume",
    },
    "gone in other ways": {
        half_checkpoint_of_a_finished_trial: "trials/t0000/best: half a checkpoint: *; left: restore tutti.json from",
        every_run_deleted: "MLflow, the study's run: it is gone, and its trials' runs with it; left: restore it",
        prepared_rows_gone: "data: no prepared.json; left: run *tune` with --resume, which prepares the rows again",
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
