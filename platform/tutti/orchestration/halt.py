"""What halts a study: storage that fails it. No trial is to blame for that, so none may be told as failed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

from tutti.errors import Fault, StorageError

GO_ON = ", and go on with --resume: no trial is lost"
_FULL_OR_READ_ONLY = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def storage_fault(error: BaseException, *, place: str) -> Fault | None:
    """Says that storage has failed a study, where that is why ``error`` was raised; none where it is not.

    Args:
        place: what to name where the error names no file: the study's folder.
    """
    for one in _causes(error):
        if isinstance(one, StorageError):
            fault = one.faults[0]
            remedy = fault.remedy.removesuffix(" or name another folder")  # the study stays where it is
            return replace(fault, remedy=remedy + GO_ON)
        if isinstance(one, OSError) and one.errno in _FULL_OR_READ_ONLY:
            got, remedy = one.strerror or str(one), "make room, or make it writable" + GO_ON
            return Fault(str(one.filename or place), "be written whole", got, remedy)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised for, the outermost first; Ray keeps a worker's own error as ``cause``."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "cause", None) or error.__cause__
