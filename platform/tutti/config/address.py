"""Addresses of servers, which may hold a password."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_OF_A_SERVER = re.compile(r"(?<=://)([^/?#\s:@]*):[^/?#\s]*(?=@)")
_OF_A_DATABASE = re.compile(r"(?<=://)([^/?#\s:@]*):\S*(?=@)")  # whose password may have a slash in it
_AMONG_OPTIONS = re.compile(r"(?<=[?&])password=[^&#\s]*&?")


def without_password(address: str) -> str:
    """The address as it may be shown and kept: the user stays in it."""
    login = _OF_A_SERVER if address.startswith("http") else _OF_A_DATABASE
    return _AMONG_OPTIONS.sub("", login.sub(r"\1", address)).rstrip("?&")


def has_place(address: str) -> bool:
    """Whether its host and port can be read; what stands on no host, as a file does, needs none."""
    try:
        place = urlsplit(without_password(address))
        return place.port != 0 and bool(place.hostname or not place.scheme.startswith("http"))
    except ValueError:
        return False


def same_database(one: str, other: str) -> bool:
    """Whether both name one database of one PostgreSQL server, whoever asks for it."""
    places = [urlsplit(without_password(address)) for address in (one, other)]
    first, second = ((place.hostname, place.port or 5432, place.path) for place in places)
    return first == second and all(place.scheme.startswith("postgresql") for place in places)


def with_password(address: str, known: str | None) -> str:
    """The address, or ``known`` where that is the same one with its password."""
    return known if known is not None and without_password(known) == address else address
