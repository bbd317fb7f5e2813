"""Studies in a SQLite file."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from contextlib import closing

import pytest
from sqlalchemy import event

from tutti.config.folder import StudyFolder
from tutti.errors import StorageError, StudyError
from tutti.records import TrialState
from tutti.search import database
from tutti.search.study_store import StudyStore


def test_a_damaged_database_is_a_storage_error(url, tmp_path, space):
    (tmp_path / "optuna.db").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StorageError, match=r"optuna\.db"):
        StudyStore.open(url, name="s", space=space, sampler="tpe", seed=0)


@pytest.mark.parametrize("name", ["a {b}", "50%20off", "100%", "what?"])
def test_a_folder_is_taken_as_it_is_named(opened, tmp_path, name):
    folder = StudyFolder(tmp_path / name)
    opened(url=folder.optuna_url).ask()
    assert folder.optuna_file.is_file()
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_the_database_is_in_write_ahead_mode(opened, tmp_path):
    opened().ask()
    assert (tmp_path / "optuna.db-wal").is_file()


@pytest.mark.parametrize("name", ["study", "a {b}", "50%20off", "what?"])
def test_a_study_on_a_read_only_disk_can_be_read(opened, tmp_path, name):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    try:
        folder = StudyFolder(disk / name)
        store = opened(url=folder.optuna_url)
        store.ask()
        store.close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        reader = StudyStore.load(folder.optuna_url, name="s")
        assert [record.key for record in reader.records()] == ["t0000"]
        reader.close()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_reader_leaves_a_half_made_database_to_the_driver(opened, url, tmp_path):
    opened().close()
    with closing(sqlite3.connect(tmp_path / "optuna.db")) as connection, connection:
        connection.execute("DELETE FROM version_info")
        connection.execute("DELETE FROM alembic_version")
    with pytest.raises(StudyError, match="no database"):
        StudyStore.load(url, name="s")
    assert opened().ask().key == "t0000"


@pytest.fixture
def locked(tmp_path):
    """Locks the database against writers; calling the result releases it."""
    holder = sqlite3.connect(tmp_path / "optuna.db", check_same_thread=False, isolation_level=None)

    def lock():
        holder.execute("BEGIN IMMEDIATE")
        return holder.rollback

    yield lock
    holder.close()


def test_a_database_that_another_process_writes_to_is_waited_for(opened, locked):
    store = opened()
    key = store.ask().key
    release = threading.Timer(0.5, locked())
    release.start()
    store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})
    assert not release.is_alive()
    assert store.records()[0].scores_by_epoch == {1: 0.5}


def test_a_database_that_is_not_yet_in_write_ahead_mode_waits_for_another_writer_too(opened, locked, tmp_path):
    opened().close()
    with closing(sqlite3.connect(tmp_path / "optuna.db")) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    release = threading.Timer(0.5, locked())
    release.start()
    opened().ask()
    assert not release.is_alive()
    assert (tmp_path / "optuna.db-wal").is_file()


def test_a_database_that_stays_locked_is_said_and_nothing_is_lost(opened, locked, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.2)
    store = opened()
    key = store.ask().key
    store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})
    release = locked()
    with pytest.raises(StorageError, match=r"database is locked; end what holds it .*--resume: nothing is lost"):
        store.report(key, epoch=2, score=0.6, task_scores={"a": 0.6})
    with pytest.raises(StorageError, match="locked"):
        store.finish(key, state=TrialState.FINISHED)
    with pytest.raises(StorageError, match="locked"):
        store.ask()
    assert [(record.state, record.scores_by_epoch) for record in store.records()] == [(TrialState.RUNNING, {1: 0.5})]
    release()
    store.report(key, epoch=2, score=0.6, task_scores={"a": 0.6})
    store.finish(key, state=TrialState.FINISHED)
    assert (store.records()[0].score, store.records()[0].scores_by_epoch) == (0.6, {1: 0.5, 2: 0.6})
    assert store.ask().key == "t0001"


def test_a_database_whose_disk_is_full_is_said_and_nothing_is_lost(opened):
    store = opened()
    key = store.ask().key

    @event.listens_for(store._storage.engine, "checkout")
    def fill(connection, *given) -> None:  # SQLite then reports a full disk
        connection.execute("PRAGMA max_page_count = 1")

    with pytest.raises(StorageError, match="disk is full; free some space, and go on with --resume: nothing is lost"):
        store.report(key, epoch=1, score=0.5, task_scores={f"task-{number}": 0.5 for number in range(2000)})
    assert [record.state for record in store.records()] == [TrialState.RUNNING]
