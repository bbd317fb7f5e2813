"""One root error, one class per cause. Every message says what, the rule, what was got, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

_PASSWORD = re.compile(r"(?<=://)([^/?#\s:@]*:)\S*(?=@)|(?<=[?&])(password=)[^&#\s]*")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, said in one sentence. The password of an address in it is not shown.

    Args:
        what: where it is: a file, a line of it, a dotted key, an option.
        rule: what is expected there, written to follow "must".
        got: what stood there instead.
        remedy: what to do about it, in the imperative.
    """

    what: str
    rule: str
    got: str
    remedy: str

    def __str__(self) -> str:
        got = self.got if self.got.endswith("...") else self.got.rstrip(".")
        return masked(f"{self.what} must {self.rule}; got {got}; {self.remedy}.")


class TuttiError(Exception):
    """Root of all errors that Tutti raises on purpose. Carries one fault or many, and pickles.

    Attributes:
        exit_code: what the command line returns for it: 1, or 2 where the mistake is the user's own.
    """

    exit_code = 1

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.args

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class UserError(TuttiError):
    """The user's own mistake: shown as its sentences alone, never with a traceback."""

    exit_code = 2


class ConfigError(UserError):
    """A study, recipe or search-space file is wrong. Carries every fault of the file at once."""


class TaskFileError(UserError):
    """A task's file cannot be read as its layout says."""


class BackboneError(UserError):
    """The backbone cannot be found, loaded, or made."""


class StudyError(UserError):
    """A study is missing, unfinished, already there, or does not fit what is asked of it."""


class ClaimLostError(StudyError):
    """Another driver has taken the study over: its trials and its runs in the tracker are that one's now."""


class SubmissionError(UserError):
    """A submission does not fit its task's contract. Nothing was written."""


class StorageError(TuttiError):
    """Something could not be written or read back: no space, no permission, a damaged file."""


class TrialError(TuttiError):
    """A trial, or all trials of a study, failed."""


class TrialMemoryError(TrialError):
    """A trial needs more memory than its workers have, however its batches are cut."""


class ClusterError(TuttiError):
    """Ray cannot be reached or cannot give what a study needs."""


class ResourcesError(UserError, ClusterError):
    """A trial asks for more than the whole cluster has."""


class TrackingError(TuttiError):
    """The tracking store refuses or cannot be reached."""


def masked(text: str) -> str:
    """The text with the passwords of the addresses in it, such as ``postgresql://me:secret@host/db``, as ``***``."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}***", text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class's name where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def counted(number: int, noun: str) -> str:
    """How many there are of what: ``1 trial``, ``2 trials``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """A remedy that names the known name most like ``name``, or ``otherwise`` where none is near."""
    by_folded = {each.casefold(): each for each in known}
    close = get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return f"did you mean {by_folded[close[0]]!r}? Correct the name" if close else otherwise
