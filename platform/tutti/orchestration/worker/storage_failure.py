"""Recognizes storage failures, which halt the whole study: no trial may be marked as failed for one."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

from tutti.errors import Fault, StorageError

GO_ON = ", and go on with --resume: no trial is lost"
_FULL_OR_READ_ONLY = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def storage_fault(error: BaseException, *, place: str) -> Fault | None:
    """The storage failure that caused an error; none if something else did.

    Args:
        place: named in the fault if the error names no file: the study's folder.
    """
    for cause in _causes(error):
        if isinstance(cause, StorageError):
            fault = cause.faults[0]
            remedy = fault.remedy.removesuffix(" or name another folder")  # a started study cannot move
            return replace(fault, remedy=remedy + GO_ON)
        if isinstance(cause, OSError) and cause.errno in _FULL_OR_READ_ONLY:
            got, remedy = cause.strerror or str(cause), "make room, or make it writable" + GO_ON
            return Fault(str(cause.filename or place), "be written whole", got, remedy)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its chain of causes, outermost first. Ray stores a worker's own error as ``cause``."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__
