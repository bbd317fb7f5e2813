"""A file-based queue of events: appended line by line, read in order, with the position stored on disk."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

from tutti.errors import StorageError
from tutti.files import storage_faults, write_whole

_log = logging.getLogger(__name__)

Event = dict[str, Any]


class Spool:
    """Events in a file, one JSON object per line; a file beside it (``.position``) stores how far they were delivered.

    The next process finds the events that one has left undelivered. An incomplete last line, left by a crash, is
    dropped. Safe for one process that appends from any thread and reads from one. The file itself determines which
    events are pending, so that neither an interrupt during a call nor lines of another process lead to disagreement.

    Raises:
        StorageError: where the file cannot be created or read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with storage_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab+") as file:
                self._end = _drop_torn_line(file.fileno())
                self._position = _stored_position(path, file.fileno())

    @property
    def waiting(self) -> bool:
        """Whether there are events to deliver."""
        return self._position < self._end

    def pending(self) -> int:
        """Number of events to deliver, counted by reading them.

        Raises:
            OSError: where the file cannot be read.
        """
        with self._path.open("rb") as file:
            file.seek(self._position)
            return sum(1 for _ in file)

    def append(self, event: Event) -> None:
        """Adds one event.

        Raises:
            OSError: where the file system refuses; the file is then unchanged.
        """
        line = json.dumps(event, default=_plain).encode() + b"\n"
        with self._lock:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            end = os.fstat(descriptor).st_size
            self._position = min(self._position, end)  # smaller only if somebody has emptied the file
            try:
                written = 0
                while written < len(line):
                    written += os.write(descriptor, line[written:])
            except BaseException:  # also Ctrl-C: an incomplete line would corrupt the next one
                os.ftruncate(descriptor, end)
                raise
            finally:
                os.close(descriptor)
            self._end = end + len(line)

    def peek(self, limit: int) -> list[tuple[int, Event | None]]:
        """The next events, at most ``limit``, each with its end position; None for a line that cannot be parsed.

        Raises:
            OSError: where the file cannot be read.
        """
        events: list[tuple[int, Event | None]] = []
        with self._path.open("rb") as file:
            with self._lock:
                self._end = min(self._end, os.fstat(file.fileno()).st_size)
                self._position = min(self._position, self._end)
            file.seek(self._position)
            while len(events) < limit and file.tell() < self._end:
                line = file.readline()
                try:
                    event = json.loads(line)
                except ValueError:
                    event = None
                events.append((file.tell(), event if isinstance(event, dict) else None))
        return events

    def advance(self, position: int) -> None:
        """Marks the events up to ``position`` as delivered."""
        with self._lock:
            self._position = min(position, self._end)
        try:
            with self._path.open("rb") as file:  # the position must not outlive the lines that it counts
                os.fsync(file.fileno())
            write_whole(_position_file(self._path), str(position))
        except (OSError, StorageError) as error:  # harmless: a later process delivers some events again
            _log.warning("The position in %s could not be kept: %s", self._path, error)


def undelivered(path: Path) -> int:
    """Number of undelivered events in a spool's file, including an incomplete one. Nothing is created or written.

    Raises:
        StorageError: where the file exists and cannot be read.
    """
    with storage_faults(path):
        try:
            with path.open("rb") as file:
                file.seek(_stored_position(path, file.fileno()))
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0


def _position_file(path: Path) -> Path:
    return path.with_name(path.name + ".position")


def _stored_position(path: Path, descriptor: int) -> int:
    try:
        position = int(_position_file(path).read_text())
    except (FileNotFoundError, ValueError):
        return 0
    at_line_end = 0 < position <= os.fstat(descriptor).st_size and os.pread(descriptor, 1, position - 1) == b"\n"
    return position if at_line_end else 0  # the position belongs to an earlier file: deliver everything again


def _drop_torn_line(descriptor: int) -> int:
    """Cuts the file after its last line feed; returns its size."""
    size = os.fstat(descriptor).st_size
    end = size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        end -= 1
    if end != size:
        os.ftruncate(descriptor, end)
    return end


def _plain(value: object) -> object:
    """A numpy number as a Python number, anything else as a string."""
    return value.item() if hasattr(value, "item") else str(value)
