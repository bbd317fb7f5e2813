"""A trial with folds, in this process and in two, without Ray."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tutti.bank.bank import Bank
from tutti.config.folder import StudyFolder
from tutti.config.study import StudyConfig
from tutti.data.encode import EncodedPart, load_parts, take
from tutti.data.prepared import load_prepared
from tutti.errors import StorageError
from tutti.modeling.checkpoint import load_checkpoint
from tutti.orchestration.worker.build import fine_tune_once
from tutti.orchestration.worker.folds import FoldReport
from tutti.orchestration.worker.trial_listener import TrialListener
from tutti.records import CheckpointRecord, TextLimit, TrialState
from tutti.tasks.scorer import Scorer
from tutti.training import EpochReport
from tutti.training.predict import predict
from tutti.workflows import stores, tracking_metadata
from tutti.workflows.base import StudyBase
from tutti.workflows.preparation import changed_keys, prepare_study

FOLDS, EPOCHS = 3, 2
PARAMETERS = {"learning_rate": 3e-3}
PRECISE = {"training__bf16": False, "training__num_train_epochs": EPOCHS, "split": {"folds": FOLDS, "seed": 1}}
PRECISE |= {"objective_weights": {"mood": 3}}


class Killed(Exception):
    """Stands for the end of the process in the midst of a trial."""


@dataclass
class Job:
    """A prepared study, one trial of it, and what the trial reported."""

    study: StudyConfig
    folder: StudyFolder
    epochs: list[tuple[int, int]] = field(default_factory=list)
    reports: list[FoldReport] = field(default_factory=list)

    def run(self, *, kill_at: tuple[int, int] | None = None, kill_after_fold: int | None = None) -> CheckpointRecord:
        self.epochs, self.reports = [], []
        return fine_tune_once(
            self.study,
            self.folder,
            key="t0000",
            number=0,
            parameters=PARAMETERS,
            listener=_Recorder(self, kill_at, kill_after_fold),
            main=True,
            smaller_batches=False,
        )

    @property
    def trial(self) -> Path:
        return self.folder.trial("t0000").path

    def predictions(self, task: str, part: str) -> Any:
        return Bank(self.folder.bank).predictions("t0000", task, part)

    def part(self, task: str, part: str) -> EncodedPart:
        cache, prepared = self.folder.encoded, load_prepared(self.folder.data)
        return load_parts(prepared, tokenizer=self.study.backbone, limit=TextLimit(16), cache=cache)[task][part]

    def weights(self, fold: int) -> tuple[int, int]:
        """Changes when a fold's checkpoint is written again."""
        stat = (self.trial / f"fold-{fold}" / "best" / "model.safetensors").stat()
        return stat.st_ino, stat.st_mtime_ns


@dataclass
class _Recorder(TrialListener):
    """Records what a trial reports, and kills it at an epoch of a fold or after a fold."""

    job: Job
    kill_at: tuple[int, int] | None
    kill_after_fold: int | None

    def on_epoch(self, report: EpochReport) -> None:
        pytest.fail("an epoch of a study without folds")

    def on_fold_epoch(self, fold: int, report: EpochReport) -> None:
        self.job.epochs.append((fold, report.epoch))
        if (fold, report.epoch) == self.kill_at:
            raise Killed

    def on_fold(self, report: FoldReport) -> None:
        self.job.reports.append(report)
        if report.fold == self.kill_after_fold:
            raise Killed


MakeJob = Callable[..., Job]


@pytest.fixture(scope="module")
def make_job(make_study: Callable[..., Any]) -> MakeJob:
    def make(folder: Path, **changes: Any) -> Job:
        file = make_study(folder, **{**PRECISE, **changes}).file
        study, place = stores.read_study_file(file, overrides=[])
        with contextlib.redirect_stdout(io.StringIO()):
            tracking_metadata.write_split(prepare_study(StudyBase(study, place), resume=False), place)
        return Job(study, place)

    return make


@pytest.fixture(scope="module")
def done(make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, CheckpointRecord]:
    """A trial that nothing interrupted."""
    job = make_job(tmp_path_factory.mktemp("whole"))
    return job, job.run()


def predictions_of_fold(job: Job, fold: int, task: str, part: EncodedPart) -> np.ndarray:
    """What the checkpoint of a fold, loaded anew, says about rows."""
    model, _ = load_checkpoint(job.trial / f"fold-{fold}" / "best")
    return predict(model, part, task=task, batch_size=16, device=torch.device("cpu"))


def test_what_the_folds_have_taken_adds_up(done: tuple[Job, CheckpointRecord]) -> None:
    job, record = done
    rows = sum(len(job.part(task, "train").ids) for task in ("mood", "same"))
    assert [report.usage.rows for report in job.reports] == [
        EPOCHS * (FOLDS - 1) * rows // FOLDS * n for n in (1, 2, 3)
    ]
    assert record.usage == job.reports[-1].usage == Bank(job.folder.bank).records()[0].usage


def test_each_row_is_predicted_by_the_fold_that_did_not_train_on_it(done: tuple[Job, CheckpointRecord]) -> None:
    job, _ = done
    prepared = load_prepared(job.folder.data)
    for task in ("mood", "same"):
        predictions, of_row = job.predictions(task, "validation"), prepared.folds(task)
        assert predictions.ids.tolist() == prepared.ids(task, "train").tolist()
        assert predictions.labels.tolist() == prepared.rows(task, "train")["label"].tolist()
        whole = job.part(task, "train")
        for fold in range(FOLDS):
            rows = np.flatnonzero(of_row == fold)
            assert len(rows) == 40
            expected = predictions_of_fold(job, fold, task, take(whole, rows))
            np.testing.assert_allclose(predictions.outputs[rows], expected, atol=1e-6)
        others = predictions_of_fold(job, 0, task, take(whole, np.flatnonzero(of_row == 1)))
        assert np.abs(predictions.outputs[of_row == 1] - others).max() > 0.01


def test_other_rows_are_predicted_by_the_mean_of_the_folds(done: tuple[Job, CheckpointRecord]) -> None:
    job, _ = done
    for part in ("test", "unlabeled"):
        rows, predictions = job.part("mood", part), job.predictions("mood", part)
        expected = np.mean([predictions_of_fold(job, fold, "mood", rows) for fold in range(FOLDS)], axis=0)
        assert predictions.ids.tolist() == rows.ids.tolist()
        np.testing.assert_allclose(predictions.outputs, expected, atol=1e-6)


def test_the_trial_s_score_is_that_of_its_out_of_fold_rows(done: tuple[Job, CheckpointRecord]) -> None:
    job, record = done
    for task in load_prepared(job.folder.data).tasks:
        predictions = job.predictions(task.name, "validation")
        expected = Scorer.of(task).score(predictions.labels, predictions.outputs)
        assert record.task_scores[task.name] == pytest.approx(expected)
    assert record.score == pytest.approx((3 * record.task_scores["mood"] + record.task_scores["same"]) / 4)
    assert (record.key, record.epoch, record.path) == ("t0000", FOLDS, str(job.trial))
    assert Bank(job.folder.bank).records() == [record]
    assert (record.parameters or 0) > 0


def test_after_each_fold_the_mean_of_the_folds_so_far_is_told(done: tuple[Job, CheckpointRecord]) -> None:
    job, _ = done
    assert job.epochs == [(fold, epoch) for fold in range(FOLDS) for epoch in (1, 2)]
    assert [(report.fold, report.done) for report in job.reports] == [(0, False), (1, False), (2, True)]
    best = [report.best for report in job.reports]
    for fold, report in enumerate(job.reports):
        assert report.score == pytest.approx(np.mean([each.score for each in best[: fold + 1]]))
        assert report.task_scores["mood"] == pytest.approx(np.mean([b.task_scores["mood"] for b in best[: fold + 1]]))
        _, metadata = load_checkpoint(Path(str(report.best.path)))
        assert (metadata.key, metadata.score, metadata.epoch) == ("t0000", report.best.score, report.best.epoch)


def test_a_fold_that_is_whole_keeps_its_checkpoint_and_nothing_to_go_on_from(done):
    job, _ = done
    assert sorted(path.name for path in job.trial.iterdir()) == ["fold-0", "fold-1", "fold-2", "resume"]
    assert [path.name for fold in range(FOLDS) for path in (job.trial / f"fold-{fold}").iterdir()] == ["best"] * FOLDS


def same_end(one: Job, other: Job) -> None:
    for task in ("mood", "same"):
        for part in ("validation", "test", "unlabeled"):
            expected, predictions = one.predictions(task, part), other.predictions(task, part)
            np.testing.assert_array_equal(predictions.outputs, expected.outputs)
            assert predictions.ids.tolist() == expected.ids.tolist()


def test_a_trial_that_was_killed_goes_on_in_the_fold_it_was_in_and_ends_the_same(done, make_job, tmp_path):
    job = make_job(tmp_path)
    with pytest.raises(Killed):
        job.run(kill_at=(1, 1))
    before = job.weights(0)
    assert not Path(job.folder.bank).exists()
    record = job.run()
    assert job.epochs == [(1, 1), (1, 2), (2, 1), (2, 2)]  # the first one comes from the state
    assert [report.fold for report in job.reports] == [0, 1, 2]
    assert [report.score for report in job.reports] == [report.score for report in done[0].reports]
    assert job.weights(0) == before
    assert (record.score, record.task_scores) == (done[1].score, done[1].task_scores)
    same_end(done[0], job)


def test_a_fold_whose_kept_predictions_are_damaged_is_trained_again(done, make_job, tmp_path):
    job = make_job(tmp_path)
    with pytest.raises(Killed):
        job.run(kill_after_fold=1)
    [damaged] = (job.trial / "resume" / "fold-1").rglob("predictions/mood/test.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-40])
    before = job.weights(0)
    job.run()
    assert job.epochs == [(fold, epoch) for fold in (1, 2) for epoch in (1, 2)]
    assert job.weights(0) == before
    same_end(done[0], job)


@pytest.mark.parametrize(
    "link", ["trials/t0000", "trials/t0000/best", "trials/t0000/fold-1", "trials/t0000/fold-0/best"]
)
def test_a_trial_s_folder_that_links_elsewhere_is_refused_and_nothing_is_lost_there(make_job, tmp_path, link):
    job = make_job(tmp_path / "study")
    theirs, place = tmp_path / "theirs", job.folder.path / link
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("all of it")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(theirs)
    with pytest.raises(StorageError, match=f"{link} must be a file or folder of the study itself; got a link to"):
        job.run()
    assert [file.name for file in theirs.iterdir()] == ["thesis.txt"]


def test_a_trial_whose_folds_are_all_whole_trains_nothing(done: tuple[Job, CheckpointRecord]) -> None:
    job, record = done
    again = Job(job.study, job.folder)
    assert again.run() == record
    assert again.epochs == []
    assert again.reports == job.reports


def test_rows_of_extra_train_train_in_every_fold_and_validate_in_none(make_job, tiny_data, tmp_path, monkeypatch):
    (tmp_path / "more.tsv").write_text("a\tw0 w9\tcalm\nb\tw1 w8\tglad\n", encoding="utf8")
    mood = {"layout": "competition", "train": str(tiny_data / "mood_train.tsv")}
    mood |= {"test": str(tiny_data / "mood_test.tsv"), "extra_train": [{"path": str(tmp_path / "more.tsv")}]}
    job = make_job(tmp_path, tasks={"mood": mood}, training__num_train_epochs=1)
    seen: list[tuple[list[str], list[str]]] = []
    import tutti.training

    real = tutti.training.fine_tune

    def watched(**given: Any) -> Any:
        by_part = given["parts"]["mood"]
        seen.append((by_part["train"].ids.tolist(), by_part["validation"].ids.tolist()))
        return real(**given)

    monkeypatch.setattr(tutti.training, "fine_tune", watched)
    job.run()
    own = [line.split("\t")[0] for line in (tiny_data / "mood_train.tsv").read_text(encoding="utf8").splitlines()]
    for trained, validated in seen:
        assert {"extra0/a", "extra0/b"} <= set(trained)
        assert not set(trained) & set(validated)
        assert len(trained) + len(validated) == len(own) + 2
    assert sorted(each for _, validated in seen for each in validated) == sorted(own)
    assert job.predictions("mood", "validation").ids.tolist() == own


def test_a_regression_has_out_of_fold_values(make_job: MakeJob, tiny_data: Path, tmp_path: Path) -> None:
    lines = (tiny_data / "mood_train.tsv").read_text(encoding="utf8").splitlines()
    values = {"calm": "0.5", "glad": "2", "sad": "4.25"}
    rows = [line.rsplit("\t", 1) for line in lines]
    (tmp_path / "rated.tsv").write_text("".join(f"{row}\t{values[label]}\n" for row, label in rows), encoding="utf8")
    rated = {"layout": "competition", "train": str(tmp_path / "rated.tsv"), "metric": "pearson"}
    job = make_job(tmp_path, objective_weights={}, tasks={"rated": rated | {"test": str(tiny_data / "mood_test.tsv")}})
    record = job.run()
    predictions, test = job.predictions("rated", "validation"), job.predictions("rated", "test")
    assert predictions.outputs.shape == (120,)
    assert record.score == pytest.approx(np.corrcoef(predictions.outputs, predictions.labels)[0, 1], abs=1e-5)
    expected = np.mean(
        [predictions_of_fold(job, fold, "rated", job.part("rated", "test")) for fold in range(FOLDS)], axis=0
    )
    np.testing.assert_allclose(test.outputs, expected, atol=1e-5)


def test_ensembles_and_pseudo_labels_are_made_of_such_a_study(done, tmp_path, tiny_data):
    from tutti.workflows.study import open_study

    job, record = done
    recipe = str(tiny_data / "recipe.yaml")
    with contextlib.redirect_stdout(io.StringIO()):
        study = open_study(job.folder.path)
        study.ensemble(recipe).write(tmp_path / "ensemble")
        study.pseudo_labels(recipe).write(tmp_path / "pseudo")
    card = json.loads((tmp_path / "ensemble" / "card.json").read_text(encoding="utf8"))
    assert card["objective"]["score"] == pytest.approx(record.score)
    assert card["tasks"][0]["rows"] == {"validation": 120, "test": 23}
    assert len((tmp_path / "ensemble" / "mood_predict.json").read_text(encoding="utf8").splitlines()) == 23
    labelled = (tmp_path / "pseudo" / "mood.tsv").read_text(encoding="utf8").splitlines()
    assert {line.split("\t")[0] for line in labelled} <= set(job.predictions("mood", "unlabeled").ids)


def test_the_ids_of_each_fold_are_kept_with_the_study(done: tuple[Job, CheckpointRecord]) -> None:
    job, _ = done
    split = json.loads((job.folder.data / "split.json").read_text(encoding="utf8"))
    prepared = load_prepared(job.folder.data)
    ids, of_row = prepared.ids("same", "train"), prepared.folds("same")
    assert split["same"] == {f"fold-{fold}": ids[of_row == fold].tolist() for fold in range(FOLDS)}


def test_the_folds_are_part_of_what_a_study_is(done: tuple[Job, CheckpointRecord]) -> None:
    study = done[0].study
    other = study.model_copy(update={"split": study.split.model_copy(update={"folds": 5})})
    assert changed_keys(study, study) == {}
    assert changed_keys(study, other) == {"split.folds": (FOLDS, 5)}


def test_the_weights_of_tasks_are_part_of_what_a_study_is_but_not_their_sum(done: tuple[Job, CheckpointRecord]) -> None:
    study = done[0].study
    same, none = (study.model_copy(update={"objective_weights": each}) for each in ({"mood": 1.5, "same": 0.5}, {}))
    assert changed_keys(study, same) == {}
    assert changed_keys(study, none) == {"objective_weights.mood": (3.0, 1.0)}
    prepared = load_prepared(done[0].folder.data)
    assert [task.weight for task in prepared.tasks] == [3.0, 1.0]
    note = "The score is the mean of the tasks' metrics, weighted mood 3, same 1, on the validation rows"
    assert tracking_metadata.study_note(prepared).startswith(note)


@pytest.mark.slow
def test_two_workers_go_through_the_same_folds_in_step(done, make_job, tmp_path):
    """They are killed after the first fold, and go on together."""
    job = make_job(tmp_path, training__per_device_train_batch_size=8)
    order = {"study": job.study.model_dump_json(), "folder": str(job.folder.path), "parameters": PARAMETERS}
    (tmp_path / "job.json").write_text(json.dumps(order), encoding="utf8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared |= {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, str(Path(__file__).with_name("fold_rank.py")), str(tmp_path / "job.json")]
    ranks = [subprocess.Popen(command, env={**shared, "RANK": str(n), "LOCAL_RANK": str(n)}) for n in range(2)]
    try:
        assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    outcomes = [json.loads((tmp_path / f"job.json.{n}").read_text(encoding="utf8")) for n in range(2)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["first"] == ["0/1", "0/2", "fold 0"]
    assert outcomes[0]["second"] == ["fold 0", "1/1", "1/2", "fold 1", "2/1", "2/2", "fold 2"]
    assert outcomes[0]["score"] == pytest.approx(done[1].score, abs=1e-3)
    for task in ("mood", "same"):
        one, two = done[0].predictions(task, "validation"), job.predictions(task, "validation")
        np.testing.assert_allclose(two.outputs, one.outputs, atol=2e-3)


def test_a_finished_trial_s_record_has_the_score_of_the_bank(done, tmp_path):
    """What the reports said of the folds before, whose mean may be higher, is not the trial's score."""
    job, record = done
    store = stores.open_store(job.study, job.folder)
    trial = store.ask()
    for report in job.reports:
        store.report(trial.key, epoch=report.fold + 1, score=report.score + 1, task_scores=report.task_scores)
    store.finish(trial.key, state=TrialState.FINISHED, score=record.score, task_scores=record.task_scores)
    [stored] = store.records()
    store.close()
    assert (stored.score, stored.task_scores) == (record.score, record.task_scores)
