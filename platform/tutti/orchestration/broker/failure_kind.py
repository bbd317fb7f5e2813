"""Distinguishes errors in the program or its input, which a retry repeats, from the loss of a process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tutti.errors import Fault, UserError

_PROGRAM_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    TypeError,
    UserError,
    ValueError,
)
# Messages of torch's RuntimeError after the failure of another worker, a connection or a GPU. A retry may succeed.
_LOSS_MESSAGE = re.compile("gloo|nccl|cuda|connection|timed? ?out|peer", re.IGNORECASE)
_RANK_HEADING = re.compile(r"\[Rank ([\d,]+) Error Snippet\]:")
_TRACEBACK_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@dataclass(frozen=True)
class Failure:
    """Why a Ray Train run failed.

    Attributes:
        reason: one line.
        for_its_node: out of memory means that Ray killed the worker because its node ran low, which other processes may
            have caused.
        final: another attempt at the trial would fail in the same way.
        halt_fault: the storage failed, which it would for any other worker.
        no_room: the workers never started, because the cluster had no room for them.
    """

    reason: str
    out_of_memory: bool = False
    for_its_node: bool = False
    final: bool = False
    halt_fault: Fault | None = None
    no_room: bool = False


def find_program_error(failures: Mapping[int, BaseException]) -> int | None:
    """The lowest rank that failed because of an error in the program or its input; none if any process was lost.

    Once a rank raises, the others may fail only because it no longer answers.
    """
    if any(type(error).__module__.split(".")[0] == "ray" for error in failures.values()):
        return None
    return next((rank for rank, error in sorted(failures.items()) if _is_program_error(error)), None)


def traceback_location(rank: int, traceback: str) -> str:
    """The last frame of a rank's traceback, as `` in fine_tune (training/fine_tune.py, line 80)``; empty if unknown.

    Args:
        traceback: Ray Train's, with a section for every rank.
    """
    sections = _RANK_HEADING.split(traceback)
    own = [text for ranks, text in zip(sections[1::2], sections[2::2], strict=True) if str(rank) in ranks.split(",")]
    # Of a long section Ray Train leaves the first and last 500 characters. Its last frame is in the latter, if in any.
    frames = _TRACEBACK_LINE.findall((own[0] if own else traceback).rpartition("(Output truncated")[2])
    if not frames:
        return ""
    file, line, function = frames[-1]
    return f" in {function} ({'/'.join(Path(file).parts[-2:])}, line {line})"


def _is_program_error(error: BaseException) -> bool:
    if type(error) is RuntimeError:
        return not _LOSS_MESSAGE.search(str(error))
    return isinstance(error, _PROGRAM_ERRORS)
