"""Comma-separated values, quoted after RFC 4180: with a header of our own, or as a competition's sample has it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tutti.errors import Fault, SubmissionError


@dataclass(frozen=True)
class Csv:
    """One row for each id in ``TASK.csv``; rows end with a carriage return and a line feed.

    Attributes:
        header: names of the two columns.
        order: every id, in the order that the rows shall have; none for the order in which they are given.
        source: where the order comes from, for messages.
    """

    header: tuple[str, str] = ("id", "label")
    order: tuple[str, ...] | None = None
    source: str = "the order"

    @classmethod
    def by_template(cls, file: Path) -> Csv:
        """The format of a competition's sample submission: its header, and its ids in its order.

        Raises:
            SubmissionError: where the file is no table of two columns with a header, or an id stands twice.
        """
        try:
            with file.open(encoding="utf-8-sig", newline="") as opened:
                rows = [row for row in csv.reader(opened, strict=True) if row]
        except (OSError, ValueError, csv.Error) as error:
            raise _unfit(file, str(error)) from error
        if odd := next((number for number, row in enumerate(rows, start=1) if len(row) != 2), None):
            raise _unfit(file, f"{len(rows[odd - 1])} in row {odd}: {', '.join(rows[odd - 1])[:80]}")
        if len(rows) < 2:
            raise _unfit(file, "no row below a header")
        ids = [row[0] for row in rows[1:]]
        if twice := next((each for each, count in Counter(ids).items() if count > 1), None):
            raise _unfit(file, f"the id {twice!r} twice")
        return cls((rows[0][0], rows[0][1]), tuple(ids), str(file))

    def place(self, task: str, part: str) -> tuple[str, str]:
        return part, f"{task}.csv"

    def check_ids(self, ids: Collection[str]) -> None:
        """Refuses rows that are not those of the order.

        Raises:
            SubmissionError: naming an id that is missing, and one too many.
        """
        if self.order is None:
            return
        missing, strange = sorted(set(ids) - set(self.order)), sorted(set(self.order) - set(ids))
        if missing or strange:
            found = [f"{len(missing)} missing, such as {missing[0]!r}"] if missing else []
            found += [f"{len(strange)} too many, such as {strange[0]!r}"] if strange else []
            remedy = "name the sample submission that belongs to this test file"
            raise SubmissionError(Fault(self.source, "have the ids of the test file", ", and ".join(found), remedy))

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
