"""A machine's folder of working copies of studies on object storage, see ``tutti.mirror``: where, and how large."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from tutti.errors import Fault, StorageError
from tutti.files import storage_faults, write_whole

_MARK = ".address"  # in a folder of working copies: the address of the studies
_IN_USE = ".in-use"  # beside a working copy: locked by the processes that use it, changed when one begins to
_LIMIT = 50.0  # gigabytes


def working_copies(address: str) -> Path:
    """The folder on this machine for working copies of the studies below an address.

    It is in ``$TUTTI_CACHE``, by default ``$XDG_CACHE_HOME/tutti`` or ``~/.cache/tutti``.
    """
    scheme, _, rest = address.rstrip("/").partition("://")
    folder = _cache() / scheme / rest
    attach(folder, address.rstrip("/"))
    return folder


def attach(folder: Path, address: str | None) -> None:
    """Makes a folder one of working copies of the studies below an address; none does nothing."""
    if address and _marked(folder) != address:
        write_whole(folder / _MARK, f"{address}\n")


def address_of(path: Path) -> str | None:
    """The address that a path of a working copy, or of a folder of them, is stored at; None for any other path."""
    for parent in (path, *path.parents):
        if address := _marked(parent):
            return "/".join([address, *path.relative_to(parent).parts])
    return None


def origin_of(path: Path) -> tuple[Path, str] | None:
    """The folder of working copies that a path is in, and the address of the studies, as of ``attach``."""
    return next(((parent, address) for parent in path.parents if (address := _marked(parent))), None)


def use(copy: Path) -> IO[bytes]:
    """Keeps others from removing parts of a study's working copy until the returned file is closed.

    Raises:
        StorageError: the folder of working copies cannot be written.
    """
    with storage_faults(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        file = _lock_file(copy).open("ab")
        with suppress(OSError):  # a file system without locks, such as that of some Lustre mounts
            fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(file.fileno())
    return file


def trim(release: Callable[[Path], None]) -> None:
    """Brings the working copies below ``$TUTTI_CACHE_GIGABYTES`` (50), beginning with those used longest ago.

    Args:
        release: removes what the storage has of a working copy. It is called with those that no process uses.

    Raises:
        StorageError: the limit is no positive number.
    """
    limit = _limit() * 1e9
    copies = sorted(_copies(), key=_last_used)
    sizes = {copy: _size(copy) for copy in copies}
    for copy in copies:
        if sum(sizes.values()) <= limit:
            return
        with suppress(OSError), _lock_file(copy).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not while a process uses it
            release(copy)
            sizes[copy] = _size(copy)


def _cache() -> Path:
    cache = os.environ.get("TUTTI_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tutti").expanduser()
    return Path(cache).absolute()


def _limit() -> float:
    text = os.environ.get("TUTTI_CACHE_GIGABYTES") or str(_LIMIT)
    with suppress(ValueError):
        if (limit := float(text)) > 0:
            return limit
    remedy = "set it, for instance, to 50"
    raise StorageError(Fault("$TUTTI_CACHE_GIGABYTES", "be a number of gigabytes greater than 0", text, remedy))


def _copies() -> Iterator[Path]:
    """The working copies of this machine's studies, of all addresses."""
    for folder, names, files in os.walk(_cache()):
        if _MARK in files:
            yield from (Path(folder, name) for name in names)
            names.clear()


def _lock_file(copy: Path) -> Path:
    return copy.with_name(f"{_IN_USE}-{copy.name}")


def _last_used(copy: Path) -> float:
    with suppress(OSError):
        return _lock_file(copy).stat().st_mtime
    return 0.0


def _size(copy: Path) -> int:
    """The bytes of a working copy's files; those that are removed meanwhile do not count."""
    total = 0
    for folder, _, files in os.walk(copy):
        for name in files:
            with suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


def _marked(folder: Path) -> str | None:
    """The address in the mark of a folder of working copies; None without a mark."""
    with suppress(OSError, ValueError):  # such as a path with a null byte
        return (folder / _MARK).read_text(encoding="utf-8").strip() or None
    return None
