"""The database below a study: opened to write or to read, its errors said plainly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from tutti.errors import Fault, StorageError

_BUSY_SECONDS = 30  # how long a SQLite file's user waits for another one's lock


def to_write(url: str) -> RDBStorage:
    """The database at any SQLAlchemy URL, with Optuna's tables. A SQLite file is made where there is none."""
    parsed = make_url(url)
    if _is_file(parsed):
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    storage = RDBStorage(_escaped(url), engine_kwargs=_engine_arguments(parsed))
    if _is_file(parsed):
        with storage.engine.connect() as connection:  # readers then never wait for the driver, nor the driver for them
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    return storage


def to_read(url: str) -> RDBStorage | None:
    """The database, or none where its SQLite file is not there. SQLite itself then refuses every write."""
    parsed = make_url(url)
    if _is_file(parsed) and not Path(str(parsed.database)).is_file():
        return None
    storage = RDBStorage(_escaped(url), engine_kwargs=_engine_arguments(parsed), skip_table_creation=True)
    if parsed.get_backend_name() == "sqlite":
        event.listen(storage.engine, "connect", _refuse_writes)
        storage.engine.dispose()  # connections made before the line above would still write
    return storage


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
        raise StorageError(Fault(f"the study's database {shown}", "be read and written", got, remedy)) from error


def _is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")


def _engine_arguments(url: URL) -> dict[str, object]:
    return {"connect_args": {"timeout": _BUSY_SECONDS}} if url.get_backend_name() == "sqlite" else {}


def _escaped(url: str) -> str:
    """Optuna puts the URL through ``str.format``, so that a brace in a folder's name has to be doubled."""
    return url.replace("{", "{{").replace("}", "}}")


def _refuse_writes(connection: Connection, _: object) -> None:
    connection.execute("PRAGMA query_only=ON")
