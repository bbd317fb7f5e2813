"""The database below a study: opened to write or to read, its errors said plainly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from tutti.errors import Fault, StorageError

_BUSY_SECONDS = 30  # how long a SQLite file's user waits for another one's lock
_MAKING_SECONDS = 2  # how long another process may take to make the tables


def to_write(url: str) -> RDBStorage:
    """The database at any SQLAlchemy URL, with Optuna's tables. A SQLite file is made where there is none."""
    parsed = make_url(url)
    if _is_file(parsed):
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    storage = _opened(url, parsed)
    if _is_file(parsed):
        with storage.engine.connect() as connection:  # readers then never wait for the driver, nor the driver for them
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    return storage


def to_read(url: str) -> RDBStorage | None:
    """The database, or none where its SQLite file is not there. SQLite itself then refuses every write."""
    parsed = make_url(url)
    if _is_file(parsed) and not Path(str(parsed.database)).is_file():
        return None
    return _opened(url, parsed, read_only=True)


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
        if "locked" in got:
            remedy = f"end what holds it for more than {_BUSY_SECONDS} s, and go on with --resume: nothing is lost"
        raise StorageError(Fault(f"the study's database {shown}", "be read and written", got, remedy)) from error


def _is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")


def _opened(url: str, parsed: URL, *, read_only: bool = False) -> RDBStorage:
    """Opens what may just be in the making: Optuna makes its tables and their version one after the other, unlocked.

    Who comes between fails, because the other one was first or, as a reader, because he may not do it himself.
    """
    arguments: dict[str, Any] = {}
    if parsed.get_backend_name() == "sqlite":
        arguments = {"timeout": _BUSY_SECONDS} | ({"factory": _Reader} if read_only else {})
    end = time.monotonic() + _MAKING_SECONDS
    while True:
        try:
            return RDBStorage(_escaped(url), engine_kwargs={"connect_args": arguments}, skip_table_creation=read_only)
        except (IntegrityError, OperationalError, ProgrammingError, StorageInternalError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class _Reader(Connection):
    """A connection to a SQLite file that refuses every write, from the first on: Optuna writes as it opens."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.execute("PRAGMA query_only=ON")


def _escaped(url: str) -> str:
    """Optuna puts the URL through ``str.format``, so that a brace in a folder's name has to be doubled."""
    return url.replace("{", "{{").replace("}", "}}")
