"""Comma-separated values, quoted as in RFC 4180, with our own header or that of a competition's sample file."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutti.errors import Fault, SubmissionError, TaskFileError
from tutti.outputs.submission.formats.filling import Filling, Sample
from tutti.outputs.submission.formats.protocol import Item
from tutti.tasks.layouts.reading import check_text
from tutti.tasks.task import Task


@dataclass(frozen=True)
class Csv:
    """One row for each id in ``TASK.csv``; lines end with CR LF.

    Attributes:
        header: names of the columns, that of the ids first; without a sample file one of several columns for items of
            several.
        order: every id, in the order of the rows to write; none to keep the order of the arguments.
        cells: by column but that of the ids, the different cells of the sample file.
        source: the file that the order and cells come from, for messages.
        separator: what stands between several labels in the task's files.
    """

    header: tuple[str, ...] = ("id", "label")
    order: tuple[str, ...] | None = None
    cells: tuple[tuple[str, ...], ...] = ()
    source: str = "the order"
    separator: str | None = None

    @classmethod
    def by_template(cls, file: Path, separator: str | None = None) -> Csv:
        """The format of a competition's sample submission: its header, and its ids in its order.

        Raises:
            SubmissionError: if the file is not a table of an id and other columns with a header, or repeats an id.
        """
        try:
            check_text(str(file))
            with file.open(encoding="utf-8-sig", newline="") as opened:
                rows = [row for row in csv.reader(opened, strict=True) if row]
        except TaskFileError as error:
            raise SubmissionError(*error.faults) from error
        except (OSError, csv.Error) as error:
            raise _unfit(file, str(error)) from error
        width = len(rows[0]) if rows else 0
        for number, row in enumerate(rows, start=1):
            if len(row) != width or width < 2:
                raise _unfit(file, f"{len(row)} in row {number}: {', '.join(row)[:80]}")
        if len(rows) < 2:
            raise _unfit(file, "no row below a header")
        if repeated := next((name for name, count in Counter(rows[0]).items() if count > 1), None):
            raise _unfit(file, f"the column {repeated!r} twice")
        ids, *columns = zip(*rows[1:], strict=True)
        if repeated := next((row_id for row_id, count in Counter(ids).items() if count > 1), None):
            raise _unfit(file, f"the id {repeated!r} twice")
        cells = tuple(tuple(dict.fromkeys(map(str.strip, column))) for column in columns)
        return cls(tuple(rows[0]), ids, cells, str(file), separator)

    def place(self, task: str, part: str) -> tuple[str, str]:
        return part, f"{task}.csv"

    def filling(self, task: Task) -> Filling:
        """What the columns of the sample file say of a task.

        Raises:
            SubmissionError: if they are not those of the task.
        """
        return Sample(self.header[1:], self.cells, self.source, self.separator).filling(task)

    @property
    def has_fractions(self) -> bool:
        """Whether the sample file has one column, of numbers such as probabilities are."""
        return Sample(self.header[1:], self.cells, self.source).has_fractions

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

    def render(self, ids: Sequence[str], labels: Sequence[Item]) -> bytes:
        header = list(self.header)
        if labels and isinstance(labels[0], Mapping):
            header = header[:1] + list(labels[0])
        rows = [
            (row, *(label.values() if isinstance(label, Mapping) else (label,)))
            for row, label in zip(ids, labels, strict=True)
        ]
        if self.order is not None:
            by_id = {row[0]: row for row in rows}
            self.check_ids(by_id)
            rows = [by_id[row] for row in self.order]
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(rows)
        return text.getvalue().encode()


def _unfit(file: Path, got: str) -> SubmissionError:
    rule = "be a CSV file with a header, the id in its first column and every id once, and one other column or more"
    return SubmissionError(Fault(str(file), rule, got, "name the competition's sample submission"))
