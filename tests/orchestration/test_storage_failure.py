"""What is the storage's fault, and no trial's."""

from __future__ import annotations

import errno
import os

import pytest

from tutti.errors import Fault, StorageError, TrialError
from tutti.orchestration.worker.storage_failure import storage_fault


class OfRay(Exception):
    """As Ray wraps what a worker raised."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("a long text")
        self.cause = cause


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/studies/s/optuna.db")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_or_read_only_disk_is_the_storage_s_fault(number):
    fault = storage_fault(OfRay(refused(number)), place="/studies/s")
    expected = f"/studies/s/optuna.db must be written whole; got {os.strerror(number)}; make room, or make it writable"
    assert str(fault) == f"{expected}, and go on with --resume: no trial is lost."


def test_an_error_that_names_no_file_names_the_study_s_folder():
    fault = storage_fault(OSError(errno.ENOSPC, "No space left on device"), place="/studies/s")
    assert fault is not None
    assert fault.what == "/studies/s"


def test_what_cannot_be_kept_is_the_storage_s_fault_and_says_how_the_study_goes_on():
    remedy = "free some space or name another folder"
    error = StorageError(Fault("best", "be written whole", "No space left on device", remedy))
    fault = storage_fault(OfRay(error), place="/studies/s")
    expected = "best must be written whole; got No space left on device; free some space"
    assert str(fault) == f"{expected}, and go on with --resume: no trial is lost."


@pytest.mark.parametrize("error", [KeyError("x"), refused(errno.ENOENT), TrialError(), MemoryError()])
def test_what_a_trial_is_to_blame_for_is_not(error):
    assert storage_fault(OfRay(error), place="/studies/s") is None
