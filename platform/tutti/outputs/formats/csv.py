"""Comma-separated values, quoted as in RFC 4180, with our own header or that of a competition's sample file."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tutti.errors import Fault, SubmissionError, TaskFileError
from tutti.tasks.layouts.reading import check_text
from tutti.tasks.numbers import number
from tutti.tasks.spelling import is_placeholder, spelled_like

_SHOWN = 5  # labels that one message lists


@dataclass(frozen=True)
class Csv:
    """One row for each id in ``TASK.csv``; lines end with CR LF.

    Attributes:
        header: names of the two columns.
        order: every id, in the order of the rows to write; none to keep the order of the arguments.
        labels: the different labels of the sample file, in which classes may have another spelling.
        source: the file that the order and labels come from, for messages.
    """

    header: tuple[str, str] = ("id", "label")
    order: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    source: str = "the order"

    @classmethod
    def by_template(cls, file: Path) -> Csv:
        """The format of a competition's sample submission: its header, and its ids in its order.

        Raises:
            SubmissionError: if the file is not a table of two columns with a header, or repeats an id.
        """
        try:
            check_text(str(file))
            with file.open(encoding="utf-8-sig", newline="") as opened:
                rows = [row for row in csv.reader(opened, strict=True) if row]
        except TaskFileError as error:
            raise SubmissionError(*error.faults) from error
        except (OSError, csv.Error) as error:
            raise _unfit(file, str(error)) from error
        if number := next((number for number, row in enumerate(rows, start=1) if len(row) != 2), None):
            row = rows[number - 1]
            raise _unfit(file, f"{len(row)} in row {number}: {', '.join(row)[:80]}")
        if len(rows) < 2:
            raise _unfit(file, "no row below a header")
        ids = [row[0] for row in rows[1:]]
        if repeated := next((row_id for row_id, count in Counter(ids).items() if count > 1), None):
            raise _unfit(file, f"the id {repeated!r} twice")
        labels = tuple(dict.fromkeys(row[1].strip() for row in rows[1:]))
        return cls((rows[0][0], rows[0][1]), tuple(ids), labels, str(file))

    def place(self, task: str, part: str) -> tuple[str, str]:
        return part, f"{task}.csv"

    def check_ids(self, ids: Collection[str]) -> None:
        """Checks that the rows are those of the order.

        Raises:
            SubmissionError: naming a missing id and a surplus one.
        """
        if self.order is None:
            return
        missing, surplus = sorted(set(ids) - set(self.order)), sorted(set(self.order) - set(ids))
        if missing or surplus:
            got = [f"{len(missing)} missing, such as {missing[0]!r}"] if missing else []
            got += [f"{len(surplus)} too many, such as {surplus[0]!r}"] if surplus else []
            remedy = "name the sample submission that belongs to this test file"
            raise SubmissionError(Fault(self.source, "have the ids of the test file", ", and ".join(got), remedy))

    def spelled(self, classes: Sequence[str]) -> dict[str, str]:
        """Each class as the sample file spells it; as it is where the file has only placeholders or probabilities.

        Args:
            classes: of the task; none for a regression.

        Raises:
            SubmissionError: if the file's labels are those of another task.
        """
        if found := spelled_like(classes, self.labels):
            return found
        filled = [label for label in self.labels if not is_placeholder(label)]
        numbers = [number(label) for label in filled]
        if self.has_probabilities or not filled or (not classes and np.isfinite(numbers).any()):
            return dict(zip(classes, classes, strict=True))
        rule = f"have labels of the task, {', '.join(classes[:_SHOWN]) or 'which are numbers'}, or none"
        got, remedy = (
            ", ".join(map(repr, filled[:_SHOWN])),
            "name the task's own sample submission, or empty its labels",
        )
        raise SubmissionError(Fault(self.source, rule, got, remedy))

    @property
    def has_probabilities(self) -> bool:
        """Whether all labels of the sample file lie between 0 and 1, as a competition has them that asks for these."""
        return bool(self.labels) and all(0 < number(label) < 1 for label in self.labels)

    def render(self, ids: Sequence[str], labels: Sequence[str] | Sequence[float]) -> bytes:
        rows = zip(ids, labels, strict=True)
        if self.order is not None:
            by_id = dict(rows)
            self.check_ids(by_id)
            rows = zip(self.order, map(by_id.__getitem__, self.order), strict=True)
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(self.header)
        writer.writerows(rows)
        return text.getvalue().encode()


def _unfit(file: Path, got: str) -> SubmissionError:
    rule = "be a CSV file of two columns with a header, the id and the label, and every id once"
    return SubmissionError(Fault(str(file), rule, got, "name the competition's sample submission"))
