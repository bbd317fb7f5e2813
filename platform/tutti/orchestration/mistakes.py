"""Tells a worker that raised an error, which it would raise again, from one that was lost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tutti.errors import UserError

_MISTAKES = (
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
# What a RuntimeError of torch says where another worker, a link or a GPU has failed: that may pass.
_LOSS = re.compile("gloo|nccl|cuda|connection|timed? ?out|peer", re.IGNORECASE)
_SECTION = re.compile(r"\[Rank ([\d,]+) Error Snippet\]:")
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def mistake_in(failures: Mapping[int, BaseException]) -> int | None:
    """The lowest rank that failed for a mistake in the program or its input; none where any process was lost.

    While one rank raises, the others may fail only because it no longer answers.
    """
    if any(type(error).__module__.split(".")[0] == "ray" for error in failures.values()):
        return None
    return next((rank for rank, error in sorted(failures.items()) if _is_mistake(error)), None)


def place_of(rank: int, traceback: str) -> str:
    """The last line of a rank's traceback, as ``in fine_tune (training/fine_tune.py, line 80)``; empty without one.

    Args:
        traceback: Ray Train's, of all ranks.
    """
    sections = _SECTION.split(traceback)
    own = [text for ranks, text in zip(sections[1::2], sections[2::2], strict=True) if str(rank) in ranks.split(",")]
    found = _PLACE.findall(own[0] if own else traceback)
    if not found:
        return ""
    file, line, function = found[-1]
    return f" in {function} ({'/'.join(Path(file).parts[-2:])}, line {line})"


def _is_mistake(error: BaseException) -> bool:
    if type(error) is RuntimeError:
        return not _LOSS.search(str(error))
    return isinstance(error, _MISTAKES)
