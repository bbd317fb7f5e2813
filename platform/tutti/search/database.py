"""The database below a study: opened to write or to read, its errors said plainly."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import SQLITE_ERROR, SQLITE_READONLY
from sqlite3 import Connection as SqliteConnection
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import TrialIntermediateValueModel, TrialUserAttributeModel
from sqlalchemy import create_engine, delete, text
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from tutti.errors import ClaimLostError, Fault, StorageError, StudyError

_SERVER_OPTIONS = {
    "tcp_keepalives_idle": 30,  # so that the server lets go, within a minute, of what a machine held that is gone
    "tcp_keepalives_interval": 10,
    "tcp_keepalives_count": 3,
}
_PREFIX = "tutti "  # of the name that a server knows a connection by
_HOLDER = """
    SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid)
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended(:study, 0)
"""
_MISSING = ("42P01", "25006")  # PostgreSQL's codes: no such table; a write in a read-only transaction
_BUSY_SECONDS = 30  # how long a SQLite file's user waits for another one's lock
_CONNECT_SECONDS = 10
_ATTEMPTS = 5  # to make the tables that others may be making too


def this_process() -> str:
    """The process as other people know it, who look for what holds a study."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # as in a container, whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"


def to_write(url: str) -> RDBStorage:
    """The database at any SQLAlchemy URL, with Optuna's tables. A SQLite file is made where there is none."""
    parsed = make_url(url)
    if _is_file(parsed):
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    storage = _made(url, parsed)
    if _is_file(parsed):
        with storage.engine.connect() as connection:  # readers then never wait for the driver, nor the driver for them
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    return storage


def to_read(url: str) -> RDBStorage | None:
    """The database, or none where its SQLite file is not there, or not made to its end.

    The database itself refuses every write of it.
    """
    parsed = make_url(url)
    if _is_file(parsed) and not Path(str(parsed.database)).is_file():
        return None
    try:
        return _opened(url, engine_kwargs=_engine_arguments(parsed, reader=True), skip_table_creation=True)
    except (SQLAlchemyError, StorageInternalError) as error:
        origin = getattr(error.__cause__ if isinstance(error, StorageInternalError) else error, "orig", None)
        refused = getattr(origin, "sqlite_errorcode", None) in (SQLITE_READONLY, SQLITE_ERROR)
        if refused or getattr(origin, "sqlstate", None) in _MISSING:
            return None  # a table or Optuna's version is not there yet, and a reader makes neither
        raise


def to_mend(url: str) -> RDBStorage | None:
    """The database to write to, or none where its SQLite file is not there."""
    parsed = make_url(url)
    return None if _is_file(parsed) and not Path(str(parsed.database)).is_file() else to_write(url)


def reach(url: str) -> None:
    """Connects to a server's database once.

    Raises:
        StorageError: where it does not answer, or refuses.
    """
    with faults(url):
        engine = create_engine(url, connect_args=_engine_arguments(make_url(url))["connect_args"])
        try:
            engine.connect().close()
        finally:
            engine.dispose()


def take_back(storage: RDBStorage, trial_id: int, attributes: Collection[str]) -> None:
    """Takes a trial's intermediate values back, and these attributes, all or none. Optuna itself never does."""
    values, kept = TrialIntermediateValueModel, TrialUserAttributeModel
    with storage.engine.begin() as connection:
        connection.execute(delete(values).where(values.trial_id == trial_id))
        connection.execute(delete(kept).where(kept.trial_id == trial_id, kept.key.in_(attributes)))


class Claim:
    """Keeps a study of a server's database to one driver, on whichever machine, until it is closed.

    The server lets go of a driver that has died.

    Raises:
        StudyError: where another driver holds the study.
    """

    def __init__(self, engine: Engine, study: str) -> None:
        self._engine, self._study = engine, study
        self._lost: ClaimLostError | None = None
        self._connection: Connection | None = self._taken()

    def keep(self) -> None:
        """Claims the study anew where the server was restarted, and so has forgotten who held it.

        Raises:
            ClaimLostError: where another driver was faster; once that has ended too, for it went on in these trials.
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
            self._connection = self._taken()
        except StudyError as error:
            self._lost = ClaimLostError(*error.faults)
            raise self._lost from error

    def close(self) -> None:
        """Lets go of the study. A server that is away is not waited for."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _taken(self) -> Connection:
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
        who = holder.removeprefix(_PREFIX) or "another one"
        got, remedy = f"{who} holding it in its database", "wait for the other run to end, or stop it"
        raise StudyError(Fault(f"the study {self._study!r}", "be run by one process at a time", got, remedy))


@contextmanager
def claimed(storage: RDBStorage, study: str) -> Iterator[Claim | None]:
    """The claim of a study, which is the caller's to close, but where the block raises.

    A SQLite file has the lock of its study's folder alone, and gets none.

    Raises:
        StudyError: where another driver holds the study.
    """
    if storage.engine.dialect.name != "postgresql":
        yield None
        return
    claim = None
    try:
        claim = Claim(storage.engine, study)
        yield claim
    except BaseException:
        if claim is not None:
            claim.close()
        storage.engine.dispose()
        raise


@contextmanager
def faults(url: str) -> Iterator[None]:
    """Turns what a database or its driver raises into a StorageError that names it, without its password."""
    try:
        yield
    except (ArgumentError, ImportError, OSError, SQLAlchemyError, StorageInternalError) as error:
        try:
            shown = make_url(url).render_as_string(hide_password=True)
        except ArgumentError:
            shown = url
        cause = error.__cause__ or error
        got = str(cause).strip().split("\n")[0]
        remedy = "see whether the address is right, the database is up and not damaged, and there is space"
        if isinstance(error, ImportError):
            remedy = "install the driver with `pip install 'tutti[postgres]'`"
        elif not url.startswith("sqlite"):
            remedy = "see whether the server is up and the address right, and go on with --resume: nothing is lost"
        if "no password supplied" in got:
            remedy = "give the password in $PGPASSWORD, in ~/.pgpass, or in the address that $TUTTI_DATABASE holds"
        if "readonly" in got:
            remedy = "see to the permissions of the file and of its folder"
        if "is full" in got:
            remedy = "free some space, and go on with --resume: nothing is lost"
        if "locked" in got:
            remedy = f"end what holds it for more than {_BUSY_SECONDS} s, and go on with --resume: nothing is lost"
        raise StorageError(Fault(f"the study's database {shown}", "be read and written", got, remedy)) from error


def _is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")


def _engine_arguments(url: URL, *, reader: bool = False) -> dict[str, object]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": _BUSY_SECONDS} | ({"factory": _Reader} if reader else {})}
    options = _SERVER_OPTIONS | ({"default_transaction_read_only": "on"} if reader else {})
    arguments = {
        "application_name": _PREFIX + this_process(),
        "connect_timeout": _CONNECT_SECONDS,
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
    }
    return {"connect_args": arguments, "pool_pre_ping": True}  # the server may have been started anew since


def _made(url: str, parsed: URL) -> RDBStorage:
    """Optuna makes its tables and their version one after the other, unlocked: of two studies that begin at once in one
    database, one finds that the other was first, and has to look again."""
    end = time.monotonic() + _BUSY_SECONDS  # by then it is locked, and would be the next time
    for attempt in range(_ATTEMPTS):
        try:
            return _opened(url, engine_kwargs=_engine_arguments(parsed))
        except (IntegrityError, OperationalError, ProgrammingError, StorageInternalError):
            if attempt == _ATTEMPTS - 1 or time.monotonic() > end:
                raise
            time.sleep(0.1)
    raise AssertionError("the last attempt raises or returns")


def _opened(url: str, **given: Any) -> RDBStorage:
    try:
        return RDBStorage(_escaped(url), **given)
    except RuntimeError as error:  # of tables that another Optuna has made
        raise SQLAlchemyError(str(error)) from error


class _Reader(SqliteConnection):
    """A connection to a SQLite file that refuses every write, from the first on: Optuna writes as it opens."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.execute("PRAGMA query_only=ON")


def _escaped(url: str) -> str:
    """Optuna puts the URL through ``str.format``, so that a brace in a folder's name has to be doubled."""
    return url.replace("{", "{{").replace("}", "}}")
