"""The protocol of submission formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

Item = str | float | Mapping[str, float]
"""What is said of one row: a class, a number, or by name numbers, probabilities, or decisions, which are 0 or 1."""

Wanted = Literal["decisions", "probabilities"]


class SubmissionFormat(Protocol):
    """Renders what is predicted of rows as the bytes of a submission file. Writes nothing."""

    def place(self, task: str, part: str) -> tuple[str, str]:
        """The part whose folder the file goes to, and the file's name.

        Args:
            part: ``test``, or ``test-SET`` for one of several test sets.
        """

    def render(self, ids: Sequence[str], labels: Sequence[Item]) -> bytes:
        """The file's content, UTF-8, with one row for each id and its label, in this order.

        Raises:
            SubmissionError: if an id or a label cannot be written in this format.
        """
