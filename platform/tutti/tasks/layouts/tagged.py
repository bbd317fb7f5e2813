"""The layout ``tokens``: words or characters with tags, line by line, or rows of JSON with tags or marked spans."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.errors import Fault, TaskFileError, counted
from tutti.files import write_whole
from tutti.tasks.layouts.cells import cell_text, id_text
from tutti.tasks.layouts.packed import unpacked_name
from tutti.tasks.layouts.reading import REPEATED, CellCheck, FileSource, checked_columns, raise_any
from tutti.tasks.layouts.table import Table, column_names, table_blocks
from tutti.tasks.layouts.tabs import blocks_of, lines_of
from tutti.tasks.layouts.token_rows import Read, Style, Unfit, is_list, read_row
from tutti.tasks.units import units_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.tasks.layouts.hub import Hub

TEXTS = ("tokens", "words", "text", "full_text", "sentence")
LABELS = ("tags", "ner_tags", "labels", "spans", "entities", "label", "annotations")
_TELL = {
    "misplaced": "{} going on where no entity of the type has begun: each begins one",
    "overlap": "{} overlapping an earlier one, left out: `spans: overlapping` keeps those of other types",
    "extended": "{} beginning or ending within a word: the whole word is marked",
    "spaces": "{} of white space alone, left out",
}
_SPACES = re.compile(" +")  # not those of Unicode, which may stand within a word, or be one
_TABLES = (".csv", ".jsonl", ".json", ".parquet", ".xlsx")
_WHAT = {"misplaced": "tag", "overlap": "span", "extended": "span", "spaces": "span"}

Cells = tuple[int, str | None, Any, Any, str]
"""A row: its place in the file, its id if it has one, its text or words, its labels, which may be None, and the text
beside it, empty for none."""


@dataclass(frozen=True)
class Tagged(FileSource):
    """The layout described by the module.

    Files whose suffix is none of a table's have a word a line, with its tag in another column, and an empty line after
    each row (CoNLL). Columns are separated by tabs, or by spaces where a line has no tab.

    Attributes:
        unit: as of ``tutti.tasks.units``.
        text, label: columns, or of lines their numbers from 1; None for the first and the last, or of tables for the
            first of ``TEXTS`` and ``LABELS`` that there is.
        text_b: the column of texts that are read beside, such as questions, of tables; None for none.
        id: a column of tables; None for ``id`` where there is one, and otherwise for numbers from 0.
        marks: whether tags mark spans; otherwise they are classes of units, read and written as they are.
        overlapping: whether entities of different types may overlap.
        dataset, subset: as of ``Hub``, whose splits are then the sources; None for files.
    """

    unit: str = "word"
    text: str | None = None
    label: str | None = None
    text_b: str | None = None
    id: str | None = None
    dataset: str | None = None
    subset: str | None = None
    marks: bool = True
    overlapping: bool = False

    @cached_property
    def _hub(self) -> Hub | None:
        if self.dataset is None:
            return None
        from tutti.tasks.layouts.hub import Hub  # whose library bundles need not have

        return Hub(self.dataset, self.subset, Table(text=self.text or TEXTS[0], label=self.label or LABELS[1]))

    def origin(self, source: str) -> str:
        return source if self._hub is None else self._hub.origin(source)

    def fingerprint(self, source: str) -> str:
        if self._hub is None:
            return super().fingerprint(source)
        names = self._hub.loaded(source).column_names
        used = (self._column(names, "text"), self._label(names), self.text_b)
        return self._hub.digest(source, [name for name in used if name], self._tag_names(source))

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        from pandas import DataFrame

        repeated: list[Fault] = []
        columns = next(self._columns(source, None, labelled=labelled, check=check, repeated=repeated))
        frame = DataFrame(columns, dtype="str")
        frame.attrs |= {REPEATED: repeated} if labelled else {}
        return frame

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        from pandas import DataFrame

        for columns in self.column_blocks(source, rows=rows):
            yield DataFrame(columns, dtype="str")

    def column_blocks(self, source: str, *, rows: int) -> Iterator[dict[str, list[str]]]:
        """``blocks`` as lists by the names of columns."""
        yield from self._columns(source, rows, labelled=False, check=None)

    def notices(self, source: str) -> tuple[str, ...]:
        odd: Counter[str] = Counter()
        for cells, unit in self._blocks(source, None):
            for place, _, text, labels, _ in cells:
                if labels is not None:
                    with suppress(TaskFileError):  # of a file to predict, whose labels may be anything
                        odd.update(self._read(source, unit, place, text, labels, labelled=True).odd)
        return tuple(
            f"{self.origin(source)} has {_TELL[key].format(counted(count, _WHAT[key]))}"
            for key, count in odd.items()
            if count
        )

    def write(self, rows: DataFrame, path: Path) -> None:
        """Writes JSON Lines with a tag for each unit, which ``read`` takes as they are; null for one not known."""
        lines = []
        for item in rows.to_dict("records"):
            text = item["text"]
            units = {"text": text} if self.unit == "piece" else {"tokens": units_of(text, self.unit)}
            beside = {self.text_b: item["text_b"]} if self.text_b else {}
            row = {"id": item["id"], **units, **beside, "tags": json.loads(item["label"])}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        write_whole(path, "".join(lines))

    def tagged(self, source: str, tags: Sequence[Sequence[Any]], *, like: str) -> tuple[str, bytes]:
        """A file to predict with its tags, written as labels are in the file ``like``: its suffix and its content.

        Args:
            tags: of O, B and I, for each unit of each row, or lists of such.
        """
        labels = [label for cells, _ in self._blocks(like, None) for *_, label, _ in cells if label is not None]
        style = Style(marks=False)
        if self.marks:
            style = Style.of(labels, self._tag_names(like), overlapping=self.overlapping)
        if self._is_of_lines(source):
            style = style if style.form == "tags" else Style()
            return ".conll", self._tagged_lines(source, tags, style, self._separator(like))
        table = {} if self._is_of_lines(like) else next(self._tables(like, 1))[0]
        label, lines = self._label(table) or LABELS[0], []
        for row, own in zip(self._objects(source), tags, strict=True):
            text = self._read(source, "row", 0, row[self._column(row, "text") or ""], None, labelled=False).text
            item = {**row, label: style.written(text, self.unit, own)}
            lines.append(json.dumps(item, ensure_ascii=False, default=str) + "\n")
        return ".jsonl", "".join(lines).encode()

    def _separator(self, source: str) -> str:
        """What stands between the columns of a file of lines; a tab for others."""
        lines = (line for line in lines_of(source) if not _is_between(line)) if self._is_of_lines(source) else iter(())
        return "\t" if "\t" in (first := next(lines, "\t")) or " " not in first else " "

    def _tagged_lines(self, source: str, tags: Sequence[Sequence[Any]], style: Style, separator: str) -> bytes:
        written, rows, place = [], iter(tags), 0
        own: list[str] = []
        for line in lines_of(source):
            if _is_between(line):
                own, place = [], 0
            else:
                if not place:
                    own = style.written("", self.unit, next(rows))
                line = f"{line}{'' if line.endswith(chr(9)) else _separator(line, separator)}{own[place]}"
                place += 1
            written.append(f"{line}\n")
        return "".join(written).encode()

    def _columns(
        self, source: str, limit: int | None, *, labelled: bool, check: CellCheck | None, **more: Any
    ) -> Iterator[dict[str, list[str]]]:
        first = 0
        for cells, unit in self._blocks(source, limit):
            options: dict[str, Any] = {"labelled": labelled, "check": check, "unique": limit is None, **more}
            yield self._columns_of(source, cells, unit, first, **options)
            first += len(cells)

    def columns_of_table(self, table: Mapping[str, Sequence[Any]], rows: int, *, origin: str) -> dict[str, list[str]]:
        """The columns of rows to predict of a table in memory; raises TaskFileError as ``blocks`` does."""
        cells = self._cells_of(origin, table, range(1, rows + 1))
        return self._columns_of(origin, cells, "row", 0, labelled=False, check=None, unique=False)

    def _columns_of(
        self, source: str, cells: Sequence[Cells], unit: str, first: int, *, labelled: bool, **options: Any
    ) -> dict[str, list[str]]:
        faults: list[Fault] = []
        names = ["id", "text", *["text_b"] * bool(self.text_b), *["label"] * labelled]
        columns: dict[str, list[str]] = {name: [] for name in names}
        answers: dict[int, tuple[str, ...]] = {}
        for number, (place, name, text, labels, beside) in enumerate(cells, start=first):
            try:
                row = self._read(source, unit, place, text, labels, labelled=labelled)
            except TaskFileError as error:
                faults += error.faults
                continue
            columns["id"].append(str(number) if name is None else name)
            columns["text"].append(row.text)
            if self.text_b:
                columns["text_b"].append(beside)
            if labelled:
                columns["label"].append(json.dumps(row.tags, ensure_ascii=False))
            if row.answers is not None:
                answers[len(columns["id"]) - 1] = row.answers
        origin, places = self.origin(source), [place for place, *_ in cells]
        raise_any(faults, origin=origin)
        checked = checked_columns(columns, origin=origin, places=places, place=unit, faults=[], **options)
        if answers:
            every = range(len(checked["id"]))
            checked["answers"] = [json.dumps(answers.get(row, ()), ensure_ascii=False) for row in every]
        return checked

    def _read(self, source: str, unit: str, place: int, text: Any, labels: Any, *, labelled: bool) -> Read:
        try:
            if labelled and labels is None:
                raise Unfit("have labels", "none", "name their column as `columns: {label: NAME}`")
            more: dict[str, Any] = {"marks": self.marks, "overlapping": self.overlapping}
            return read_row(text, labels, unit=self.unit, labelled=labelled, names=self._tag_names(source), **more)
        except Unfit as error:
            raise TaskFileError(Fault(f"{self.origin(source)}, {unit} {place}", *error.args)) from error

    def _blocks(self, source: str, limit: int | None) -> Iterator[tuple[list[Cells], str]]:
        """Blocks of so many rows, or one of all, and the unit of their places."""
        if self._is_of_lines(source):
            for block in blocks_of(self._rows_of_lines(source), limit):
                yield block, "line"
            return
        for table, places, unit in self._tables(source, limit):
            yield self._cells_of(source, table, places), unit

    def _cells_of(self, source: str, table: Mapping[str, Sequence[Any]], places: Sequence[int]) -> list[Cells]:
        text, label = self._column(table, "text"), self._label(table)
        if text is None:
            rule = f"have the column {self.text!r}" if self.text else f"have one of the columns {', '.join(TEXTS)}"
            got = f"the columns {', '.join(table) or 'none'}"
            raise TaskFileError(Fault(self.origin(source), rule, got, "name the column as `columns: {text: NAME}`"))
        name = self.id or ("id" if "id" in table else None)
        ids = [id_text(cell) for cell in table[name]] if name in table and name else [None] * len(places)
        labels = table[label] if label else [None] * len(places)
        return list(zip(places, ids, table[text], labels, self._beside(source, table, len(places)), strict=True))

    def _beside(self, source: str, table: Any, rows: int) -> list[str]:
        if self.text_b is None:
            return [""] * rows
        if self.text_b not in table:
            got, remedy = f"the columns {', '.join(table) or 'none'}", "correct `columns: {text_b: NAME}`"
            raise TaskFileError(Fault(self.origin(source), f"have the column {self.text_b!r}", got, remedy))
        return [cell_text(cell) for cell in table[self.text_b]]

    def _tables(self, source: str, limit: int | None) -> Iterator[Any]:
        if self._hub is None:
            wanted = {*TEXTS, *LABELS, "id", *filter(None, (self.text, self.label, self.text_b, self.id))}
            yield from table_blocks(source, limit, wanted=wanted)
        else:
            yield from self._hub.table_blocks(source, limit)

    def _objects(self, source: str) -> Iterator[dict[str, Any]]:
        if self._hub is not None:
            yield from self._hub.loaded(source)
            return
        names = {*column_names(source)}
        for table, places, _ in table_blocks(source, None, wanted=names):
            for index in range(len(places)):
                yield {name: cells[index] for name, cells in table.items() if cells}

    def _rows_of_lines(self, source: str) -> Iterator[Cells]:
        words: list[str] = []
        tags: list[str] = []
        first = 0
        for number, line in enumerate([*lines_of(source), ""], start=1):
            if _is_between(line):
                if words:
                    yield first, None, words, tags if len(tags) == len(words) else None, ""
                words, tags = [], []
                continue
            cells = line.split("\t") if "\t" in line else _SPACES.split(line.rstrip(" "))
            if not words:
                first = number
            words.append(self._cell(cells, self.text, 0, source, number) or " ")
            if len(cells) > 1:
                tags.append(self._cell(cells, self.label, -1, source, number))
            if len(tags) not in (0, len(words)):
                rule, got = "have a tag beside each word of a row, or beside none", "one without"
                raise TaskFileError(Fault(f"{source}, line {number}", rule, got, "correct the line"))

    def _cell(self, cells: Sequence[str], column: str | None, default: int, source: str, line: int) -> str:
        if column is None:
            return cells[default]
        if not column.isdecimal() or not 1 <= int(column) <= len(cells):
            rule, got = f"have the column {column!r}, whose number counts from 1", f"{len(cells)} columns"
            raise TaskFileError(Fault(f"{source}, line {line}", rule, got, "correct `columns:`"))
        return cells[int(column) - 1]

    def _is_of_lines(self, source: str) -> bool:
        return self._hub is None and is_of_lines(source)

    def _column(self, table: Any, what: str) -> str | None:
        named, known = (self.text, TEXTS) if what == "text" else (self.label, LABELS)
        if named is not None and named in table:
            return named
        return next((name for name in known if name in table), None)

    def _label(self, table: Any) -> str | None:
        text, label = self._column(table, "text"), self._column(table, "label")
        return None if label == text else label

    def _tag_names(self, source: str) -> list[str] | None:
        """The names of tags that a data set has as numbers."""
        if self._hub is None:
            return None
        data = self._hub.loaded(source)
        label = self._label(data.column_names)
        inner = getattr(data.features[label], "feature", None) if label else None
        return getattr(inner, "names", None)


def is_of_lines(source: str) -> bool:
    """Whether a file has a word a line, as its suffix tells."""
    return Path(unpacked_name(source)).suffix.lower() not in _TABLES


def natural_unit(source: str, column: str | None) -> str:
    """The unit of a file whose study does not say it: pieces of running text where the first row has such.

    A file that cannot be read is told when it is.
    """
    if is_of_lines(source):
        return "word"
    wanted = {*TEXTS, *filter(None, (column,))}
    try:
        table = next(table_blocks(source, 1, wanted=wanted))[0]
    except (TaskFileError, StopIteration):
        return "word"
    name = next((name for name in (column, *TEXTS) if name in table), None)
    first = table[name][0] if name is not None and len(table[name]) else []
    return "piece" if isinstance(first, str) and not is_list(first) else "word"


def _is_between(line: str) -> bool:
    """Whether a line stands between rows: an empty one, or where a document begins."""
    return not line.strip(" \t") or line.startswith("-DOCSTART-")


def _separator(line: str, other: str) -> str:
    """That of a line with several columns, otherwise the other one."""
    return "\t" if "\t" in line else " " if " " in line else other
