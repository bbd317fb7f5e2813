"""Addresses of servers and databases, which may contain a password, and what stands where a path has to."""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from tutti.errors import PASSWORD, Fault

if TYPE_CHECKING:
    from requests import Response

_STORAGE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")  # pathlib makes s3:/bucket of s3://bucket
_VARIABLE = re.compile(r"\$(?:([A-Z_][A-Z0-9_]*)|\{([A-Z_][A-Z0-9_]*)\})")  # as $SCRATCH or ${SCRATCH}, not a$b
_FROM_GATEWAYS = {407, 502, 503, 504}  # statuses of one that cannot or may not pass a request on


def without_password(address: str) -> str:
    """The address as it may be shown and stored: without the password, but with the user."""
    return PASSWORD.sub(lambda match: match[1] or match[2] or "", address).rstrip("?&")


def with_variables(path: str) -> str:
    """The path with the values of the environment variables in it, as ``$SCRATCH`` or ``${SCRATCH}``, that are set."""
    return _VARIABLE.sub(lambda match: os.environ.get(match[1] or match[2], match[0]), path)


def address_fault(path: str | Path, *, what: str) -> Fault | None:
    """The fault of an address in place of a path, such as ``s3://bucket/studies``, or of a variable that is not set.

    They would name a folder ``s3:`` or ``$SCRATCH`` of the current one, on this machine's own disk. None for a path.
    """
    if unset := _VARIABLE.search(with_variables(str(path))):
        name = unset[1] or unset[2]
        rule, remedy = "name only environment variables that are set", f"set {name}, or write the path out"
        return Fault(what, rule, f"{str(path)!r}, and no {name}", remedy)
    scheme = _STORAGE.match(str(path))
    if not scheme:
        return None
    got = f"the address {scheme[1]}://{str(path)[scheme.end() :]}"
    remedy = "write the path alone" if scheme[1] == "file" else "mount that storage, and name a folder of it"
    if PASSWORD.search(got):
        remedy = "take the credentials out, which belong into the environment"
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


def answer_of(url: str, *, seconds: float) -> Response | None:
    """What a server answers to a GET within ``seconds``; None if its certificate is not trusted here.

    Libraries that log or submit over HTTP have no such limit, and retry for minutes. A server of this machine is asked
    directly, by this process's later requests too: a proxy that the environment names could not reach it.

    Raises:
        OSError: if there is no answer, or none but that of a gateway or proxy; in words that name the proxy.
    """
    import requests  # slow to import

    host = urlsplit(url).hostname or ""
    kept = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if _is_loopback(host) and host not in kept.split(","):
        os.environ["no_proxy"] = f"{kept},{host}".lstrip(",")  # which takes precedence over NO_PROXY
    proxy = requests.utils.select_proxy(url, requests.utils.get_environ_proxies(url))
    way = f", by way of the proxy {without_password(proxy)}, which NO_PROXY={host} would avoid" if proxy else ""
    try:
        answer = requests.get(url, timeout=seconds)
    except requests.exceptions.SSLError:
        return None
    except requests.exceptions.Timeout as error:
        raise TimeoutError(f"no answer within {seconds:g} s{way}") from error
    except requests.exceptions.ConnectionError as error:  # its own message shows internals
        raise ConnectionError(f"nothing that answers{way}") from error
    if answer.status_code in _FROM_GATEWAYS:
        raise ConnectionError(f"{answer.status_code} {answer.reason}{way}")
    return answer


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
