"""``tutti tune --resume`` and ``tutti ensemble`` on a study that has all its trials, without a Ray."""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from bad_input_changes import own_test_file
from bad_input_run import Templates, inside, make_templates, run

from tutti.cluster import connect
from tutti.config.folder import StudyFolder
from tutti.config.load import parse_study
from tutti.records import TrialState
from tutti.tracking.spool import Spool
from tutti.workflows import stores
from tutti.workflows import tune as tune_
from tutti.workflows.console import program


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Templates:
    return make_templates(tmp_path_factory.mktemp("finished") / "templates")


@pytest.fixture
def folder(templates: Templates, tmp_path: Path) -> Path:
    copy = shutil.copytree(templates.finished, tmp_path / "my [bold] study", symlinks=True)
    own_test_file(copy)
    return copy


def test_a_complete_study_resumed_shows_its_table_and_tells_its_tracker_without_a_ray(folder):
    import ray
    from mlflow import MlflowClient

    spool = folder / "studies/moods/tracking.jsonl"
    Spool(spool).append({"call": "start_study", "parameters": {}, "tags": {"left": "here"}, "columns": [], "files": []})
    result = run(folder, "tune study.yaml --resume", code=0, env={"TUTTI_STUDIES": "elsewhere"})
    assert "Starting Ray" not in result.out
    assert not ray.is_initialized()
    assert "1 of 1 trial done, 0 running, best " in result.out
    assert "t0000 finished" not in result.out  # that was news when it ended
    assert "no new one was begun" not in result.out
    assert f"  tutti ensemble '{folder / 'studies/moods'}' --recipe auto\n" in result.out
    assert f"  tutti ui '{folder / 'studies/moods'}'\n" in result.out
    assert Spool(spool).pending() == 0
    assert [file.name for file in spool.parent.glob("optuna.db-*")] == []
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'studies/moods/mlflow.db'}")
    [parent] = client.search_runs([client.get_experiment_by_name("moods").experiment_id])
    assert parent.data.tags["left"] == "here"
    assert parent.info.status == "FINISHED"


def test_a_checkpoint_and_predictions_that_were_really_made_are_sound(folder):
    states, _ = run(folder, "doctor studies/moods", code=0).out.splitlines()
    assert states == "trials/t0000: what it would go on from, and the trial has ended; removed"
    assert run(folder, "doctor studies/moods", code=0).out == "The study moods is healthy.\n"


def test_a_study_that_lacks_trials_or_has_one_cut_off_is_not_over(folder):
    from tutti.workflows import stores
    from tutti.workflows.tune import _is_over

    with inside(folder):
        study, place = stores.read_study_file(Path("study.yaml"), overrides=[])
        assert _is_over(study, place)
        more, _ = stores.read_study_file(Path("study.yaml"), overrides=["search.trials=2"])
        assert not _is_over(more, place)
        stores.open_store(study, place).ask()
        assert not _is_over(more, place)
        (place.path / "optuna.db").unlink()
        assert not _is_over(study, place)


@pytest.mark.parametrize(
    ("interrupted", "trials", "sentence"),
    [
        ((), 0, "Interrupted: no trial cut off, 3 not begun; go on with `tutti tune --resume`."),
        ((), 2, "Interrupted: no trial cut off, 1 not begun; go on with `tutti tune --resume`."),
        (("t0001",), 2, "Interrupted: 1 trial cut off, 1 not begun; go on with `tutti tune --resume`."),
        (("t0001", "t0002"), 3, "Interrupted: 2 trials cut off; go on with `tutti tune --resume`."),
    ],
)
def test_an_interrupted_study_says_what_it_has_left_to_do(folder, capsys, interrupted, trials, sentence):
    from tutti.cli.options import going_on, interruptible
    from tutti.orchestration.driver.study import StudyOutcome
    from tutti.workflows.base import StudyBase
    from tutti.workflows.tune import _show_outcome

    with inside(folder):
        study, place = stores.read_study_file(Path("study.yaml"), overrides=["search.trials=3"])
        with closing(stores.open_store(study, place)) as store:
            records = store.records() * trials
        outcome = StudyOutcome(trials=tuple(records), interrupted=interrupted, complete=False)
        with pytest.raises(SystemExit) as exited, interruptible(going_on(lambda: "tutti tune --resume")):
            _show_outcome(StudyBase(study, place), outcome, records, seconds=1.0)
    assert exited.value.code == 130
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_a_study_that_has_lost_its_database_is_not_begun_again_over_its_trials(folder):
    (folder / "studies/moods/optuna.db").unlink()
    for options in ("", " --resume"):
        result = run(folder, f"tune study.yaml{options}", code=2)
        assert "the study 'moods' must have optuna.db or database.json beside its trials" in result.err
    assert (folder / "studies/moods/bank").is_dir()


def _only_trial(folder: Path, *, state: TrialState | None) -> None:
    """Replaces the finished study's trial by one that ended in this state, or runs still, after an epoch."""
    place = StudyFolder(folder / "studies/moods")
    (folder / "studies/moods/optuna.db").unlink()
    shutil.rmtree(place.bank)
    with closing(stores.open_store(parse_study(place.study_file), place)) as store:
        key = store.ask().key
        store.report(key, epoch=1, score=0.5, task_scores={"mood": 0.5})
        if state:
            store.finish(key, state=state, reason="index out of range")


@pytest.mark.parametrize("options", ["", " --resume"])
def test_a_study_whose_trials_all_failed_starts_anew_with_what_has_changed(folder, monkeypatch, options):
    place, begun = StudyFolder(folder / "studies/moods"), []
    _only_trial(folder, state=TrialState.FAILED)
    owner = place.owner
    place.mlflow_file.touch()
    monkeypatch.setattr(tune_, "_run_trials", lambda *_, **__: begun.append(place.begun) or sys.exit(3))
    monkeypatch.setattr(connect, "connected", lambda *_, **__: nullcontext(1))
    monkeypatch.setattr(connect, "gpus_of_cluster", lambda: 0)
    result = run(folder, f"tune study.yaml --set training.max_length=12{options}", code=3)
    assert "The study moods has failed trials alone: starting it anew" in result.out
    assert begun == [False]
    assert (place.has_trials, place.owner) == (False, None)  # MLflow keeps the failed trial's run, as another study's
    assert owner is not None
    assert place.mlflow_file.is_file()
    assert parse_study(place.study_file).training["max_length"] == 12


@pytest.mark.parametrize(
    ("state", "options", "sentence"),
    [
        (TrialState.STOPPED, "", "add --resume to go on with it"),
        (None, "", "add --resume to go on with it"),
        (TrialState.FAILED, "--resume --trials 2", "training.max_length of the study 'moods' must stay as it was"),
    ],
)
def test_a_study_that_has_another_trial_or_may_have_more_is_not_started_anew(folder, state, options, sentence):
    _only_trial(folder, state=state)
    result = run(folder, f"tune study.yaml --set training.max_length=12 {options}", code=2)
    assert sentence in result.err
    assert StudyFolder(folder / "studies/moods").begun


def test_a_database_server_without_the_study_is_not_written_to_its_folder(folder, monkeypatch):
    (folder / "studies/moods/optuna.db").rename(folder / "other.db")
    (folder / "studies/moods/database.json").write_text('{"study": "us"}')
    before = (folder / "studies/moods/study.json").read_bytes()
    optuna.create_study(storage=f"sqlite:///{folder / 'empty.db'}", study_name="x")
    monkeypatch.setattr(stores, "check_stores", lambda study, place: None)  # no server runs here
    monkeypatch.setattr(stores, "database_url", lambda study, place: f"sqlite:///{folder / 'empty.db'}")
    for _ in range(2):
        server = "--set storage.database=postgresql://host/other"
        result = run(folder, f"tune study.yaml --resume {server}", code=2)
        assert "the study 'moods' must be in the database in which it began" in result.err
        assert (folder / "studies/moods/study.json").read_bytes() == before


def test_a_study_that_has_reached_a_limit_says_why_it_ended_and_how_to_go_on_without_a_ray(folder):
    import ray

    limits = "--set search.trials=9 --set search.target_score=0"
    result = run(folder, f"tune study.yaml --resume {limits}", code=0)
    assert not ray.is_initialized()
    assert "1 of 9 trials done, 0 running, best " in result.out
    assert "Ended early: t0000 has reached the score 0 with " in result.out
    again = "tutti tune study.yaml --resume --set search.trials=9"  # the limit, set there, would be none without it
    assert f"raise or remove search.target_score and run `{again}`." in result.out
    run(folder, "ensemble studies/moods", code=0)


def test_trials_that_the_hours_cut_off_are_not_called_running_while_there_are_no_more_hours(folder):
    with inside(folder):
        study, place = stores.read_study_file(Path("study.yaml"), overrides=["search.trials=9"])
        with closing(stores.open_store(study, place)) as store:
            store.ask()
            store.keep_run_seconds(3600)
    limits = "--set search.trials=9 --set search.max_hours=1"
    result = run(folder, f"tune study.yaml --resume {limits}", code=0)
    assert "t0001 interrupted | 1 of 9 trials done, 0 running, 1 interrupted, best " in result.out
    assert "t0001 running" not in result.out
    assert "Ended early: its trials have run for 1 h. " in result.out


def test_fewer_trials_than_the_study_has_are_said_to_begin_none(folder):
    with inside(folder):
        study, place = stores.read_study_file(Path("study.yaml"), overrides=["search.trials=2"])
        with closing(stores.open_store(study, place)) as store:
            store.finish(store.ask().key, state=TrialState.FAILED)
    result = run(folder, "tune study.yaml --resume --trials 1", code=0)
    assert "\nIt has more trials than the 1 asked for, so no new one was begun.\n" in result.out


def test_the_command_is_named_as_it_can_be_typed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/tutti", "demo"])
    assert program() == ".venv/bin/tutti"
    monkeypatch.setattr(sys, "argv", ["my venv/bin/tutti", "demo"])
    assert program() == "'my venv/bin/tutti'"
    monkeypatch.setattr(sys, "argv", ["/site-packages/tutti/__main__.py", "demo"])
    assert program() == f"{sys.executable} -m tutti"
    (tmp_path / "tutti").touch(mode=0o755)
    assert program() == "tutti"


def test_a_resumed_study_with_a_lower_limit_loses_weights_and_votes_as_before(folder):
    from stored_study import put_checkpoint

    from tutti.bank.bank import Bank

    with inside(folder):
        study, place = stores.read_study_file(Path("study.yaml"), overrides=[])
    store, bank = stores.open_store(study, place), Bank(place.bank)
    key = store.ask().key
    store.report(key, epoch=1, score=0.01, task_scores={"mood": 0.01})
    store.finish(key, state=TrialState.FINISHED)
    store.close()
    put_checkpoint(place.trial(key).best, number=1, score=0.01, size=1000)
    held = bank.parts("t0000")
    predictions = {task: {part: bank.predictions("t0000", task, part) for part in held[task]} for task in held}
    worse = replace(bank.records()[0], key=key, number=1, score=0.01, path="there")
    bank.put(replace(worse, task_scores={"mood": 0.01}), predictions)
    run(folder, "tune study.yaml --resume --trials 2 --set storage.max_gigabytes=1e-6", code=0)
    assert (place.trial("t0000").best / "tutti.json").is_file()  # the best of all
    assert not place.trial(key).best.exists()
    assert [record.path for record in bank.records()][1] is None
    run(folder, "ensemble studies/moods", code=0)
    card = json.loads((folder / "studies/moods/ensembles/auto/card.json").read_text(encoding="utf8"))
    assert [single["key"] for single in card["singles"]] == ["t0000", "t0001"]
    assert run(folder, "doctor studies/moods", code=0).out == "The study moods is healthy.\n"


def test_a_test_file_that_is_gone_is_not_missed(folder):
    (folder / "mood_test.tsv").unlink()
    run(folder, "ensemble studies/moods", code=0)
    lines = (folder / "studies/moods/ensembles/auto/mood_predict.json").read_text(encoding="utf8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [f"t{row}" for row in range(6)]


def test_an_ensemble_is_shown_with_the_scores_of_rows_that_chose_nothing(folder):
    import pandas as pd

    from tutti.bank.bank import Bank
    from tutti.data.prepared import load_prepared, write_part
    from tutti.tasks.predictions import Predictions

    bank = Bank(folder / "studies/moods/bank")
    first = bank.records()[0]
    test = bank.predictions(first.key, "mood", "test")
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=90)
    ids = np.array([str(row) for row in range(90)])
    known = load_prepared(folder / "studies/moods/data").parts["mood"]["validation"].path
    write_part(pd.DataFrame({"id": ids, "text": [f"a {n}" for n in range(90)], "label": labels}), known)
    for number in range(3):
        votes = rng.dirichlet([0.5] * 3, 90) + np.eye(3)[labels] * 0.7
        probabilities = (votes / votes.sum(axis=1, keepdims=True)).astype(np.float32)
        held = Predictions(ids=ids, outputs=probabilities, labels=labels, names=test.names)
        record = replace(first, key=f"t{number:04d}", number=number)
        bank.put(record, {"mood": {"validation": held, "test": test}})
    result = run(folder, "ensemble studies/moods --recipe auto", code=0).out
    card = json.loads((folder / "studies/moods/ensembles/auto/card.json").read_text(encoding="utf8"))
    shown = card["tasks"][0]
    half = shown["score"]["score"] - shown["score"]["low"]
    assert f"{shown['score']['score']:.4f} ± {half:.4f}" in result
    assert card["objective"]["score"] == shown["score"]["score"]
    assert re.search(r"task +best trial +vote +gain\nmood ", result)
    assert "On 90 validation rows the vote" in result
    assert "rows that had no part in choosing members" in result


def test_an_ensemble_of_too_few_validation_rows_says_that_it_has_no_score(folder):
    result = run(folder, "ensemble studies/moods", code=0).out
    assert "Too few validation rows of different texts or groups to score on, fewer than 25: mood (3 in all)." in result
    assert "±" not in result
