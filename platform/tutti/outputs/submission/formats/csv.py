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
from tutti.tasks.layouts.delimited import delimited_blocks, separator_of
from tutti.tasks.layouts.packed import unpacked_name
from tutti.tasks.layouts.reading import check_text
from tutti.tasks.spelling import spelled_alike
from tutti.tasks.task import Task

_USAGES = frozenset({"Public", "Private", "Ignored"})


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
        delimiter: what stands between cells.
    """

    header: tuple[str, ...] = ("id", "label")
    order: tuple[str, ...] | None = None
    cells: tuple[tuple[str, ...], ...] = ()
    source: str = "the order"
    separator: str | None = None
    delimiter: str = ","

    @classmethod
    def by_template(cls, file: Path, separator: str | None = None) -> Csv:
        """The format of a competition's sample submission: its header and separator, and its ids in its order.

        A column such as Kaggle's solutions have it, ``Usage`` with nothing but ``Public`` and ``Private``, is left out.

        Raises:
            SubmissionError: if the file is not a table of an id and other columns with a header, or repeats an id.
        """
        try:
            check_text(str(file))
            suffix = Path(unpacked_name(str(file))).suffix
            delimiter = separator_of(str(file), suffix, frozenset())
            table, _, _ = next(delimited_blocks(str(file), None, suffix=suffix, wanted=frozenset()))
        except TaskFileError as error:
            raise SubmissionError(*error.faults) from error
        cells = {name: tuple(dict.fromkeys(map(str.strip, column))) for name, column in table.items()}
        id_name, *others = (name for name in cells if name.casefold() != "usage" or not _USAGES.issuperset(cells[name]))
        ids = tuple(table[id_name])
        if not others:
            raise _unfit(file, f"the column {id_name} alone")
        if not ids:
            raise _unfit(file, "no row below a header")
        if repeated := next((row_id for row_id, count in Counter(ids).items() if count > 1), None):
            raise _unfit(file, f"the id {repeated!r} twice")
        of_others = tuple(cells[name] for name in others)
        return cls((id_name, *others), ids, of_others, str(file), separator, delimiter)

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

    def in_order(self, ids: Collection[str]) -> list[str]:
        """The ids in the order to write, each as it is given: the sample may spell them in another case, or 1 as 01.

        Raises:
            SubmissionError: where they are not those of the order, naming a missing id and a surplus one.
        """
        order = list(ids if self.order is None else self.order)
        for same in (str, spelled_alike):
            by_key, keys = {same(row): row for row in ids}, [same(row) for row in order]
            if by_key.keys() == {*keys} and len(by_key) == len(keys) == len({*ids}):
                return [by_key[key] for key in keys]
        missing, surplus = sorted(set(ids) - set(order)), sorted(set(order) - set(ids))
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
            cells_of = {row: cells for row, *cells in rows}
            in_order = zip(self.order, self.in_order(cells_of), strict=True)
            rows = [(spelled, *cells_of[row]) for spelled, row in in_order]
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=self.delimiter)
        writer.writerow(header)
        writer.writerows(rows)
        return text.getvalue().encode()


def _unfit(file: Path, got: str) -> SubmissionError:
    rule = "be a CSV file with a header, the id in its first column and every id once, and one other column or more"
    return SubmissionError(Fault(str(file), rule, got, "name the competition's sample submission"))
