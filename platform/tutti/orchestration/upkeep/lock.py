"""The lock of a study, which one process at a time may run."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from tutti.config.folder import StudyFolder
from tutti.errors import Fault, StudyError
from tutti.files import storage_faults
from tutti.search.database import this_process

# Errors of flock for a lock that another process holds. ENOSYS: without flock, the lock file exists only while held.
_LOCKED = {errno.EAGAIN, errno.EACCES, errno.ENOSYS}


@contextmanager
def study_lock(folder: StudyFolder, *, patience: float = 2.0) -> Iterator[None]:
    """Locks a study for one process, from before the first file is written until the study ends.

    Args:
        patience: seconds to wait for another process, which may hold the lock only to test it (``is_running``).

    Raises:
        StudyError: if another process runs the study.
        StorageError: if the study's folder cannot be created or written to.
    """
    lock = FileLock(_lock_file(folder))
    with storage_faults(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=patience)
        except Timeout as error:  # also an OSError, which storage_faults would convert
            rule, got = "be run by one process at a time", f"{_holder(folder)} holding {lock.lock_file}"
            remedy = "wait for the other run to end, or stop it"
            raise StudyError(Fault(f"the study {folder.name!r}", rule, got, remedy)) from error
    if not isinstance(lock, SoftFileLock):  # that one stores its own state in the file
        with suppress(OSError):  # such as a full disk; the name is only shown in other processes' messages
            _lock_file(folder).write_text(this_process())
    try:
        yield
    finally:
        lock.release()


def is_running(folder: StudyFolder) -> bool:
    """Whether a process has locked the study. Writes nothing, and does not keep a process from starting."""
    with suppress(OSError), _lock_file(folder).open("rb") as file:  # the study was never run, or is unreadable
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in _LOCKED
    return False


def _lock_file(folder: StudyFolder) -> Path:
    return folder.path / "study.lock"


def _holder(folder: StudyFolder) -> str:
    """The process that has locked the study, according to the lock file."""
    try:
        with _lock_file(folder).open("rb") as file:
            text = file.read(200).decode(errors="replace")
    except OSError:
        text = ""
    return "".join(character for character in text if character.isprintable()) or "another process"
