"""One root error, one class per cause. Every message names the place, the rule, what was found, and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import Any

PASSWORD = re.compile(
    r"(https?://[^/?#\s:@]*):[^/?#\s]*(?=@)"
    r"|((?<!http)(?<!https)://[^/?#\s:@]*):(?:[^?\s]*|\S*)(?=@)"  # a database's may contain "/", even "?" before "@"
    r"|(?<=[?&])((?:ssl)?password=)[^&#\s]*(&?)"
)
"""A password in an address, with its user, or with its option."""


@dataclass(frozen=True)
class Fault:
    """One error in the user's input or environment, described in one sentence. Passwords in it are masked.

    Args:
        what: the place: a file, a line of it, a dotted key, an option.
        rule: what is expected there, worded to follow "must".
        got: what was found instead.
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
    """Root of all errors that Tutti raises on purpose. Carries one or more faults, and can be pickled.

    Attributes:
        exit_code: exit status of the command line: 1, or 2 where the mistake is the user's own.
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
    """The user's own mistake: only its sentences are shown, never a traceback."""

    exit_code = 2


class ConfigError(UserError):
    """A study, recipe or search-space file is wrong. Carries every fault of the file at once."""


class TaskFileError(UserError):
    """A task's file does not conform to its layout."""


class BackboneError(UserError):
    """The backbone cannot be found, loaded, or created."""


class StudyError(UserError):
    """A study is missing, unfinished, already exists, or does not fit the request."""


class ClaimLostError(StudyError):
    """Another driver has taken over the study, with its trials and its runs in the tracker."""


class SubmissionError(UserError):
    """A submission does not fit its task's contract. Nothing was written."""


class StorageError(TuttiError):
    """Data could not be written or read back: no space, no permission, a damaged file."""


class TrialError(TuttiError):
    """A trial, or all trials of a study, failed."""


class TrialMemoryError(TrialError):
    """A trial needs more memory than its workers have, however small its batches are."""


class ClusterError(TuttiError):
    """Ray cannot be reached, or lacks the resources that a study needs."""


class ResourcesError(UserError, ClusterError):
    """A trial requests more resources than the whole cluster has."""


class TrackingError(TuttiError):
    """The tracking store refuses a call or cannot be reached."""


def masked(text: str) -> str:
    """The text with the passwords in its addresses, such as ``postgresql://me:secret@host/db``, replaced by ``***``."""
    return PASSWORD.sub(lambda match: f"{match[3]}***{match[4]}" if match[3] else f"{match[1] or match[2]}:***", text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class's name where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def misfit(error: Exception) -> str:
    """Why a file could not be read, to complete "got ...": of pydantic's faults the first, with its place."""
    from pydantic import ValidationError  # slow to import

    if not isinstance(error, ValidationError):
        return first_line(error)
    first = error.errors()[0]
    location = ".".join(map(str, first["loc"])) or "content"
    return f"{location} ({first['msg'][0].lower()}{first['msg'][1:]})"


def counted(number: int, noun: str) -> str:
    """A number with its noun in singular or plural: ``1 trial``, ``2 trials``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str], *, otherwise: str) -> str:
    """A remedy that suggests the most similar known name, or ``otherwise`` where none is, or two equally."""
    folded = name.casefold()
    by_folded = {candidate.casefold(): candidate for candidate in known}
    close = get_close_matches(folded, by_folded, n=2, cutoff=0.6)
    similarity = [SequenceMatcher(None, each, folded).ratio() for each in close]
    if not close or (len(close) == 2 and similarity[0] == similarity[1]):
        return otherwise
    return f"did you mean {by_folded[close[0]]!r}? Correct the name"


def check_left_out(options: Mapping[str, Any], *, beside: str) -> None:
    """Checks that none of these options is given together with the option ``beside``, which would ignore them.

    Args:
        options: the options' values by name. A value that is false or empty was not given.

    Raises:
        StudyError: with a fault for each one that is given.
    """
    faults = []
    for name, value in options.items():
        if value:
            got = name if value is True else " ".join(value) if isinstance(value, list | tuple) else str(value)
            faults.append(Fault(name, f"be left out with {beside}", got, "take one of the two out"))
    if faults:
        raise StudyError(*faults)
