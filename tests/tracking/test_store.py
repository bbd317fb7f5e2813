"""Errors of a store: refusals, after which an event is skipped, and temporary ones, after which it is retried."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import RestException
from sqlalchemy.exc import DataError, IntegrityError, InternalError, TimeoutError
from sqlalchemy.orm import Session

from tutti.config.address import to_read
from tutti.config.folder import sqlite_url
from tutti.errors import TrackingError
from tutti.tracking.protocol import RefusedError
from tutti.tracking.queued import QueuedTracker
from tutti.tracking.store import create_whole, experiment_id, store_faults, write_ahead

NONE = {"parameters": {}, "tags": {}}
PASSES = {
    "no connection to spare": TimeoutError("QueuePool limit of size 5 overflow 10 reached", code="3o7r"),
    "a standby": InternalError("UPDATE runs", {}, Exception("cannot execute UPDATE in a read-only transaction")),
    "a standby, of a value that names another error": InternalError(
        "UPDATE runs", {"reason": "see https://sqlalche.me/e/20/gkpj"}, Exception("read-only transaction")
    ),
}
REFUSES = {
    "a value too long": DataError("INSERT INTO tags", {}, Exception("value too long for type character varying(8000)")),
    "a row that is not there": IntegrityError("INSERT INTO tags", {}, Exception("violates foreign key constraint")),
}


@pytest.mark.parametrize("name", [*PASSES, *REFUSES])
def test_of_a_database_s_errors_those_of_what_it_was_given_are_refusals(tracker, monkeypatch, name):
    error = (PASSES | REFUSES)[name]

    def fails(session):
        raise error

    monkeypatch.setattr(Session, "commit", fails)
    with pytest.raises(TrackingError) as caught:
        tracker.log_metrics("", {"loss": 1.0}, step=1, at=1.0)
    assert isinstance(caught.value, RefusedError) == (name in REFUSES)


@pytest.mark.parametrize("name", [*PASSES, *REFUSES])
def test_a_server_s_words_tell_its_database_s_errors_apart(name):
    answer = {"error_code": "BAD_REQUEST", "message": str((PASSES | REFUSES)[name])}
    with pytest.raises(TrackingError) as caught, store_faults("sqlite://"):
        raise RestException(answer)
    assert isinstance(caught.value, RefusedError) == (name in REFUSES)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOTDIR, errno.EACCES, errno.ENOENT])
def test_a_place_that_takes_no_file_is_a_refusal_and_a_full_disk_is_not(number):
    with pytest.raises(RefusedError), store_faults("sqlite://"):
        raise OSError(number, "no")
    with pytest.raises(TrackingError) as caught, store_faults("sqlite://"):
        raise OSError(errno.ENOSPC, "full")
    assert not isinstance(caught.value, RefusedError)


@pytest.mark.parametrize("code", ["BAD_REQUEST", "INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"])
def test_what_a_server_itself_refuses_is_refused(code):
    with pytest.raises(RefusedError), store_faults("sqlite://"):
        raise RestException({"error_code": code, "message": "Invalid value for parameter 'key'"})


def test_a_database_without_a_connection_to_spare_for_a_moment_costs_no_event(tracker, uri, tmp_path, monkeypatch):
    queue = QueuedTracker(lambda: tracker, spool=tmp_path / "spool.jsonl")
    queue.start_trial("t0", number=0, **NONE)
    queue.log_metrics("t0", {"loss": 1.0}, step=1, at=1.0)
    errors, commit = [*PASSES.values()], Session.commit

    def fails_at_first(session):
        if errors:
            raise errors.pop()
        commit(session)

    monkeypatch.setattr(Session, "commit", fails_at_first)
    queue.start()
    assert queue.close(30) == 0
    runs = MlflowClient(tracking_uri=uri).search_runs([experiment_id(uri, "s")])
    assert {run.info.run_name: run.data.metrics for run in runs} == {"s": {}, "t0": {"loss": 1.0}}
    assert errors == []


@pytest.mark.usefixtures("tracker")
def test_a_store_in_a_folder_that_is_another_s_is_read_and_nothing_is_left_beside_it(uri, tmp_path, monkeypatch):
    file = tmp_path / "a b%20c?" / "mlflow.db"
    file.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(tmp_path / "mlflow.db", file)
    theirs = sqlite_url(file)
    write_ahead(theirs)
    assert to_read(theirs) == theirs
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(os, "access", lambda place, mode: mode != os.W_OK)
    assert experiment_id(to_read(theirs), "s") == experiment_id(uri, "s")
    assert [path.name for path in file.parent.iterdir()] == ["mlflow.db"]
    assert not list(Path.cwd().iterdir())  # MLflow makes the folders of what it takes for a path
    file.with_name("mlflow.db-wal").write_text("rows")
    assert to_read(theirs) == theirs
    assert to_read("postgresql://mlflow@host/mlflow") == "postgresql://mlflow@host/mlflow"


def test_a_store_whose_creation_is_cut_off_leaves_no_file_that_mlflow_cannot_open(tmp_path, monkeypatch):
    class KilledError(Exception):
        pass

    file, uri = tmp_path / "mlflow.db", sqlite_url(tmp_path / "mlflow.db")

    def dies(client, **options):
        raise KilledError  # where all tables are there, but not all that belongs to them

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "search_experiments", dies)
        with pytest.raises(KilledError):
            create_whole(uri)
    assert not file.exists()
    create_whole(uri)
    content = file.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    create_whole(uri)
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert MlflowClient(tracking_uri=uri).create_experiment("s")


def test_a_store_that_another_study_has_made_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    file, search = tmp_path / "mlflow.db", MlflowClient.search_experiments

    def late(client, **options):
        found = search(client, **options)
        file.write_text("theirs")
        return found

    monkeypatch.setattr(MlflowClient, "search_experiments", late)
    create_whole(sqlite_url(file))
    assert file.read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
