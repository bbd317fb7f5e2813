"""The database of a study: opened for writing or reading, claimed by one driver, its errors in plain words."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from sqlite3 import SQLITE_BUSY, SQLITE_ERROR, SQLITE_READONLY
from sqlite3 import Connection as SqliteConnection
from typing import Any

import optuna
from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import (
    TrialIntermediateValueModel,
    TrialModel,
    TrialParamModel,
    TrialSystemAttributeModel,
    TrialUserAttributeModel,
)
from sqlalchemy import create_engine, delete, text
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.orm import Session

from tutti.config.address import to_read
from tutti.errors import ClaimLostError, Fault, StorageError, StudyError, first_line
from tutti.launchers import user_name

_SERVER_OPTIONS = {
    "tcp_keepalives_idle": 30,  # the server then releases the locks of a machine that is gone within a minute
    "tcp_keepalives_interval": 10,
    "tcp_keepalives_count": 3,
}
_PREFIX = "tutti "  # of the application name of a connection
_HOLDER = """
    SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended(:study, 0)
"""
_MISSING = ("42P01", "25006")  # PostgreSQL's codes: no such table; a write in a read-only transaction
_DRIVER, OWNER = "driver", "owner"  # names of study attributes
_BUSY_SECONDS = 30  # how long a SQLite connection waits for another one's lock
_CONNECT_SECONDS = 10
_ATTEMPTS = 5  # to create the tables, which another process may be creating at the same time


def this_process() -> str:
    """A description of this process for people who look for what holds a study: user, host and process id."""
    return f"{user_name()}@{socket.gethostname()} (process {os.getpid()})"


def open_for_writing(url: str) -> RDBStorage:
    """Opens the database at any SQLAlchemy URL and creates Optuna's tables; a missing SQLite file is created."""
    parsed = make_url(url)
    if not _is_file(parsed):
        return _open_with_tables(url, parsed)
    file = Path(str(parsed.database))
    file.parent.mkdir(parents=True, exist_ok=True)
    # One at a time: to change the journal while another connection creates tables has damaged a file (SQLite 3.40).
    with FileLock(f"{file}.lock"):
        storage = _open_with_tables(url, parsed)
        _write_ahead(storage.engine)
    return storage


def open_for_reading(url: str) -> RDBStorage | None:
    """Opens the database read-only; None where its SQLite file is missing or its tables are not complete yet.

    The database itself refuses every write over this connection.
    """
    parsed = make_url(url)
    if _is_missing_file(parsed):
        return None
    try:
        return _open(to_read(url), engine_kwargs=_engine_arguments(parsed, reader=True), skip_table_creation=True)
    except (SQLAlchemyError, StorageInternalError) as error:
        origin = getattr(error.__cause__ if isinstance(error, StorageInternalError) else error, "orig", None)
        refused = getattr(origin, "sqlite_errorcode", None) in (SQLITE_READONLY, SQLITE_ERROR)
        if refused or getattr(origin, "sqlstate", None) in _MISSING:
            return None  # a table or Optuna's version row is missing, and a read-only connection cannot create it
        raise


@contextmanager
def reading(url: str, *, study: str, owner: str | None = None) -> Iterator[optuna.Study | None]:
    """Yields a study of a database opened read-only, or None where there is none, and closes the database afterwards.

    A study of that name that has another ``owner`` is none.

    Raises:
        StorageError: where the database cannot be read.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with faults(url):
        storage = open_for_reading(url)
        if storage is None:
            yield None
            return
        stored = None
        try:
            with suppress(KeyError):
                stored = optuna.load_study(storage=storage, study_name=study)
            yield None if stored is None or has_other_owner(stored, owner) else stored
        finally:
            close(storage)


def has_other_owner(study: optuna.Study, owner: str | None) -> bool:
    """Whether a study belongs to another folder than the one with this id, where both have one."""
    return owner is not None and study.user_attrs.get(OWNER) not in (None, owner)


def close(storage: RDBStorage) -> None:
    """Closes the connections to a database."""
    storage.remove_session()
    storage.engine.dispose()


def open_existing(url: str) -> RDBStorage | None:
    """Opens the database for writing; None where its SQLite file is missing."""
    return None if _is_missing_file(make_url(url)) else open_for_writing(url)


def reach(url: str) -> None:
    """Checks that the database of a server accepts a connection.

    Raises:
        StorageError: where it does not answer, or refuses.
    """
    with faults(url):
        engine = create_engine(url, connect_args=_engine_arguments(make_url(url))["connect_args"])
        try:
            engine.connect().close()
        finally:
            engine.dispose()


def delete_reports(storage: RDBStorage, trial_id: int, attributes: Collection[str]) -> None:
    """Deletes a trial's intermediate values and these user attributes in one transaction. Optuna has no such call."""
    values, user_attributes = TrialIntermediateValueModel, TrialUserAttributeModel
    with storage.engine.begin() as connection:
        connection.execute(delete(values).where(values.trial_id == trial_id))
        connection.execute(
            delete(user_attributes).where(user_attributes.trial_id == trial_id, user_attributes.key.in_(attributes))
        )


def set_duration(storage: RDBStorage, trial_id: int, seconds: float) -> None:
    """Dates the beginning of an ended trial so that it took so long. Optuna has that of its proposal."""
    with Session(storage.engine) as session, session.begin():
        trial = session.get(TrialModel, trial_id)
        if trial is not None and trial.datetime_complete is not None:
            trial.datetime_start = trial.datetime_complete - timedelta(seconds=seconds)


def delete_draw(storage: RDBStorage, trial_id: int) -> None:
    """Deletes a trial's parameters and what a sampler stored of its proposal, in one transaction."""
    parameters, attributes = TrialParamModel, TrialSystemAttributeModel
    proposed = attributes.key.contains(":relative_params:", autoescape=True)
    with storage.engine.begin() as connection:
        connection.execute(delete(parameters).where(parameters.trial_id == trial_id))
        connection.execute(delete(attributes).where(attributes.trial_id == trial_id, proposed))


class Claim:
    """An exclusive claim on a study in a PostgreSQL server, for one driver on any machine, until it is closed.

    It is an advisory lock of the connection, which the server releases when a driver dies.

    Raises:
        StudyError: where another driver holds the study.
    """

    def __init__(self, engine: Engine, study: str) -> None:
        self._engine, self._study = engine, study
        self._unchanged: Callable[[], bool] = lambda: True
        self._lost: ClaimLostError | None = None
        self._connection: Connection | None = self._acquire()

    def sign(self, storage: RDBStorage, study_id: int) -> None:
        """Stores with the study that this claim is the latest, for ``ensure``."""
        token = uuid.uuid4().hex
        storage.set_study_user_attr(study_id, _DRIVER, token)

        def unchanged() -> bool:
            with suppress(KeyError):  # somebody has deleted the study
                return bool(storage.get_study_user_attrs(study_id).get(_DRIVER) == token)
            return False

        self._unchanged = unchanged

    def ensure(self) -> None:
        """Checks the claim, and acquires it again where a restart of the server has released it.

        Raises:
            ClaimLostError: where another driver has acquired it meanwhile, even if that driver has ended since, because
                it has continued these trials.
        """
        if self._lost is not None:
            raise ClaimLostError(*self._lost.faults)
        if self._connection is not None:
            try:
                self._connection.scalar(text("SELECT 1"))
                return
            except OperationalError:
                self.close()
        try:
            self._connection = self._acquire()
            if not self._unchanged():
                raise self._held_by("another driver that has run it since", "go on with --resume")
        except StudyError as error:
            self.close()
            self._lost = ClaimLostError(*error.faults)
            raise self._lost from error
        except BaseException:  # unknown yet: to be asked again
            self.close()
            raise

    def close(self) -> None:
        """Releases the claim. It does not wait for a server that is unreachable."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _acquire(self) -> Connection:
        """A connection that holds the lock."""
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        lock = text("SELECT pg_try_advisory_lock(hashtextextended(:study, 0))")
        try:
            if connection.scalar(lock, {"study": f"tutti/{self._study}"}):
                return connection
            holder = connection.scalar(text(_HOLDER), {"study": f"tutti/{self._study}"}) or ""
        except BaseException:
            connection.close()
            raise
        connection.close()
        driver = f"{holder.removeprefix(_PREFIX) or 'another one'} holding it in its database"
        raise self._held_by(driver, "wait for the other run to end, or stop it")

    def _held_by(self, driver: str, remedy: str) -> StudyError:
        return StudyError(Fault(f"the study {self._study!r}", "be run by one process at a time", driver, remedy))


@contextmanager
def claimed(storage: RDBStorage, study: str) -> Iterator[Claim | None]:
    """Yields a claim on the study, which the caller has to close; if the block raises, it and the database are closed.

    Yields None for a SQLite file, for which the lock on the study's folder is enough.

    Raises:
        StudyError: where another driver holds the study.
    """
    claim = None
    try:
        if storage.engine.dialect.name == "postgresql":
            claim = Claim(storage.engine, study)
        yield claim
    except BaseException:
        if claim is not None:
            claim.close()
        close(storage)
        raise


@contextmanager
def faults(url: str) -> Iterator[None]:
    """Turns the errors of a database or its driver into a StorageError that names it without its password."""
    try:
        yield
    except (ArgumentError, ImportError, OSError, SQLAlchemyError, StorageInternalError) as error:
        try:
            address = make_url(url).render_as_string(hide_password=True)
        except ArgumentError:
            address = url
        got = first_line(error.__cause__ or error)
        remedy = "check whether the address is right, the database is up and not damaged, and there is space"
        if isinstance(error, ImportError):
            remedy = "install the driver with `pip install 'psycopg[binary]>=3.3'`"
        elif not url.startswith("sqlite"):
            remedy = "check whether the server is up and the address right, and go on with --resume: nothing is lost"
        if "no password supplied" in got:
            remedy = "give the password in $PGPASSWORD, in ~/.pgpass, or in the address that $TUTTI_DATABASE holds"
        if "readonly" in got:
            remedy = "check the permissions of the file and of its folder"
        if "is full" in got:
            remedy = "free some space, and go on with --resume: nothing is lost"
        if "locked" in got:
            remedy = f"end what holds it for more than {_BUSY_SECONDS} s, and go on with --resume: nothing is lost"
        raise StorageError(Fault(f"the study's database {address}", "be read and written", got, remedy)) from error


def _is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")


def _is_missing_file(url: URL) -> bool:
    return _is_file(url) and not Path(str(url.database)).is_file()


def _engine_arguments(url: URL, *, reader: bool = False) -> dict[str, object]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": _BUSY_SECONDS} | ({"factory": _Reader} if reader else {})}
    options = _SERVER_OPTIONS | ({"default_transaction_read_only": "on"} if reader else {})
    arguments = {
        "application_name": _PREFIX + this_process(),
        "connect_timeout": _CONNECT_SECONDS,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }
    return {"connect_args": arguments, "pool_pre_ping": True}  # the server may have been restarted in the meantime


def _open_with_tables(url: str, parsed: URL) -> RDBStorage:
    """Opens the database and creates Optuna's tables.

    Optuna creates its tables and its version row in separate steps without a lock. Where two studies start at once in
    one database, the slower one fails and has to try again.
    """
    end = time.monotonic() + _BUSY_SECONDS  # past it, the failure was a lock, on which another attempt would fail too
    for attempt in range(_ATTEMPTS):
        try:
            return _open(url, engine_kwargs=_engine_arguments(parsed))
        except (IntegrityError, OperationalError, ProgrammingError, StorageInternalError):
            if attempt == _ATTEMPTS - 1 or time.monotonic() > end:
                raise
            time.sleep(0.1)
    raise AssertionError("the last attempt raises or returns")


def _write_ahead(engine: Engine) -> None:
    """Puts a SQLite file into WAL mode, in which readers and the driver never wait for each other.

    For this one change SQLite does not wait for a connection that is writing, whatever the timeout.
    """
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", None) != SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.1)


def _open(url: str, **options: Any) -> RDBStorage:
    try:
        return RDBStorage(_escaped(url), **options)
    except RuntimeError as error:  # the tables are from another version of Optuna
        raise SQLAlchemyError(str(error)) from error


class _Reader(SqliteConnection):
    """A SQLite connection that refuses every write. It is set at connection time, since Optuna writes on opening."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute("PRAGMA query_only=ON")


def _escaped(url: str) -> str:
    """Doubles braces, as in the name of a folder, because Optuna passes the URL through ``str.format``."""
    return url.replace("{", "{{").replace("}", "}}")
