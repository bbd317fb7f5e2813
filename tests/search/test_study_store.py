"""A study's store is opened by its driver and by readers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import optuna
import pytest
from sqlalchemy import create_engine, text

from tutti.config.space import SearchSpace
from tutti.errors import StorageError, StudyError
from tutti.records import TrialState
from tutti.search.samplers import STARTUP_TRIALS
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Resumption


@pytest.fixture
def url(each_database) -> str:
    return each_database


def test_a_driver_asks_once_for_each_write_whether_the_study_is_still_its_own(opened):
    store, checks = opened(), []
    key = store.ask().key
    if store._claim:
        store._claim.close()
    store._claim = SimpleNamespace(ensure=lambda: checks.append(None), close=lambda: None)

    def times(call: Callable[[], object]) -> int:
        checks.clear()
        call()
        return len(checks)

    assert times(lambda: store.keep(key, Resumption())) == 1
    assert times(lambda: store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})) == 2
    assert times(lambda: store.forget_reports(key)) == 1
    assert times(lambda: store.finish(key, state=TrialState.STOPPED)) == 2
    assert times(store.unfinished) == 1  # the read that finds nothing to write


def test_a_study_kept_in_the_other_direction_is_refused(opened, url):
    optuna.create_study(storage=url, study_name="s", direction="minimize")
    with pytest.raises(StudyError, match=r"score \(maximize\); got score \(minimize\)"):
        opened()


def test_a_study_of_several_objectives_that_was_not_made_here_is_refused_too(opened, url):
    optuna.create_study(storage=url, study_name="s", directions=["maximize", "minimize"])
    with pytest.raises(StudyError, match=r"score \(maximize\); got \? \(maximize\), \? \(minimize\)"):
        opened()


def test_every_changed_parameter_is_named_when_a_study_is_opened_again(opened, run_trials):
    run_trials(opened(), 1)
    changed = {
        "pooling": {"type": "categorical", "choices": ["cls"]},
        "dropout": {"type": "int", "low": 1, "high": 2},
        "epochs": {"type": "int", "low": 2, "high": 30},
    }
    with pytest.raises(StudyError) as caught:
        opened(space=SearchSpace.model_validate(changed))
    assert [fault.what for fault in caught.value.faults] == ["search_space.dropout", "search_space.pooling"]


def test_a_reader_sees_what_the_driver_writes_and_cannot_write(opened, url):
    store = opened()
    key = store.ask().key
    reader = StudyStore.load(url, name="s")
    store.report(key, epoch=1, score=0.5, task_scores={})
    assert reader.records()[0].scores_by_epoch == {1: 0.5}
    with pytest.raises(StorageError, match=r"read-?only"):
        reader.finish(key, state=TrialState.FAILED)
    reader.close()


def test_reading_a_study_that_is_not_there_is_a_study_error_and_makes_no_file(opened, url, tmp_path):
    with pytest.raises(StudyError, match="no database"):
        StudyStore.load(url, name="s")
    assert list(tmp_path.iterdir()) == []
    opened()
    with pytest.raises(StudyError, match="'other'"):
        StudyStore.load(url, name="other")


def test_a_database_that_cannot_be_reached_is_named_without_its_password(space):
    with pytest.raises(StorageError) as caught:
        StudyStore.open("nosuch://me:secret@host/db", name="s", space=space, sampler="tpe", seed=0)
    assert "secret" not in str(caught.value)


def test_tables_that_another_optuna_has_made_are_a_fault_of_the_database(opened, url, space):
    opened().close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'v99'"))
    engine.dispose()
    for call in (opened, lambda: StudyStore.load(url, name="s")):
        with pytest.raises(StorageError, match="be read and written; got The runtime optuna version"):
            call()


@pytest.mark.parametrize("mend", [False, True])
def test_another_folder_s_study_of_that_name_is_neither_read_nor_mended(opened, url, mend):
    theirs = opened(owner="them")
    theirs.ask()
    theirs.close()
    with pytest.raises(StudyError, match="have been started; got one of that name, of another folder"):
        StudyStore.load(url, name="s", owner="us", mend=mend)
    StudyStore.load(url, name="s", owner="them", mend=mend).close()


def test_opening_a_study_logs_nothing(opened, run_trials, capfd):
    run_trials(opened(), STARTUP_TRIALS + 2)
    opened()
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("optuna").level == logging.ERROR


def test_a_study_can_be_made_under_the_eyes_of_readers(opened, url):
    """Optuna writes its version into a database on opening it, where a reader may come before the driver."""
    made = threading.Event()

    def look() -> None:
        while not made.is_set():
            with suppress(StudyError):
                StudyStore.load(url, name="s").close()

    with ThreadPoolExecutor(4) as readers:
        looks = [readers.submit(look) for _ in range(4)]
        try:
            assert opened().ask().key == "t0000"
        finally:
            made.set()
    for each in looks:
        each.result()


def test_studies_that_begin_at_once_in_one_database_are_all_made(opened):
    with ThreadPoolExecutor(4) as drivers:
        for store in drivers.map(lambda name: opened(name=name), "abcd"):
            assert store.ask().key == "t0000"


def test_the_time_that_a_study_has_run_is_kept_for_the_next_run_and_for_readers(opened, url):
    store = opened()
    assert store.run_seconds() == 0
    store.keep_run_seconds(12.5)
    store.keep_run_seconds(30.25)
    assert opened().run_seconds() == 30.25
    reader = StudyStore.load(url, name="s")
    assert reader.run_seconds() == 30.25
    reader.close()
