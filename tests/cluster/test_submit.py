"""What a job takes with it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import aiohttp
import pytest
import requests

from tutti.cli import jobs
from tutti.cluster import submit
from tutti.cluster.client import cluster_faults
from tutti.cluster.shipped import FILES, keep
from tutti.cluster.submit import job_status, stage_study, stop_job, submit_study
from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study, load_study, parse_study
from tutti.config.pretraining import PretrainingConfig, load_pretraining
from tutti.config.pretraining_search import PretrainingSearch
from tutti.config.space import SearchSpace
from tutti.config.study import StudyConfig
from tutti.copies import working_copies
from tutti.errors import ClusterError, StorageError, StudyError, TrialError, UserError
from tutti.records import TrialState
from tutti.search.study_store import StudyStore
from tutti.workflows.stores import owner_of, read_study_file


@pytest.fixture
def staged(tmp_path):
    """Files as users keep them: some beside the study file, one on storage that every node sees."""

    def stage(study: StudyConfig) -> StudyConfig:
        (tmp_path / "job").mkdir()
        keep(tmp_path / "job" / FILES, stage_study(study, tmp_path / "job"))
        return parse_study(tmp_path / "job" / "study.json")

    return stage


@pytest.fixture
def study(tmp_path) -> StudyConfig:
    def put(name: str, text: str = "1\ta\tx\n") -> str:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    put("mine/backbone/config.json", "{}")
    put("mine/hub/train.csv", "text,label\n")
    return StudyConfig.model_validate(
        {
            "study": "s",
            "backbone": str(tmp_path / "mine/backbone"),
            "tasks": {
                "a": {
                    "layout": "competition",
                    "train": put("mine/train.tsv"),
                    "validation": put("mine/b/train.tsv", "another\n"),
                    "test": {"one": put("mine/one.tsv"), "two": put("shared/two.tsv")},
                    "unlabeled": put("shared/deep/unlabeled.tsv"),
                    "extra_train": [{"path": put("mine/extra.tsv"), "weight": 0.5}],
                },
                "b": {"layout": "competition", "train": str(tmp_path / "mine/train.tsv"), "test": put("mine/test.tsv")},
                "c": {"layout": "hub", "dataset": str(tmp_path / "mine/hub"), "train": "train"},
                "d": {"layout": "hub", "dataset": "org/name", "train": "train", "test": "test"},
            },
            "search": {"trials": 1},
            "storage": {"path": str(tmp_path / "shared")},
            "ensemble": {"recipe": put("mine/own.yaml", "members: {top: 3}\n")},
        }
    )


def test_older_studies_travel_with_what_is_learnt_from_them_and_nothing_else(study, staged, tmp_path):
    older = StudyFolder(tmp_path / "mine/older")
    older.trial("t0000").best.mkdir(parents=True)
    older.study_file.write_text("{}")
    store = StudyStore.open(older.optuna_url, name="older", space=SearchSpace(), sampler="tpe", seed=0)
    store.finish(store.ask().key, state=TrialState.FINISHED, score=0.5)  # in the database's log, for it is still open
    (tmp_path / "shared/kept").mkdir(parents=True)
    given = (str(older.path), str(tmp_path / "shared/kept"))
    job = staged(study.model_copy(update={"search": study.search.model_copy(update={"warm_start": given})}))
    store.close()
    assert job.search.warm_start == ("older/0/older", given[1])
    moved = StudyFolder(tmp_path / "job/older/0/older")
    assert sorted(file.name for file in moved.path.iterdir()) == ["optuna.db", "study.json"]
    copied = StudyStore.load(moved.optuna_url, name="older")
    assert [record.score for record in copied.records()] == [0.5]
    copied.close()


def test_an_older_study_on_a_database_server_travels_with_its_owner(study, staged, tmp_path):
    older = StudyFolder(tmp_path / "mine/older")
    older.path.mkdir()
    older.study_file.write_text("{}")
    older.database_file.write_text('{"study": "mine"}')
    warm = study.search.model_copy(update={"warm_start": (str(older.path),)})
    job = staged(study.model_copy(update={"search": warm}))
    assert owner_of(StudyFolder(tmp_path / "job" / job.search.warm_start[0])) == "mine"


def test_an_older_study_whose_database_is_damaged_is_named(study, staged, tmp_path):
    older = StudyFolder(tmp_path / "mine/older")
    older.path.mkdir()
    older.optuna_file.write_text("no database at all, however long it may be " * 99)
    warm = study.search.model_copy(update={"warm_start": (str(older.path),)})
    with pytest.raises(StorageError, match=f"{older.optuna_file} must be a database; got file is not a database"):
        staged(study.model_copy(update={"search": warm}))


def test_files_travel_to_the_study_s_folder_and_what_is_on_shared_storage_stays(study, staged, tmp_path):
    job = staged(study)
    a, b, c, d = (job.tasks[name] for name in "abcd")
    moved = [job.backbone, a.train, a.validation, a.test["one"], str(a.extra_train[0].path), b.test, c.dataset]
    assert len(set(moved)) == len(moved)
    [shipped] = (tmp_path / "shared/s/shipped").iterdir()
    for name in moved:
        assert Path(name).exists()
        assert Path(name).is_relative_to(shipped)
    assert Path(a.validation).read_text() == "another\n"
    assert (Path(job.backbone) / "config.json").is_file()
    assert b.train == a.train  # a file that two tasks name travels once
    assert a.test["two"] == str(tmp_path / "shared/two.tsv")
    assert a.unlabeled == str(tmp_path / "shared/deep/unlabeled.tsv")
    assert (d.dataset, d.train, c.train) == ("org/name", "train", "train")
    assert a.extra_train[0].weight == 0.5
    assert job.storage == study.storage


def test_what_git_ignores_travels_too(study, staged, tmp_path):
    (tmp_path / "mine/backbone/.gitignore").write_text("*.json\n")
    job = staged(study)
    assert [file.name for file in Path(job.backbone).iterdir()] == ["config.json"]


def test_the_same_files_travel_to_the_same_place_and_others_to_another(study, staged, tmp_path):
    places = []
    for text in ("1\ta\tx\n", "1\ta\tx\n", "changed\n"):
        (tmp_path / "mine/train.tsv").write_text(text)
        places.append(Path(staged(study).tasks["a"].train))
        shutil.rmtree(tmp_path / "job")
    assert places[0] == places[1] != places[2]
    assert [place.read_text() for place in places[1:]] == ["1\ta\tx\n", "changed\n"]


def test_files_that_find_no_room_are_told_in_a_sentence_and_leave_nothing_behind(study, tmp_path):
    (tmp_path / "job").mkdir()
    stage_study(study, tmp_path / "job")
    (tmp_path / "shared/s").write_text("no folder")
    place = str(tmp_path / "shared/s/shipped/0123")
    command = [sys.executable, "-m", "tutti.cluster.shipped", place]
    run = subprocess.run(command, cwd=tmp_path / "job", capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert re.fullmatch(rf"error: {re.escape(place)} must be written whole; got Not a directory; .*\n", run.stderr)


def test_a_study_on_object_storage_takes_its_files_from_the_job_and_its_folder_from_its_address(
    study, tmp_path, monkeypatch
):
    monkeypatch.setenv("TUTTI_CACHE", str(tmp_path / "here"))
    place = {"address": "s3://bucket/studies", "path": working_copies("s3://bucket/studies")}
    target = tmp_path / "job" / FILES
    target.parent.mkdir()
    monkeypatch.chdir(target.parent)
    keep(
        FILES, stage_study(study.model_copy(update={"storage": study.storage.model_copy(update=place)}), target.parent)
    )
    monkeypatch.setenv("TUTTI_CACHE", str(tmp_path / "there"))
    loaded, folder = read_study_file(tmp_path / "job" / "study.json", overrides=[], shared=True)
    assert Path(loaded.tasks["a"].train) == target / "1" / "train.tsv"
    assert Path(loaded.ensemble.recipe).is_relative_to(target)
    assert folder.path == tmp_path / "there" / "s3" / "bucket" / "studies" / "s"


def test_a_recipe_file_travels(study, staged, tmp_path):
    job = staged(study)
    assert Path(job.ensemble.recipe).is_relative_to(tmp_path / "shared/s/shipped")
    assert load_study(tmp_path / "job" / "study.json").ensemble.recipe == job.ensemble.recipe
    assert Path(job.ensemble.recipe).read_text() == "members: {top: 3}\n"


def test_a_recipe_by_name_stays_a_name(study, staged):
    named = study.model_copy(update={"ensemble": study.ensemble.model_copy(update={"recipe": "per_task"})})
    assert staged(named).ensemble.recipe == "per_task"


def test_a_study_for_a_cluster_must_name_the_folder_that_all_nodes_see(study, staged, tmp_path, monkeypatch):
    monkeypatch.delenv("TUTTI_STUDIES", raising=False)
    staged(study)
    file = tmp_path / "job" / "study.json"
    with pytest.raises(StudyError, match=r"storage.path must .*set `storage.path` to a folder that every node sees"):
        read_study_file(file, overrides=["storage.path=null"], shared=True)
    given, _ = read_study_file(file, overrides=[f"storage.path={tmp_path / 'other'}"], shared=True)
    assert given.storage.path == tmp_path / "other"
    monkeypatch.setenv("TUTTI_STUDIES", str(tmp_path / "everywhere"))
    given, folder = read_study_file(file, overrides=["storage.path=null"], shared=True)
    assert given.storage.path == tmp_path / "everywhere"
    assert folder.path == tmp_path / "everywhere" / "s"


def test_files_too_large_to_travel_are_refused_with_their_sizes(study, staged, tmp_path, monkeypatch):
    monkeypatch.setattr(submit, "SHIPPED_MIB", 2)
    (tmp_path / "mine/backbone/model.safetensors").write_bytes(b"0" * 3 * 2**20)
    (tmp_path / "shared/two.tsv").write_bytes(b"0" * 3 * 2**20)
    with pytest.raises(StudyError) as caught:
        staged(study)
    assert f"{tmp_path / 'mine/backbone'} (3 MiB)" in str(caught.value)
    assert f"storage.path ({tmp_path / 'shared'})" in str(caught.value)
    assert "two.tsv" not in str(caught.value)
    assert not (tmp_path / "job" / "files").exists()


@pytest.mark.parametrize(
    ("uri", "is_seen"),
    [
        (None, True),
        ("http://mlflow:5000", True),
        ("postgresql://me@db/mlflow", True),
        ("sqlite:///SHARED/ml%66low.db?timeout=9", True),
        ("file:SHARED/runs", True),
        ("sqlite:////home/me/mlflow.db", False),
        ("sqlite+pysqlite:////home/me/mlflow.db", False),
        ("sqlite:///SHARED/../mlflow.db", False),
        ("file:/home/me/runs", False),
        ("file:///home/me/runs", False),
    ],
)
def test_a_job_tracks_only_where_the_cluster_sees_it_too(study, uri, is_seen):
    uri = uri and uri.replace("SHARED", str(study.storage.path))
    tracked = study.model_copy(update={"tracking": study.tracking.model_copy(update={"uri": uri})})
    error, match = (ClusterError, "must answer") if is_seen else (StudyError, f"tracking.uri must .*; got {uri}; write")
    with pytest.raises(error, match=match.replace("+", r"\+")):
        submit_study(tracked, address="http://127.0.0.1:9", options=[])


def test_a_file_that_cannot_be_copied_is_named(study, tmp_path):
    """By a link that leads nowhere: root, as whom tests may run, can read every file."""
    link = tmp_path / "mine/backbone/model.safetensors"
    link.symlink_to(tmp_path / "gone")
    rule = f"{link} must be copied to travel with the job; got No such file or directory; check that it can be read"
    with pytest.raises(StorageError, match=f"^{re.escape(rule)}"):
        submit_study(study, address="http://127.0.0.1:9", options=[])


def test_a_disk_without_room_for_copies_is_named(study, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(submit.shutil, "copy2", full)
        with pytest.raises(StorageError, match=r"must be copied .*; got No space left on device; .* has room"):
            submit_study(study, address="http://127.0.0.1:9", options=[])
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(StorageError, match=r"the temporary folder \(\$TMPDIR\) must be written whole"):
        submit_study(study, address="http://127.0.0.1:9", options=[])


def test_a_job_that_was_stopped_is_not_called_a_failure(study, monkeypatch, tmp_path, capsys):
    study_file = tmp_path / "study.json"
    study_file.write_text(dump_study(study))
    monkeypatch.setattr(submit, "submit_study", lambda *_, **__: "raysubmit_1")
    monkeypatch.setattr(submit, "job_status", lambda *_, **__: "STOPPED")
    monkeypatch.setattr(submit, "follow_job", lambda *_, **__: "STOPPED")
    rule = "the job raysubmit_1 must succeed; got STOPPED (its log is above); go on with --resume"
    with pytest.raises(TrialError, match=re.escape(rule)):
        jobs.submit(study_file, address="http://head:8265", wait=True)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"status": ""}, "an empty ID"),
        ({"stop": ""}, "an empty ID"),
        ({"status": "", "stop": ""}, "several of them"),
        ({"study_file": Path("study.yaml"), "status": ""}, "several of them"),
        ({}, "none of them"),
    ],
)
def test_an_empty_id_is_no_job(given, got):
    with pytest.raises(StudyError, match=f"be given one of STUDY.yaml, --status ID and --stop ID; got {got}"):
        jobs.submit(**given)


def test_a_cluster_that_does_not_answer_is_named_with_what_to_do(study):
    address = "http://127.0.0.1:9"
    with pytest.raises(ClusterError, match=f"the Ray cluster at {address} must answer"):
        submit_study(study, address=address, options=[])
    with pytest.raises(ClusterError, match="--address is its dashboard"):
        job_status("raysubmit_1", address=address)


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.ConnectionError("Max retries exceeded"),
        aiohttp.ServerDisconnectedError("Server disconnected"),
        aiohttp.WSServerHandshakeError(Mock(real_url="ws://head"), (), status=502, message="Bad gateway"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_head_that_goes_away_while_a_job_is_followed_is_named(error):
    match = "the Ray cluster at http://head:8265 must answer"
    with pytest.raises(ClusterError, match=match), cluster_faults("http://head:8265"):
        raise error


def test_a_reader_that_has_seen_enough_of_a_job_s_log_is_no_fault_of_the_cluster():
    with pytest.raises(BrokenPipeError), cluster_faults("http://head:8265"):
        raise BrokenPipeError


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ray://head:10001", "auto", ""])
def test_an_address_of_another_kind_is_the_user_s_mistake(address):
    with pytest.raises(UserError, match="--address must be http://HOST:PORT"):
        stop_job("raysubmit_1", address=address)


def test_the_address_given_counts_more_than_the_environment_s(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:10")
    with pytest.raises(ClusterError) as caught:
        job_status("raysubmit_1", address="http://127.0.0.1:9")
    assert "127.0.0.1:10" not in str(caught.value)
    assert os.environ["RAY_ADDRESS"] == "http://127.0.0.1:10"


def test_a_cluster_that_asks_for_a_token_is_told_plainly(monkeypatch, tmp_path):
    """A server that answers as Ray's dashboard does to a request without its token."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("authorization"))
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b"Unauthorized: Missing authentication token")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    seen: list[str | None] = []
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    try:
        with pytest.raises(ClusterError, match="be given the token that it was started with"):
            job_status("raysubmit_x", address=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
    assert seen


def test_a_pretraining_file_takes_its_texts_along_but_not_what_every_node_sees(tmp_path, monkeypatch):
    for name in ("mine/backbone/config.json", "mine/texts.txt", "shared/more.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    taken = {}

    def start(stage, command, **named):
        (tmp_path / "job").mkdir()
        keep(tmp_path / "job" / FILES, stage(tmp_path / "job"))
        taken.update(command=command, **named)
        return "job"

    monkeypatch.setattr(submit, "_submit", start)
    options = {"texts": ["mine/texts.txt", "shared/more.txt"], "backbone": "mine/backbone", "out": "shared/made"}
    monkeypatch.chdir(tmp_path)
    config = load_pretraining(PretrainingConfig, None, options, option=str, shared=True)
    assert submit.submit_pretraining(config, address="http://head:8265", options=[]) == "job"
    assert taken["command"] == ["backbone", "pretrain", "pretraining.yaml"]
    there = load_pretraining(PretrainingConfig, tmp_path / "job/pretraining.yaml", {}, option=str)
    assert there.texts[1] == tmp_path / "shared/more.txt"
    assert there.texts[0].is_relative_to(tmp_path / "shared/made.shipped")
    assert Path(there.backbone).is_relative_to(tmp_path / "shared/made.shipped")
    assert there.out == config.out
    downstream = config.model_copy(update={"search": PretrainingSearch(study=tmp_path / "mine/study.yaml")})
    with pytest.raises(StudyError, match=r"search\.study must be in .*shared, which every node sees"):
        submit.submit_pretraining(downstream, address="http://head:8265", options=[])
