"""Addresses of servers and databases, which may contain a password, and those that stand where a path has to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, urlsplit

from tutti.errors import Fault

_SERVER_PASSWORD = re.compile(r"(?<=://)([^/?#\s:@]*):[^/?#\s]*(?=@)")
_DATABASE_PASSWORD = re.compile(r"(?<=://)([^/?#\s:@]*):(?:[^?\s]*|\S*)(?=@)")  # may contain "/", even "?" before "@"
_STORAGE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")  # pathlib makes s3:/bucket of s3://bucket
_PASSWORD_OPTION = re.compile(r"(?<=[?&])(?:ssl)?password=[^&#\s]*&?")


def without_password(address: str) -> str:
    """The address as it may be shown and stored: without the password, but with the user."""
    password = _SERVER_PASSWORD if address.startswith("http") else _DATABASE_PASSWORD
    return _PASSWORD_OPTION.sub("", password.sub(r"\1", address)).rstrip("?&")


def address_fault(path: str | Path, *, what: str) -> Fault | None:
    """The fault of an address in place of a path, such as ``s3://bucket/studies``; None for a path.

    It would name a folder ``s3:`` of the current one, on this machine's own disk.
    """
    scheme = _STORAGE.match(str(path))
    if not scheme:
        return None
    got = f"the address {scheme[1]}://{str(path)[scheme.end() :]}"
    remedy = "write the path alone" if scheme[1] == "file" else "mount that storage, and name a folder of it"
    return Fault(what, "be a path, of a disk or of mounted storage", got, remedy)


def to_read(address: str) -> str:
    """The address under which a database is read: a SQLite file in WAL mode opens only where its folder is writable.

    Elsewhere it is opened as one that nobody changes, unless a log beside it shows that somebody does.
    """
    if not address.startswith("sqlite"):
        return address
    from sqlalchemy.engine import make_url  # slow to import

    url = make_url(address)
    if url.database in (None, "", ":memory:"):
        return address
    file, log = Path(str(url.database)), Path(f"{url.database}-wal")
    if os.access(file.parent, os.W_OK) or (log.is_file() and log.stat().st_size):
        return address
    query = {"mode": "ro", "immutable": "1", "uri": "true"}
    # Without a driver, MLflow takes "file:..." for a path and creates its folders.
    return url.set(drivername="sqlite+pysqlite", database=f"file:{quote(str(file))}", query=query).render_as_string()


def has_place(address: str) -> bool:
    """Whether the host and port of an address are valid. Only an http address must have a host; a file has none."""
    try:
        parts = urlsplit(without_password(address))
        return parts.port != 0 and bool(parts.hostname or not parts.scheme.startswith("http"))
    except ValueError:
        return False


def same_database(left: str, right: str) -> bool:
    """Whether both addresses name the same database of the same PostgreSQL server, for whichever user."""
    urls = [urlsplit(without_password(address)) for address in (left, right)]
    first, second = ((url.hostname, url.port or 5432, url.path) for url in urls)
    return first == second and all(url.scheme.startswith("postgresql") for url in urls)


def with_password(address: str, known: str | None) -> str:
    """``known`` where it is the same address with its password, else the address."""
    return known if known is not None and without_password(known) == address else address
