"""The database below a study: opened to write or to read, its errors said plainly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import SQLITE_ERROR, SQLITE_READONLY, Connection
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from tutti.errors import Fault, StorageError

_BUSY_SECONDS = 30  # how long a SQLite file's user waits for another one's lock
_ATTEMPTS = 5  # to make the tables that others may be making too


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

    SQLite itself refuses every write of it.
    """
    parsed = make_url(url)
    if _is_file(parsed) and not Path(str(parsed.database)).is_file():
        return None
    try:
        return RDBStorage(_escaped(url), engine_kwargs=_engine_arguments(parsed, reader=True), skip_table_creation=True)
    except (OperationalError, StorageInternalError) as error:
        origin = getattr(error.__cause__ if isinstance(error, StorageInternalError) else error, "orig", None)
        if getattr(origin, "sqlite_errorcode", None) in (SQLITE_READONLY, SQLITE_ERROR):
            return None  # a table or Optuna's version is not there yet, and a reader makes neither
        raise


def to_mend(url: str) -> RDBStorage | None:
    """The database to write to, or none where its SQLite file is not there."""
    parsed = make_url(url)
    return None if _is_file(parsed) and not Path(str(parsed.database)).is_file() else to_write(url)


@contextmanager
def faults(url: str) -> Iterator[None]:
    """Turns what a database or its driver raises into a StorageError that names it, without its password."""
    try:
        yield
    except (ArgumentError, ImportError, OSError, RuntimeError, SQLAlchemyError, StorageInternalError) as error:
        try:
            shown = make_url(url).render_as_string(hide_password=True)
        except ArgumentError:
            shown = url
        cause = error.__cause__ or error
        got = str(cause).strip().split("\n")[0]
        remedy = "see whether the address is right, the database is up and not damaged, and there is space"
        if "is full" in got:
            remedy = "free some space, and go on with --resume: nothing is lost"
        if "locked" in got:
            remedy = f"end what holds it for more than {_BUSY_SECONDS} s, and go on with --resume: nothing is lost"
        raise StorageError(Fault(f"the study's database {shown}", "be read and written", got, remedy)) from error


def _is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")


def _engine_arguments(url: URL, *, reader: bool = False) -> dict[str, object]:
    arguments: dict[str, object] = {}
    if url.get_backend_name() == "sqlite":
        arguments = {"timeout": _BUSY_SECONDS} | ({"factory": _Reader} if reader else {})
    return {"connect_args": arguments}


def _made(url: str, parsed: URL) -> RDBStorage:
    """Optuna makes its tables and their version one after the other, unlocked: of two studies that begin at once in one
    database, one finds that the other was first, and has to look again."""
    end = time.monotonic() + _BUSY_SECONDS  # by then it is locked, and would be the next time
    for attempt in range(_ATTEMPTS):
        try:
            return RDBStorage(_escaped(url), engine_kwargs=_engine_arguments(parsed))
        except (IntegrityError, OperationalError, ProgrammingError, StorageInternalError):
            if attempt == _ATTEMPTS - 1 or time.monotonic() > end:
                raise
            time.sleep(0.1)
    raise AssertionError("the last attempt raises or returns")


class _Reader(Connection):
    """A connection to a SQLite file that refuses every write, from the first on: Optuna writes as it opens."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.execute("PRAGMA query_only=ON")


def _escaped(url: str) -> str:
    """Optuna puts the URL through ``str.format``, so that a brace in a folder's name has to be doubled."""
    return url.replace("{", "{{").replace("}", "}}")
