"""The tab-separated layouts of the published GLUE files (Wang et al. 2018, arXiv 1804.07461), without quoting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame

from tutti.errors import Fault, TaskFileError
from tutti.tasks.layouts.reading import FileSource, checked_frame
from tutti.tasks.layouts.tabs import blocks_of, lines_of, split_columns, write_lines


@dataclass(frozen=True)
class _Files:
    """The columns of one GLUE task's files; ``ours`` maps ``text``, ``text_b`` and ``label`` to their columns."""

    train: tuple[str, ...]
    train_header: bool
    test: tuple[str, ...]
    ours: dict[str, str]


def _pairs(first: str, second: str) -> _Files:
    """The columns that several tasks share: an index, two texts, and in training files a label."""
    return _Files(
        train=("index", first, second, "label"),
        train_header=True,
        test=("index", first, second),
        ours={"text": first, "text_b": second, "label": "label"},
    )


_STSB = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")
_FILES = {
    "CoLA": _Files(
        train=("source", "label", "mark", "sentence"),
        train_header=False,
        test=("index", "sentence"),
        ours={"text": "sentence", "label": "label"},
    ),
    "SST-2": _Files(
        train=("sentence", "label"),
        train_header=True,
        test=("index", "sentence"),
        ours={"text": "sentence", "label": "label"},
    ),
    "MRPC": _Files(
        train=("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        train_header=True,
        test=("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        ours={"text": "#1 String", "text_b": "#2 String", "label": "Quality"},
    ),
    "STS-B": _Files(
        train=(*_STSB, "score"),
        train_header=True,
        test=_STSB,
        ours={"text": "sentence1", "text_b": "sentence2", "label": "score"},
    ),
    "RTE": _pairs("sentence1", "sentence2"),
    "QNLI": _pairs("question", "sentence"),
    "WNLI": _pairs("sentence1", "sentence2"),
}


@dataclass(frozen=True)
class Glue(FileSource):
    """The layout described by the module. Ids of train and dev rows are zero-based row numbers, of test rows ``index``.

    Attributes:
        kind: ``CoLA``, ``SST-2``, ``MRPC``, ``STS-B``, ``RTE``, ``QNLI`` or ``WNLI``.
    """

    kind: str

    @property
    def pair(self) -> bool:
        """Whether a row has two texts."""
        return "text_b" in _FILES[self.kind].ours

    def read(self, source: str, *, labelled: bool, numbers: bool = False) -> DataFrame:
        files = _FILES[self.kind]
        lines = lines_of(source)
        if header := files.train_header if labelled else True:
            _check_header(next(lines), self._names(labelled), origin=source, kind=self.kind, labelled=labelled)
        return self._frame(list(lines), source, first=2 if header else 1, labelled=labelled, numbers=numbers)

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        lines, first = lines_of(source), 2
        _check_header(next(lines), self._names(False), origin=source, kind=self.kind, labelled=False)
        for block in blocks_of(lines, rows):
            yield self._frame(block, source, first=first, labelled=False, unique=False)
            first += len(block)
        if first == 2:
            yield self._frame([], source, first=first, labelled=False)  # raises the fault that there is no row

    def _names(self, labelled: bool) -> tuple[str, ...]:
        return _FILES[self.kind].train if labelled else _FILES[self.kind].test

    def _frame(
        self,
        lines: Sequence[str],
        source: str,
        *,
        first: int,
        labelled: bool,
        numbers: bool = False,
        unique: bool = True,
    ) -> DataFrame:
        """Lines of the file as rows; ``first`` is the line number of the first one."""
        names, header = self._names(labelled), 1 if labelled and not _FILES[self.kind].train_header else 2
        rows, places, faults = split_columns(lines, names, origin=source, first_line=first, remedy="correct the line")
        by_name = {name: [row[index] for row in rows] for index, name in enumerate(names)}
        columns = {"id": [str(place - header) for place in places] if labelled else by_name["index"]}
        ours = _FILES[self.kind].ours
        columns |= {column: by_name[name] for column, name in ours.items() if labelled or column != "label"}
        return checked_frame(columns, origin=source, places=places, faults=faults, numbers=numbers, unique=unique)

    def write(self, rows: DataFrame, path: Path) -> None:
        """Other columns than ours are filled with the row's id (sources, sentence ids) or left empty (CoLA's mark)."""
        files = _FILES[self.kind]
        theirs = {name: ours for ours, name in files.ours.items()}
        table = [
            [row[theirs[name]] if name in theirs else "" if name == "mark" else row["id"] for name in files.train]
            for row in rows.to_dict("records")
        ]
        write_lines(path, [files.train, *table] if files.train_header else table)


def _check_header(line: str, names: tuple[str, ...], *, origin: str, kind: str, labelled: bool) -> None:
    if line.split("\t") != list(names):
        which = "train and dev files" if labelled else "test file"
        rule = f"be the header of GLUE's {kind} {which}: {', '.join(names)}"
        remedy = "name the file as GLUE lays it out, or use the layout table or competition"
        raise TaskFileError(Fault(f"{origin}, line 1", rule, repr(line[:80]), remedy))
