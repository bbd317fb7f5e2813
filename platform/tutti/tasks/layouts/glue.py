"""The tab-separated layouts of the published GLUE files (Wang et al. 2018, arXiv 1804.07461), without quoting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from pandas import DataFrame

from tutti.errors import Fault, TaskFileError
from tutti.tasks.layouts.broken import LineRows, Rows
from tutti.tasks.layouts.reading import CellCheck, FileSource, checked_frame
from tutti.tasks.layouts.tabs import lines_of, write_lines

_Columns = tuple[str, ...]


@dataclass(frozen=True)
class _Files:
    """The columns of one GLUE task's files.

    Attributes:
        train: of training and dev files, where these differ of each; the first are those that are written.
        test: of test files; the first column is the id.
        ours: maps ``text``, ``text_b`` and ``label`` to their columns.
        train_header: whether training and dev files have a header.
    """

    train: tuple[_Columns, ...]
    test: tuple[_Columns, ...]
    ours: dict[str, str]
    train_header: bool = True


def _pairs(first: str, second: str) -> _Files:
    """The columns that several tasks share: an index, two texts, and in training files a label."""
    test = ("index", first, second)
    return _Files(train=((*test, "label"),), test=(test,), ours={"text": first, "text_b": second, "label": "label"})


_SENTENCES = {"text": "sentence1", "text_b": "sentence2"}
_STSB = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")
_PARSES = ("sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse")
_MNLI = ("index", "promptID", "pairID", "genre", *_PARSES, "sentence1", "sentence2")
_ANNOTATORS = ("label1", "label2", "label3", "label4", "label5")
_FILES = {
    "CoLA": _Files(
        train=(("source", "label", "mark", "sentence"),),
        test=(("index", "sentence"),),
        ours={"text": "sentence", "label": "label"},
        train_header=False,
    ),
    "SST-2": _Files(
        train=(("sentence", "label"),), test=(("index", "sentence"),), ours={"text": "sentence", "label": "label"}
    ),
    "MRPC": _Files(
        train=(("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),),
        test=(("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),),
        ours={"text": "#1 String", "text_b": "#2 String", "label": "Quality"},
    ),
    "STS-B": _Files(train=((*_STSB, "score"),), test=(_STSB,), ours={**_SENTENCES, "label": "score"}),
    "QQP": _Files(
        train=(("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),),
        test=(("id", "question1", "question2"),),
        ours={"text": "question1", "text_b": "question2", "label": "is_duplicate"},
    ),
    "MNLI": _Files(
        train=((*_MNLI, "label1", "gold_label"), (*_MNLI, *_ANNOTATORS, "gold_label")),
        test=(_MNLI, ("index", "sentence1", "sentence2")),  # and the diagnostic set, which MNLI's models predict
        ours={**_SENTENCES, "label": "gold_label"},
    ),
    "QNLI": _pairs("question", "sentence"),
    "RTE": _pairs("sentence1", "sentence2"),
    "WNLI": _pairs("sentence1", "sentence2"),
}


@dataclass(frozen=True)
class Glue(FileSource):
    """The layout described by the module.

    Ids of train and dev rows are zero-based row numbers, of test rows the first column.

    Attributes:
        kind: ``CoLA``, ``SST-2``, ``MRPC``, ``STS-B``, ``QQP``, ``MNLI``, ``QNLI``, ``RTE`` or ``WNLI``.
        repair: whether to join rows that were broken by line feeds inside a text, and to drop labelled rows that still
            lack a column or a text. The published training file of QQP has broken rows and empty texts.
    """

    kind: str
    repair: bool = False

    @property
    def pair(self) -> bool:
        """Whether a row has two texts."""
        return "text_b" in _FILES[self.kind].ours

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        lines = lines_of(source)
        line_rows, first = self._start(lines, source, labelled=labelled)
        found = line_rows.of(list(lines), first_line=first)
        if labelled and self.repair:
            found = _usable(found, texts=[line_rows.names.index(name) for name in self._texts()])
        return self._frame(found, line_rows, labelled=labelled, check=check)

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        lines, found = lines_of(source), None
        ours = " and ".join(name for name in _FILES[self.kind].ours if name != "label")
        line_rows, first = self._start(lines, source, labelled=False, or_else=f"give it a header with {ours}")
        for found in line_rows.blocks(lines, rows, first_line=first):
            yield self._frame(found, line_rows, labelled=False, unique=False)
        if found is None:
            yield self._frame(([], [], []), line_rows, labelled=False)  # raises: there is no row

    def write(self, rows: DataFrame, path: Path) -> None:
        """Other columns than ours get the row's id (sources, sentence ids), or nothing (CoLA's mark, parses)."""
        files = _FILES[self.kind]
        theirs = {name: ours for ours, name in files.ours.items()} | {"label1": "label"}
        columns = [theirs.get(name, None if name == "mark" or name in _PARSES else "id") for name in files.train[0]]
        table = [[row[column] if column else "" for column in columns] for row in rows.to_dict("records")]
        write_lines(path, [files.train[0], *table] if files.train_header else table)

    def _texts(self) -> list[str]:
        return [name for ours, name in _FILES[self.kind].ours.items() if ours != "label"]

    def _start(
        self, lines: Iterator[str], source: str, *, labelled: bool, or_else: str = "use the layout table or competition"
    ) -> tuple[LineRows, int]:
        """How the lines of a file become rows, by its header, which is read; and the number of the line after it."""
        files = _FILES[self.kind]
        known, header = (files.train, files.train_header) if labelled else (files.test, True)
        which = f"GLUE's {self.kind} {'train and dev files' if labelled else 'test file'}"
        names = _columns(next(lines), known, origin=source, which=which, or_else=or_else) if header else known[0]
        remedy = "correct the line, or set cleaning.broken_rows where a text holds a line feed"
        ends_in_text = names[-1] in self._texts()
        line_rows = LineRows(
            names, source, remedy, ends_in_text=ends_in_text, repair=self.repair, drop=self.repair and labelled
        )
        return line_rows, 2 if header else 1

    def _frame(
        self, found: Rows, line_rows: LineRows, *, labelled: bool, check: CellCheck | None = None, unique: bool = True
    ) -> DataFrame:
        rows, places, faults = found
        columns = {"id": [*map(str, range(len(rows)))] if labelled else [row[0] for row in rows]}
        for ours, name in _FILES[self.kind].ours.items():
            if labelled or ours != "label":
                index = line_rows.names.index(name)
                columns[ours] = [row[index] for row in rows]
        return checked_frame(columns, origin=line_rows.origin, places=places, faults=faults, check=check, unique=unique)


def _usable(found: Rows, *, texts: list[int]) -> Rows:
    """The rows with all texts; if there are none, all, so that each is a fault."""
    rows, places, faults = found
    filled = [all(row[index].strip() for index in texts) for row in rows]
    return (list(compress(rows, filled)), list(compress(places, filled)), faults) if any(filled) else found


def _columns(line: str, known: tuple[_Columns, ...], *, origin: str, which: str, or_else: str) -> _Columns:
    """The columns that the header names."""
    for names in known:
        if line == "\t".join(names):
            return names
    rule = f"be the header of {which}: {'; or '.join(map(', '.join, known))}"
    raise TaskFileError(
        Fault(f"{origin}, line 1", rule, repr(line[:80]), f"name the file as GLUE lays it out, or {or_else}")
    )
