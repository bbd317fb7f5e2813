"""What a crash can leave of a study, and what ``tutti doctor`` says of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from stored_study import NONE, StoredStudy, put_checkpoint, put_predictions, put_state

from tutti.tracking.spool import Spool


def run_of_an_ended_trial(study: StoredStudy) -> None:
    study.tracker().start_trial("t0001", number=1, **NONE)


def run_of_a_trial_cut_off(study: StoredStudy) -> None:
    tracker = study.tracker()
    tracker.start_trial("t0002", number=2, **NONE)
    tracker.start_trial("t0002/fold-0", number=2, **NONE)


def study_still_running(study: StoredStudy) -> None:
    study.tracker().start_study(**NONE, files=[])


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
        reports_not_sent: "tracking.jsonl: 1 report that MLflow has not received; sent to MLflow",
    },
    "places": {
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
        pruning_cut_off: "trials/t0000/best: half a checkpoint: it has no tutti.json; removed",
    },
}
