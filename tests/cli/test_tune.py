"""``tutti tune`` on a real local Ray, a real database and a real MLflow store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from memory_tracker import MemoryTracker

from tutti.bank.bank import Bank
from tutti.cli.options import going_on, interruptible
from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study
from tutti.config.study import StudyConfig, Tracking
from tutti.data.prepared import Prepared
from tutti.errors import ClaimLostError, ClusterError, Fault, StorageError, TrialError
from tutti.orchestration.driver.study import StudyOutcome
from tutti.records import CheckpointRecord, TrialRecord, TrialState
from tutti.search.study_store import StudyStore
from tutti.tracking.protocol import readable
from tutti.workflows import stores, tracking_metadata
from tutti.workflows import tune as tune_
from tutti.workflows.base import StudyBase
from tutti.workflows.preparation import changed_keys
from tutti.workflows.tune import _run_trials

pytestmark = pytest.mark.ray
TASKS = ("mood", "same")


def test_every_trial_is_finished_with_its_scores(finished):
    records = finished.study.records()
    assert [record.key for record in records] == ["t0000", "t0001"]
    for record in records:
        assert record.state is TrialState.FINISHED
        assert record.score == max(record.scores_by_epoch.values())
        assert sorted(record.scores_by_epoch) == [1, 2]
        assert record.task_scores.keys() == set(TASKS)
        assert record.score == pytest.approx(sum(record.task_scores.values()) / 2)
        assert record.seconds > 0


def test_the_log_says_what_happened_and_what_to_do_next(finished):
    ended = r"^t0001 finished, epoch 2, score [01]\.\d{4}( \(best [01]\.\d{4}\))? \| "
    assert re.search(ended, finished.output, re.MULTILINE)
    assert re.search(
        r"^2 of 2 trials done, 0 running, best [01]\.\d{4} \(t000[01]\), in [\d:]{7}$", finished.output, re.MULTILINE
    )
    assert f"tutti ensemble {finished.study.folder.path} --recipe" in finished.output
    assert f"tutti ui {finished.study.folder.path}" in finished.output
    assert "Traceback" not in finished.output


def test_no_process_of_ray_is_left_behind(finished):
    assert finished.left_behind == []


def test_nothing_to_go_on_from_is_left_behind(finished):
    folder = finished.study.folder
    assert sorted(path.name for path in folder.trial("t0000").path.iterdir()) == ["best"]
    assert not list(folder.path.rglob("*.tmp"))


def test_mlflow_has_one_run_for_the_study_and_one_below_it_for_each_trial(finished):
    runs = finished.study.runs()
    assert runs.keys() == {"", "t0000", "t0001"}
    parent = runs[""]
    assert parent.info.status == "FINISHED"
    assert parent.data.params["search.trials"] == "2"
    assert parent.data.params["tasks.same.layout"] == "competition"
    best = max(record.score for record in finished.study.records())
    assert parent.data.metrics["best_score"] == pytest.approx(best)
    assert len(parent.data.params["data.mood.train"]) == 64  # SHA-256
    assert parent.data.tags["tutti.version.ray"]
    for key in ("t0000", "t0001"):
        assert runs[key].data.tags["mlflow.parentRunId"] == parent.info.run_id


def test_the_study_s_run_keeps_its_file_its_data_and_the_ids_of_its_split(finished):
    folder, parent = finished.study.folder, finished.study.runs()[""]
    files = folder.mlflow_artifacts / parent.info.run_id / "artifacts" / "study"
    assert sorted(file.name for file in files.iterdir()) == [
        "backbone.json",
        "prepared.json",
        "split.json",
        "study.json",
    ]
    split = json.loads((files / "split.json").read_text(encoding="utf8"))
    for task in TASKS:
        ids = Bank(folder.bank).predictions("t0000", task, "validation").ids.tolist()
        assert split[task] == {"validation": ids}
        assert f"| {task} |" in parent.data.tags["mlflow.note.content"]


def test_mlflow_lists_the_trials_with_each_task_s_score_and_what_the_search_space_varies(finished):
    from mlflow import MlflowClient

    experiment = MlflowClient(tracking_uri=finished.study.folder.mlflow_uri).get_experiment_by_name("tiny")
    columns = json.loads(experiment.tags["mlflow.sharedViewState.tutti"])["selectedColumns"]
    assert {"metrics.`score/mood`", "metrics.`score/same`", "params.`learning_rate`"} <= set(columns)


def test_a_trial_s_run_has_parameters_metrics_state_place_and_pictures(finished):
    from mlflow import MlflowClient

    client, folder = MlflowClient(tracking_uri=finished.study.folder.mlflow_uri), finished.study.folder
    runs = finished.study.runs()
    for record in finished.study.records():
        run = runs[record.key]
        assert run.info.status == "FINISHED"
        assert float(run.data.params["learning_rate"]) == readable(record.parameters["learning_rate"])
        tags = run.data.tags
        assert tags["tutti.state"] == "finished"
        assert tags["tutti.host"]
        assert tags["tutti.checkpoint"] == str(folder.trial(record.key).best)
        metrics = run.data.metrics
        assert metrics["score"] == readable(record.score)
        assert metrics["seconds"] == pytest.approx(record.seconds, abs=1)
        for task in TASKS:
            assert metrics[f"score/{task}"] == readable(record.task_scores[task])
            points = client.get_metric_history(run.info.run_id, f"{task}/macro_f1")
            assert sorted(point.step for point in points) == [1, 2]
        scores = client.get_metric_history(run.info.run_id, "validation_score")
        assert {point.step: point.value for point in scores} == {
            epoch: readable(score) for epoch, score in record.scores_by_epoch.items()
        }
        steps = sorted(point.step for point in client.get_metric_history(run.info.run_id, "train/loss"))
        assert steps == [*range(2, 25, 2)]  # 2 tasks of 90 rows by 16 are 12 steps an epoch
        pictures = client.list_artifacts(run.info.run_id, "pictures/confusion_matrix")
        assert sorted(Path(picture.path).name for picture in pictures) == [f"{task}.png" for task in TASKS]
        picture = Path(client.download_artifacts(run.info.run_id, pictures[0].path))
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_best_checkpoint_loads_with_plain_transformers_and_with_tutti(finished):
    import torch
    from transformers import AutoModel, AutoTokenizer

    from tutti.modeling.checkpoint import load_checkpoint

    for record in finished.study.records():
        folder = finished.study.folder.trial(record.key).best
        model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        ours, metadata = load_checkpoint(folder)
        batch = tokenizer("w1 w20", return_tensors="pt")
        with torch.no_grad():
            hidden = model.eval()(**batch).last_hidden_state
            same = ours.encoder.eval()(**batch).last_hidden_state
        assert torch.equal(hidden, same)
        assert hidden.shape == (1, 4, 32)
        assert metadata.score == pytest.approx(record.score)
        assert [task.name for task in metadata.tasks] == list(TASKS)


def test_the_bank_has_what_each_trial_says_about_every_part(finished):
    bank = Bank(finished.study.folder.bank)
    assert [record.key for record in bank.records()] == ["t0000", "t0001"]
    for key in ("t0000", "t0001"):
        assert {task: sorted(parts) for task, parts in bank.parts(key).items()} == {
            task: ["test", "unlabeled", "validation"] for task in TASKS
        }
        assert len(bank.predictions(key, "mood", "test").ids) == 23
        assert len(bank.predictions(key, "same", "unlabeled").ids) == 37
        assert bank.predictions(key, "same", "validation").labels is not None


@pytest.mark.parametrize(
    ("ways", "become"),
    [
        (["longest_first"], "are cut"),
        (["head_tail"], "keep their first and last tokens"),
        (["windows", "longest_first"], "are cut or are read in windows"),
    ],
)
def test_a_max_length_that_texts_exceed_is_told_with_their_share(make_study, tmp_path, capsys, ways, become):
    from tutti.workflows.preparation import prepare_study

    space = {"truncation": {"type": "categorical", "choices": ways}}
    study = make_study(tmp_path, training__max_length=8, search_space=space)
    prepare_study(StudyBase(*stores.read_study_file(study.file, overrides=[])), resume=False)
    told = [line for line in capsys.readouterr().out.splitlines() if "max_length" in line]
    assert [line.split(":")[0].strip() for line in told] == ["mood", "same"]
    assert all(f"% of the rows reach max_length, 8 tokens; longer ones {become}" in line for line in told)


def test_that_test_rows_are_numbered_is_told_unless_a_sample_names_their_ids(make_study, tmp_path, capsys):
    from tutti.workflows.preparation import prepare_study

    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"w{row % 9} w{row},{row % 2}\n" for row in range(40)))
    (tmp_path / "test.csv").write_text("row_id,essay_id,text\n5,7,w1\n4,8,w2\n")
    (tmp_path / "sample.csv").write_text("essay_id,label\n8,0\n7,0\n")
    (tmp_path / "own.yaml").write_text("submission: {templates: {t: sample.csv}}\n")
    task = {"layout": "table", **{part: str(tmp_path / f"{part}.csv") for part in ("train", "test")}}
    for name, recipe, ids in (("one", "auto", ["0", "1"]), ("two", str(tmp_path / "own.yaml"), ["7", "8"])):
        study = make_study(tmp_path / name, tasks={"t": task}, ensemble__recipe=recipe)
        prepared = prepare_study(StudyBase(*stores.read_study_file(study.file, overrides=[])), resume=False)
        assert prepared.ids("t", "test").tolist() == ids
        told = [line for line in capsys.readouterr().out.splitlines() if "numbered from 0" in line]
        assert [line.split(", as")[0] for line in told] == ["  t: the rows of test.csv are numbered from 0"][
            : name == "one"
        ]


def opened(study: StudyConfig, folder: StudyFolder) -> StudyBase:
    """A study without rows."""
    base = StudyBase(study, folder)
    base.prepared = Prepared(folder.data, (), {}, {}, {})
    return base


def _study(tmp_path: Path, **changes) -> StudyConfig:
    task = {"layout": "competition", "train": str(tmp_path / "train.tsv"), "test": str(tmp_path / "test.tsv")}
    return StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"a": task}, **changes})


def test_what_defines_a_study_s_results_may_not_change(tmp_path):
    old = _study(tmp_path, training={"learning_rate": 1e-3, "pooling": "cls"})
    new = _study(tmp_path, training={"learning_rate": 2e-3}, backbone="c", search={"seed": 7}, resources={"workers": 2})
    assert changed_keys(old, new) == {
        "backbone": ("b", "c"),
        "resources.workers": (1, 2),
        "search.seed": (0, 7),
        "training.learning_rate": (1e-3, 2e-3),
        "training.pooling": ("cls", None),
    }


def test_budget_resources_and_places_may_change(tmp_path):
    new = {
        "search": {
            "trials": 99,
            "max_hours": 9,
            "target_score": 0.9,
            "patience": 5,
            "max_trial_hours": 1,
            "retries": 5,
        },
        "resources": {"cpus_per_worker": 2, "gpus_per_worker": 1, "concurrent_trials": 3, "isolation": "isolated"},
        "tracking": {"uri": "http://h"},
        "storage": {"path": "/elsewhere"},
        "ensemble": {"recipe": "baseline"},
        "backbone": "/moved/b",
    }
    old, moved = _study(tmp_path), _study(tmp_path / "moved", **new)
    before, after = (tracking_metadata.flat(study.model_dump(mode="json")) for study in (old, moved))
    assert [key for key in tracking_metadata.flat(new) if before[key] == after[key]] == []  # or it would show nothing
    assert changed_keys(old, moved) == {}


def test_a_study_that_is_interrupted_before_its_trials_says_how_it_goes_on(tmp_path, monkeypatch, capsys):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_, "prepare_study", interrupted)
    study, folder = _study(tmp_path), StudyFolder(tmp_path / "studies" / "s")
    with pytest.raises(SystemExit) as ended, interruptible(going_on(lambda: "tutti tune study.yaml --resume")):
        tune_.run(StudyBase(study, folder), resume=False)
    assert ended.value.code == 130
    assert "Interrupted; go on with `tutti tune study.yaml --resume`." in capsys.readouterr().out


def test_a_study_whose_tracker_cannot_be_opened_is_given_back(tmp_path, monkeypatch):
    study, folder, closed = _study(tmp_path), StudyFolder(tmp_path / "studies" / "s"), []
    (folder.path / "tracking.jsonl").mkdir(parents=True)
    close = StudyStore.close
    monkeypatch.setattr(StudyStore, "close", lambda store: [closed.append(store), close(store)])
    with pytest.raises(StorageError, match=r"tracking.jsonl must be written whole"):
        _run_trials(opened(study, folder), concurrent=1)
    assert len(closed) == 1


def test_what_a_worker_leaves_behind_that_lives_until_ray_ends_is_cleared_away(tmp_path, monkeypatch):
    study, folder = _study(tmp_path), StudyFolder(tmp_path / "studies" / "s")
    bank, stopped = Bank(folder.bank), TrialRecord("t0000", 0, TrialState.STOPPED)

    @contextmanager
    def ray(*_: object, **__: object) -> Iterator[int]:
        yield 1
        bank.put(CheckpointRecord(stopped.key, 0, 1, 0.5, {"a": 0.5}, None), {})

    outcome = StudyOutcome(trials=(stopped,), interrupted=(), complete=True)
    monkeypatch.setattr("tutti.cluster.connect.connected", ray)
    monkeypatch.setattr("tutti.cluster.connect.gpus_of_cluster", lambda: 0)
    for module, name, answer in (
        (tune_, "prepare_study", None),
        (tune_, "_run_trials", outcome),
        (tracking_metadata, "write_split", None),
    ):
        monkeypatch.setattr(module, name, lambda *given, answer=answer, **named: answer)
    tune_.run(StudyBase(study, folder), resume=False)
    assert bank.records() == []


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ClaimLostError, TrialState.RUNNING),
        (ClusterError, TrialState.INTERRUPTED),
        (TrialError, TrialState.FAILED),  # every trial
    ],
)
def test_the_run_of_a_study_tells_how_it_ended_unless_another_driver_has_it(tmp_path, monkeypatch, error, state):
    def ended(*given, **named):
        raise error(Fault("the study 's'", "be run by one process at a time", "another one", "wait"))

    study, folder, tracker = _study(tmp_path), StudyFolder(tmp_path / "studies" / "s"), MemoryTracker()
    folder.path.mkdir(parents=True)
    folder.study_file.write_text(dump_study(study))
    monkeypatch.setattr(stores, "open_tracker", lambda *_: tracker)
    monkeypatch.setattr("tutti.orchestration.driver.study.run_study", ended)
    with pytest.raises(error):
        _run_trials(opened(study, folder), concurrent=1)
    assert tracker.runs[""].state is state


def test_a_study_keeps_the_stores_that_it_has_begun_with_whatever_the_environment_says(tmp_path, monkeypatch):
    here, there, third = (f"http://{name}:5000" for name in ("here", "there", "third"))
    unnamed, folder = _study(tmp_path), StudyFolder(tmp_path / "studies" / "s")

    def chosen(uri: str | None = None) -> tuple[str | None, str | None]:
        study = stores.with_stores(unnamed.model_copy(update={"tracking": Tracking(uri=uri)}), folder)
        return study.storage.database, study.tracking.uri

    database = "postgresql://tutti@db/optuna"
    for name, value in {"TUTTI_DATABASE": database, "MLFLOW_TRACKING_URI": there}.items():
        monkeypatch.setenv(name, value)
    assert chosen() == (database, there)
    assert chosen(third) == (database, third)
    folder.path.mkdir(parents=True)
    folder.study_file.write_text(dump_study(unnamed))
    assert chosen() == (database, there)  # a start that failed binds nothing
    folder.optuna_file.touch()
    assert chosen() == (None, None)
    folder.study_file.write_text(dump_study(unnamed.model_copy(update={"tracking": Tracking(uri=here)})))
    assert chosen() == (None, here)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert chosen() == (None, here)
    assert chosen(third) == (None, third)
