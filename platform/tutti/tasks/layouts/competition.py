"""The layout of Chinese competitions: tab-separated, no header, no quoting: ``id, text[, text_b][, label]``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame

from tutti.errors import Fault
from tutti.tasks.layouts.broken import LineRows, Rows
from tutti.tasks.layouts.reading import CellCheck, FileSource, checked_frame
from tutti.tasks.layouts.several import joined, listed
from tutti.tasks.layouts.tabs import lines_of, quoted_notice, write_lines

# How the first column of a header is called, and other ones.
_IDS = ("id", "index", "idx", "guid")
_NAMES = ("text", "text_a", "text_b", "sentence", "sentence1", "sentence2", "content", "文本", "内容", "label", "标签")


@dataclass(frozen=True)
class Competition(FileSource):
    """The layout described by the module.

    Attributes:
        pair: whether a row has two texts.
        repair: whether to join rows that were broken by line feeds inside a text.
        separator: what stands between several labels of a row; None for one label.
    """

    pair: bool = False
    repair: bool = False
    separator: str | None = None

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        line_rows = self._line_rows(source, labelled=labelled)
        check = None if self.separator else check
        frame = _frame(line_rows, line_rows.of(list(lines_of(source)), first_line=1), check=check)
        if self.separator is None or not labelled:
            return frame
        return frame.assign(label=listed(frame["label"].tolist(), self.separator))

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        line_rows = self._line_rows(source, labelled=False)
        for found in line_rows.blocks(lines_of(source), rows, first_line=1):
            yield _frame(line_rows, found, unique=False)

    def notices(self, source: str) -> tuple[str, ...]:
        notice = quoted_notice(source)
        return () if notice is None else (notice,)

    def write(self, rows: DataFrame, path: Path) -> None:
        if self.separator is not None:
            rows = rows.assign(label=joined(rows["label"].tolist(), self.separator))
        write_lines(path, rows[self._names(labelled=True)].itertuples(index=False, name=None))

    def _line_rows(self, source: str, *, labelled: bool) -> LineRows:
        return LineRows(
            self._names(labelled=labelled),
            origin=source,
            remedy="correct the line, or set cleaning.broken_rows where a text holds a line feed",
            ends_in_text=not labelled,
            repair=self.repair,
        )

    def _names(self, *, labelled: bool) -> list[str]:
        return ["id", "text", *(["text_b"] if self.pair else []), *(["label"] if labelled else [])]


def _frame(line_rows: LineRows, found: Rows, *, check: CellCheck | None = None, unique: bool = True) -> DataFrame:
    rows, places, faults = found
    columns = {name: [row[index] for row in rows] for index, name in enumerate(line_rows.names)}
    head = [cell.strip().casefold() for cell in rows[0]] if places[:1] == [1] else [""]
    if len(head) > 1 and "label" in columns and columns["label"].count(rows[0][-1]) > 1:
        head.pop()  # a class of that name
    if head[0] in _IDS or any(cell in _NAMES for cell in head[1:]):  # it would become a class and a row to predict
        or_else = "use the layout table" if unique else f"call the columns {' and '.join(line_rows.names)}"
        remedy = f"take the line out, or {or_else}"
        faults = [
            Fault(f"{line_rows.origin}, line 1", "be a row: this layout has no header", "a header", remedy),
            *faults,
        ]
    return checked_frame(columns, origin=line_rows.origin, places=places, faults=faults, check=check, unique=unique)
