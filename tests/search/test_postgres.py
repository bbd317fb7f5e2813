"""Studies in a database on a shared PostgreSQL server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from threading import Timer

import optuna
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.event import listens_for

from tutti.config.address import without_password
from tutti.errors import ClaimLostError, StorageError, StudyError
from tutti.records import TrialState
from tutti.search import database
from tutti.search.database import this_process
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Resumption
from tutti.search.warm_start import OlderStudy

pytestmark = pytest.mark.slow


@pytest.fixture
def url(postgres) -> str:
    return postgres.new_database()


def test_a_second_driver_of_a_study_is_refused_until_the_first_has_ended(opened, url, space):
    first = opened(owner="us")
    got = f"be run by one process at a time; got {this_process()} holding it in its database"
    with pytest.raises(StudyError, match=re.escape(got)):
        StudyStore.open(url, name="s", space=space, sampler="tpe", seed=0, owner="us")
    assert opened(name="another").ask().key == "t0000"
    first.close()
    assert opened(owner="us").ask().key == "t0000"


def test_a_study_stays_its_driver_s_when_the_server_is_started_anew(opened, postgres, url, space):
    first = opened(owner="us")
    key = first.ask().key
    postgres.stop()
    postgres.start()
    first.report(key, epoch=1, score=0.5, task_scores={})
    with pytest.raises(StudyError, match="be run by one process at a time"):
        StudyStore.open(url, name="s", space=space, sampler="tpe", seed=0, owner="us")


def test_a_driver_gives_way_to_one_that_took_its_study_and_has_ended_before_it_noticed(opened, postgres, url, space):
    """As a driver that was suspended, or cut off from the server, while another one went on in its place."""
    first = StudyStore.open(url, name="s", space=space, sampler="tpe", seed=0, owner="us")
    key = first.ask().key
    postgres.stop()
    postgres.start()
    second = StudyStore.open(url, name="s", space=space, sampler="tpe", seed=0, owner="us")
    second.report(key, epoch=1, score=0.5, task_scores={})
    second.finish(key, state=TrialState.FINISHED)
    second.close()
    for _ in range(2):
        with pytest.raises(ClaimLostError, match="got another driver that has run it since; go on with"):
            first.ask()
    first.close()
    third = opened(owner="us")
    assert [record.state for record in third.records()] == [TrialState.FINISHED]


def test_a_driver_gives_way_to_one_that_took_its_study_while_the_server_was_started_anew(opened, postgres, url, space):
    first = StudyStore.open(url, name="s", space=space, sampler="tpe", seed=0, owner="us")
    key = first.ask().key
    postgres.stop()
    postgres.start()
    second = opened(owner="us")
    for _ in range(2):
        with pytest.raises(StudyError, match="be run by one process at a time"):
            first.report(key, epoch=1, score=0.1, task_scores={})
    second.report(key, epoch=1, score=0.5, task_scores={})
    assert second.record(key).score == 0.5
    second.close()
    with pytest.raises(ClaimLostError):  # permanently, since another driver has continued the trials
        first.unfinished()
    first.close()


def test_a_driver_that_was_killed_holds_its_study_no_longer(opened, url):
    script = f"""
import os, signal
from tutti.config.space import SearchSpace
from tutti.search.study_store import StudyStore
from tutti.search.trial_attributes import Resumption
StudyStore.open({url!r}, name="s", space=SearchSpace(), sampler="tpe", seed=0).ask()
os.kill(os.getpid(), signal.SIGKILL)
"""
    died = subprocess.run([sys.executable, "-c", script], env=dict(os.environ))
    assert died.returncode == -signal.SIGKILL
    store = opened()
    assert [proposal.key for proposal in store.unfinished()] == ["t0000"]


def test_a_name_that_another_folder_s_study_has_in_the_database_is_refused(opened):
    theirs = opened(owner="them")
    theirs.finish(theirs.ask().key, state=TrialState.FINISHED, score=0.5)
    theirs.close()
    with pytest.raises(StudyError, match="be new in its database; got one of that name, of another folder"):
        opened(owner="us")
    assert len(opened(owner="them").records()) == 1


def test_older_studies_of_one_database_are_told_apart_and_their_trials_keep_no_password(opened, url, space):
    for name in ("a", "b"):
        older = opened(name=name)
        older.finish(older.ask().key, state=TrialState.FINISHED, score=0.5)
    store = opened(older=[OlderStudy(name, url) for name in ("a", "b")])
    assert store.ask().key == "t0000"
    stored = optuna.load_study(study_name="s", storage=url).trials
    assert [trial.state.name for trial in stored] == ["COMPLETE", "COMPLETE", "RUNNING"]
    plain = without_password(url)
    assert [trial.user_attrs["warm_start"] for trial in stored[:2]] == [f"{plain}:a:0", f"{plain}:b:0"]


def test_a_reader_leaves_a_half_made_database_to_the_driver(opened, url):
    with pytest.raises(StudyError, match="no database"):
        StudyStore.load(url, name="s")
    opened().close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM version_info"))
        connection.execute(text("DELETE FROM alembic_version"))
    engine.dispose()
    with pytest.raises(StudyError, match="no database"):
        StudyStore.load(url, name="s")
    assert opened().ask().key == "t0000"


def test_what_is_wrong_with_the_server_is_one_sentence_without_its_password(postgres, url, space):
    secret = url.split("tutti:")[1].split("@")[0]
    gone = url.replace(str(postgres.port), "1")
    wrong, none = url.replace(secret, "wr%2Fong"), url.replace(f":{secret}", "")
    missing = url.rsplit("/", 1)[0] + "/missing"
    for address, got in (
        (gone, "Connection refused; check whether the server is up"),
        (wrong, "password authentication failed"),
        (none, "no password supplied; give the password in $PGPASSWORD, in ~/.pgpass"),
        (missing, 'database "missing" does not exist'),
    ):
        for call in (
            lambda address=address: database.reach(address),
            lambda address=address: StudyStore.open(address, name="s", space=space, sampler="tpe", seed=0),
            lambda address=address: StudyStore.load(address, name="s"),
        ):
            with pytest.raises(StorageError) as caught:
                call()
            assert got in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
            assert not any(word in str(caught.value) for word in (secret, "p@ss", "wr%2Fong", "wr/ong"))


def test_a_store_is_closed_in_peace_while_its_server_is_away(opened, postgres, capfd):
    store = opened()
    key = store.ask().key
    postgres.stop()
    with pytest.raises(StorageError):
        store.report(key, epoch=1, score=0.5, task_scores={})
    with pytest.raises(StorageError):
        store.records()
    store.close()
    postgres.start()
    assert capfd.readouterr() == ("", "")
    assert [proposal.key for proposal in opened().unfinished()] == [key]


def test_a_server_that_is_started_anew_between_two_calls_goes_unnoticed(opened, postgres):
    store = opened()
    key = store.ask().key
    postgres.stop()
    with pytest.raises(StorageError, match="go on with --resume: nothing is lost"):
        store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})
    postgres.start()
    store.report(key, epoch=1, score=0.5, task_scores={"a": 0.5})
    store.finish(key, state=TrialState.FINISHED)
    assert [(record.state, record.score) for record in store.records()] == [(TrialState.FINISHED, 0.5)]


@pytest.mark.parametrize("at", [3, 8, 13, 18, 23])
def test_a_server_that_goes_away_at_any_moment_is_waited_for_and_nothing_is_lost_or_doubled(
    opened, postgres, monkeypatch, at
):
    """It is away for a moment just before or after one of the statements of a trial's life."""
    store = opened(patience=30.0)
    store.finish(store.ask().key, state=TrialState.FINISHED, score=0.1)
    statements, back = [], []

    def stopped() -> None:
        postgres.stop()
        back.append(Timer(1.5, postgres.start))
        back[0].start()

    @listens_for(store._storage.engine, "after_cursor_execute")
    def count(*_: object) -> None:
        statements.append(None)
        if len(statements) == at:
            stopped()

    proposal = store.ask()
    store.keep(proposal.key, Resumption(fitted=True))
    for epoch in (1, 2):
        store.report(proposal.key, epoch=epoch, score=epoch / 10, task_scores={"a": epoch / 10})
    store.finish(proposal.key, state=TrialState.FINISHED)
    assert back, len(statements)
    back[0].join()
    records = store.records()
    assert [(record.key, record.state, record.score) for record in records] == [
        ("t0000", TrialState.FINISHED, 0.1),
        ("t0001", TrialState.FINISHED, 0.2),
    ]
    assert records[1].scores_by_epoch == {1: 0.1, 2: 0.2}
    assert records[1].parameters == proposal.parameters


def test_a_server_that_stays_away_is_waited_for_no_longer_than_that(opened, postgres):
    store = opened(patience=0.1)
    key = store.ask().key
    postgres.stop()
    try:
        with pytest.raises(StorageError, match="go on with --resume: nothing is lost"):
            store.report(key, epoch=1, score=0.5, task_scores={})
    finally:
        postgres.start()
