"""A file of events that waits for delivery: appended line by line, read in order, its position kept on disk."""

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
    """Events in a file, one JSON object a line, and beside it (``.position``) how far they were delivered.

    What a process leaves undelivered, the next one finds. A line that was torn by a crash is dropped. Safe for one
    process that appends from any thread and reads from one. What is waiting is always what the file itself holds, so
    that neither an interrupt in the midst of a call nor a line of another process's makes the two disagree.

    Raises:
        StorageError: where the file cannot be made or read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with storage_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab+") as file:
                self._end = _drop_torn_line(file.fileno())
                self._position = _kept_position(path, file.fileno())

    @property
    def waiting(self) -> bool:
        """Whether there are events to deliver."""
        return self._position < self._end

    def pending(self) -> int:
        """How many events are to be delivered. Reads them all.

        Raises:
            OSError: where the file cannot be read.
        """
        with self._path.open("rb") as file:
            file.seek(self._position)
            return sum(1 for _ in file)

    def append(self, event: Event) -> None:
        """Adds one event.

        Raises:
            OSError: where the file system refuses; the file is then as it was before.
        """
        line = json.dumps(event, default=_plain).encode() + b"\n"
        with self._lock:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            end = os.fstat(descriptor).st_size
            try:
                written = 0
                while written < len(line):
                    written += os.write(descriptor, line[written:])
            except BaseException:  # Ctrl-C too: a line that is torn would spoil the next one
                os.ftruncate(descriptor, end)
                raise
            finally:
                os.close(descriptor)
            self._end = end + len(line)

    def peek(self, limit: int) -> list[tuple[int, Event | None]]:
        """The next events, at most ``limit``, each with the position behind it; none for a line that cannot be read.

        Raises:
            OSError: where the file cannot be read.
        """
        events: list[tuple[int, Event | None]] = []
        with self._path.open("rb") as file:
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
        self._position = position
        try:
            write_whole(_position_file(self._path), str(position))
        except StorageError as error:  # a later process then delivers again what stands already: no harm
            _log.warning("The position in %s could not be kept: %s", self._path, error)


def undelivered(path: Path) -> int:
    """How many events of a spool's file are to be delivered, a torn one too. Nothing is made or written.

    Raises:
        StorageError: where the file is there and cannot be read.
    """
    with storage_faults(path):
        try:
            with path.open("rb") as file:
                file.seek(_kept_position(path, file.fileno()))
                return sum(1 for _ in file)
        except FileNotFoundError:
            return 0


def was_delivered(path: Path) -> bool:
    """Whether any event of a spool's file has been."""
    return _position_file(path).is_file()


def _position_file(path: Path) -> Path:
    return path.with_name(path.name + ".position")


def _kept_position(path: Path, descriptor: int) -> int:
    try:
        position = int(_position_file(path).read_text())
    except (FileNotFoundError, ValueError):
        return 0
    at_line_end = 0 < position <= os.fstat(descriptor).st_size and os.pread(descriptor, 1, position - 1) == b"\n"
    return position if at_line_end else 0  # the position belongs to an earlier file: deliver the whole again


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
    """A numpy number as Python's own, anything else as its text."""
    return value.item() if hasattr(value, "item") else str(value)
