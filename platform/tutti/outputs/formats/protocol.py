"""What a submission format is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SubmissionFormat(Protocol):
    """Turns predicted labels, or the values of a regression, into the bytes of one submission file. Writes nothing."""

    def place(self, task: str, part: str) -> tuple[str, str]:
        """The part in whose folder the file of one part of a task stands, and the file's name.

        Args:
            part: ``test``, or ``test-SET`` of a task with several test sets.
        """

    def render(self, ids: Sequence[str], labels: Sequence[str] | Sequence[float]) -> bytes:
        """The file's content, UTF-8, row by row in the order given; the lengths are equal.

        Raises:
            SubmissionError: where an id or a label cannot be written in this format.
        """
