"""Tables with named columns: CSV, tab-separated values, JSON, Parquet and workbooks of Excel, also packed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import repeat, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.template import column_name, filled
from tutti.config.template import columns_of as columns_in
from tutti.errors import Fault, TaskFileError, nearest
from tutti.files import whole_file, write_whole
from tutti.tasks.layouts import candidates, packed, workbook
from tutti.tasks.layouts.cells import cell_text, id_text
from tutti.tasks.layouts.delimited import delimited_blocks, dialect_notice
from tutti.tasks.layouts.ids import WHOLE_FLOATS, id_columns
from tutti.tasks.layouts.json_rows import json_blocks
from tutti.tasks.layouts.reading import (
    REPEATED,
    Block,
    CellCheck,
    FileSource,
    checked_columns,
    existing_file,
    raise_any,
)
from tutti.tasks.layouts.several import PREFIX, by_columns, chosen, columns_of, in_columns, joined, list_text, listed
from tutti.tasks.layouts.tabs import write_lines

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.config.columns import AnswerForm

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""Of the tables that can be written. Read are workbooks too, and all of them packed."""
_TEXTS = ("", ".txt", ".tab", ".data", ".dat", ".text", ".ndjson")  # which may be tables under another name
_SAVED = {".xls": workbook.SUFFIX} | dict.fromkeys((".feather", ".arrow", ".pkl", ".pickle"), ".parquet")
ANSWERS = "answers"
"""The attribute of frames in which they say what the labels of their file were, as ``columns.answers``."""
_ROWS = 4096  # that are looked at together for their ids
_SPLIT_KEYS = {"group": "split.group", "fold": "split.fold_column", "weight": "row_weight"}  # which name these columns


@dataclass(frozen=True)
class Table(FileSource):
    """The layouts described by the module. The suffix selects one: .csv, .tsv, .jsonl or .json, .parquet, .xlsx.

    Attributes:
        id: name of the id column. None for that which ``with_ids`` finds in rows to predict, and otherwise for the
            zero-based row number.
        text, text_b, label: names of the columns of the text, the second text, None for single ones, and the label.
        labels: names of columns with one label or number each, in place of ``label``.
        one_hot: whether these are classes, of which each row has 1 in the column of its own and 0 in the others.
        choices: names of the columns of a row's own candidates, which become one column ``choices`` of JSON lists: one
            column of lists, or one for each candidate. Labels become letters; ``answers`` is what they say of them,
            None for what all rows fit.
        weight: name of the column of weights of labelled rows in the loss; None where all weigh 1.
        several: whether ``label`` has a list of labels, as a JSON list or with ``separator`` between them.
        template, template_b: the texts, composed of columns as in ``{title} [SEP] {body}``. A file with a column by the
            name of the template itself, as ``write`` makes it, has them already.
        single: where ``text`` is the better one of two, which is the label of each row: the column of the text in files
            to predict that have neither; None in other tasks.
        group, fold: names of the columns of groups and folds in labelled rows; None where there are none.
        absent: name of a column that the first row lacks: ``blocks`` refuses rows of JSON Lines that have it.
        sample_ids: names that sample submissions give to the ids, which go before any other in rows to predict.
    """

    id: str | None = None
    text: str = "text"
    text_b: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ()
    one_hot: bool = False
    several: bool = False
    separator: str | None = None
    choices: tuple[str, ...] = ()
    answers: AnswerForm | None = None
    weight: str | None = None
    template: str | None = None
    template_b: str | None = None
    single: str | None = None
    absent: str | None = None
    sample_ids: tuple[str, ...] = ()
    group: str | None = None
    fold: str | None = None

    def read(self, source: str, *, labelled: bool, check: CellCheck | None = None) -> DataFrame:
        layout = self if labelled else self.with_ids(source)
        names = layout.names(labelled=labelled)
        wanted = {*layout.wanted(names), *filter(None, [layout.absent])}
        columns, places, place = next(table_blocks(source, None, wanted=wanted))
        names = without_id(names, columns) if labelled else names
        return frame_of(columns, names, layout, origin=source, places=places, place=place, check=check)

    def further_columns(self, source: str) -> dict[str, Sequence[object]]:
        known = self.wanted(self.names(labelled=True))
        further = {*column_names(source, wanted=known)} - known - {""}
        try:
            columns = next(table_blocks(source, None, wanted=further | known))[0] if further else {}
        except TaskFileError:  # rows of JSON Lines that lack some of these keys
            return {}
        return {name: columns[name] for name in columns if name in further}

    def blocks(self, source: str, *, rows: int) -> Iterator[DataFrame]:
        from pandas import DataFrame

        for columns in self.column_blocks(source, rows=rows):
            yield DataFrame(columns, dtype="str")

    def column_blocks(self, source: str, *, rows: int) -> Iterator[dict[str, list[str]]]:
        """``blocks`` as lists by the names of columns."""
        first, names = 0, self.names(labelled=False)
        wanted = {*self.wanted(names), *filter(None, [self.absent])}
        options: dict[str, Any] = {"origin": source, "unique": False}
        for columns, places, place in table_blocks(source, rows, wanted=wanted):
            yield columns_of_table(columns, names, self, places=places, place=place, first_row=first, **options)[0]
            first += len(places)

    def with_ids(self, source: str) -> Table:
        """The layout with the one column of ``id_columns`` as the table's ids, if nothing else names it.

        All rows have an id, or none: a submission with row numbers in their place would be of other rows.
        """
        if self.single and (texts := self.of_texts(column_names(source, wanted={self.text, self.single}))) is not self:
            return texts.with_ids(source)
        if self.id is not None:
            return self
        found = self.id_columns(source)
        if len(found) == 1:
            return replace(self, id=found[0])
        return self if "id" in self.wanted(self.names(labelled=False)) else replace(self, absent="id")

    def of_texts(self, columns: Collection[str]) -> Table:
        """The layout of rows to predict with these columns: of ``single`` texts where no two are there to compare."""
        if self.single is None or {self.text, self.text_b} & {*columns}:
            return self
        start = self.template and self.template.removesuffix(f"{self.text}}}")
        template = start and f"{start}{self.single}}}"
        return replace(self, text=self.single, text_b=None, template=template, template_b=None, single=None)

    def id_columns(self, source: str) -> list[str]:
        """The columns that may be the ids of rows to predict, as in ``tutti.tasks.layouts.ids``."""
        known = {"id", *self.wanted(self.names(labelled=False))}
        used = self.wanted(self.names(labelled=True))
        names = [name for name in column_names(source, wanted=known) if name not in used]

        def cells(name: str) -> Iterator[tuple[Sequence[Any], int]]:
            for columns, places, _ in table_blocks(source, _ROWS, wanted={name, *known}):
                yield columns.get(name, ()), len(places)

        return id_columns(names, sample_ids=self.sample_ids, cells=cells)

    def notices(self, source: str) -> tuple[str, ...]:
        match _format(source):
            case ".csv" | ".tsv" as suffix:
                wanted = {"id", *self.wanted(self.names(labelled=True))}
                notice = dialect_notice(source, suffix=suffix, wanted=wanted)
            case workbook.SUFFIX:
                notice = workbook.sheet_notice(source)
            case _:
                notice = None
        return () if notice is None else (notice,)

    def names(self, *, labelled: bool) -> dict[str, str]:
        """Maps our column names to those of the table; columns that are not used are left out."""
        theirs = {"id": self.id, "text": self.text, "text_b": self.text_b}
        theirs |= {candidates.PREFIX + name: name for name in self.choices}
        if labelled:
            theirs |= {PREFIX + name: name for name in self.labels} or {
                "label": self.text if self.single else self.label
            }
            theirs |= {"group": self.group, "fold": self.fold, "weight": self.weight}
        theirs |= {ours: column_name(template) for ours, template in self.templates().items()}
        return {ours: name for ours, name in theirs.items() if name is not None}

    def templates(self) -> dict[str, str]:
        """Maps our text columns to the templates by which they are composed."""
        templates = {"text": self.template, "text_b": self.template_b}
        return {ours: template for ours, template in templates.items() if template is not None}

    def wanted(self, names: Mapping[str, str]) -> set[str]:
        """All columns of a table that may be read: those named, and those of which templates compose texts."""
        return {*names.values(), *(name for template in self.templates().values() for name in columns_in(template))}

    def write(self, rows: DataFrame, path: Path) -> None:
        names = replace(self, group=None, fold=None, weight=None).names(labelled=True)
        if self.labels:
            own = rows["label"].tolist()
            of_labels = in_columns(own, self.labels) if self.one_hot else columns_of(own)
            rows = rows.assign(**{PREFIX + name: cells for name, cells in of_labels.items()})
        elif self.several:
            rows = rows.assign(label=joined(rows["label"].tolist(), self.separator))
        elif self.choices:
            rows = self._with_choices(rows)
        table = rows[list(names)].rename(columns=names)
        match path.suffix.lower():
            case ".csv":
                text = io.StringIO(newline="")
                writer = csv.writer(text)
                writer.writerows([list(table.columns), *table.itertuples(index=False, name=None)])
                write_whole(path, text.getvalue())
            case ".tsv":
                write_lines(path, [list(table.columns), *table.itertuples(index=False, name=None)])
            case ".parquet":
                import pyarrow as pa
                import pyarrow.parquet as pq

                with whole_file(path) as temporary:
                    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), temporary)
            case _:
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_dict("records")]
                write_whole(path, "".join(lines))

    def _with_choices(self, rows: DataFrame) -> DataFrame:
        """Rows with their candidates and labels as the table has them."""
        own = candidates.from_json(rows["choices"].tolist())
        answers = map(candidates.spelled, rows["label"], own, repeat(self.answers or "letter"))
        if len(self.choices) == 1:
            return rows.assign(**{candidates.PREFIX + self.choices[0]: rows["choices"]}, label=list(answers))
        columns = zip(self.choices, zip_longest(*own, fillvalue=""), strict=False)
        filled_in = {candidates.PREFIX + name: list(cells) for name, cells in columns}
        empty = {candidates.PREFIX + name: "" for name in self.choices}
        return rows.assign(**{**empty, **filled_in}, label=list(answers))


def column_names(source: str, *, wanted: Set[str] = frozenset()) -> list[str]:
    """The names of a table's columns; for JSON, the keys of the first row.

    Args:
        wanted: names that it may have, by which the separator of a text file is found.

    Raises:
        TaskFileError: where the file cannot be read.
    """
    return list(next(table_blocks(source, 1, wanted=wanted), ({}, [], ""))[0])


def without_id(names: Mapping[str, str], table: Collection[str]) -> dict[str, str]:
    """The names without that of an id column that a table lacks. Only rows to predict need ids of their own."""
    return {ours: name for ours, name in names.items() if ours != "id" or name in table}


def frame_of(*table: Any, **options: Any) -> DataFrame:
    """``columns_of_table`` as a data frame that says the form of ``ANSWERS``; raises as it does."""
    from pandas import DataFrame

    repeated: list[Fault] = []
    columns, form = columns_of_table(*table, repeated=repeated, **options)
    frame = DataFrame(columns, dtype="str")
    frame.attrs |= {ANSWERS: form} | ({REPEATED: repeated} if "label" in columns else {})
    return frame


def columns_of_table(
    table: Mapping[str, Sequence[Any]],
    names: Mapping[str, str],
    layout: Table,
    *,
    origin: str,
    places: Sequence[int],
    place: str,
    check: CellCheck | None = None,
    first_row: int = 0,
    unique: bool = True,
    repeated: list[Fault] | None = None,
) -> tuple[dict[str, list[str]], AnswerForm | None]:
    """The columns listed in ``names``, under our names and as str, checked by ``checked_columns``; and ``ANSWERS``.

    Args:
        layout: says how texts are composed of columns, and labels of several columns or names.
        first_row: index of the first row, used as its id where there is no id column.

    Raises:
        TaskFileError: naming each missing column with the most similar one, or each faulty row.
    """
    is_better = layout.single is not None and names.get("label") == layout.text
    names = {ours: name for ours, name in names.items() if not (is_better and ours == "label")}
    composed = {column: template for column, template in layout.templates().items() if names[column] not in table}
    sources = {column: columns_in(composed[column]) if column in composed else [names[column]] for column in names}
    used: dict[str, str] = {}  # by column of the table, the first one of ours that needs it
    for column, of_column in sources.items():
        for name in of_column:
            used.setdefault(name, column)
    others = [name for name in table if name not in used]
    faults = [
        Fault(
            origin,
            f"have the column {name!r} ({_key_of(column, column in composed, compared=layout.single is not None)})",
            f"the columns {', '.join(table) or 'none'}",
            nearest(name, others, otherwise=_remedy(column, column in composed, unique=unique)),
        )
        for name, column in used.items()
        if name not in table
    ]
    raise_any(faults, origin=origin)
    cells: dict[str, list[str]] = {}
    for name in used:
        cells[name] = []
        for number, value in zip(places, table[name], strict=True):
            if name in layout.choices:
                continue
            is_list = layout.several and name == names.get("label") and isinstance(value, list)
            text = id_text(value) if name == names.get("id") else list_text(value) if is_list else cell_text(value)
            cells[name].append(text)
            if name == names.get("id") and isinstance(value, float) and abs(value) >= WHOLE_FLOATS:
                got, remedy = f"the rounded number {value!r}", "write the ids as whole numbers or as texts"
                faults.append(Fault(f"{origin}, {place} {number}", f"have all digits of its {name!r}", got, remedy))
            elif isinstance(value, (list, dict, bytes)) and not is_list:
                rule, got = f"have a text or number in {name!r}", f"a {type(value).__name__}"
                remedy = "name a column of texts"
                if name == names.get("label") and isinstance(value, list):
                    rule = f"have one label in {name!r}, since several labels per row are not a single class"
                    remedy = f"name it as `columns: {{labels: {name}}}`, with a metric for several labels"
                faults.append(Fault(f"{origin}, {place} {number}", rule, got, remedy))
            elif not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                got, remedy = "half of a surrogate pair", "write the character whole"
                faults.append(Fault(f"{origin}, {place} {number}", f"have valid Unicode in {name!r}", got, remedy))
    ids = {} if "id" in names else {"id": [str(first_row + row) for row in range(len(places))]}
    columns: dict[str, list[str]] = ids
    own = candidates.candidates([table[name] for name in layout.choices]) if layout.choices else []
    for column, name in names.items():
        if name in layout.choices and column != "label":
            continue
        columns[column] = filled(composed[column], cells) if column in composed else cells[name]
    if of_labels := {name: columns.pop(PREFIX + name) for name in layout.labels if PREFIX + name in names}:
        where = [f"{origin}, {place} {each}" for each in places]
        columns["label"] = chosen(of_labels, where, faults) if layout.one_hot else by_columns(of_labels)
    elif layout.several and "label" in columns:
        columns["label"] = listed(columns["label"], layout.separator)
    if is_better:
        columns["label"] = ["better"] * len(places)
    form = layout.answers
    if layout.choices:
        columns["choices"] = candidates.as_json(own)
        where = [f"{origin}, {place} {each}" for each in places]
        form = candidates.answer(columns, own, form, faults, origin=origin, places=where)
    options: dict[str, Any] = {"faults": faults, "check": check, "unique": unique, "repeated": repeated}
    return checked_columns(columns, origin=origin, places=places, place=place, **options), form


def _key_of(column: str, is_composed: bool, *, compared: bool) -> str:
    """The key of a study file that names one of our columns, or says how it is composed."""
    if column.startswith(PREFIX):
        return "columns.label, columns.labels or columns.values"
    if column.startswith(candidates.PREFIX):
        return "columns.choices"
    if compared and column in (of_pairs := {"text": "better", "text_b": "worse"}):
        return f"columns.{of_pairs[column]}"
    return column.replace("text", "template") if is_composed else _SPLIT_KEYS.get(column, f"columns.{column}")


def _remedy(column: str, is_composed: bool, *, unique: bool) -> str:
    if column in _SPLIT_KEYS:
        return "name a column that it has"
    other = "correct the template" if is_composed else "set `columns:` (layouts table and hub)"
    return "rename the column" + (f", or {other}" if unique else "")


def _format(source: str) -> str:
    """The suffix that says how a table is read, whatever packs it; ``.xlsx`` for any workbook of Excel."""
    if packed.packing(source) == "workbook":
        return workbook.SUFFIX
    name = packed.content_name(source)
    suffix = Path(name).suffix.lower()
    if suffix not in (*SUFFIXES, workbook.SUFFIX):
        rule = f"end in {', '.join(SUFFIXES)} or {workbook.SUFFIX}, which {' or '.join(packed.SUFFIXES)} may follow"
        got = (repr(suffix) if suffix else "no suffix") + ("" if name == source else f", unpacked to {name}")
        remedy = (
            "rename the file, or use another layout" if suffix in _TEXTS else f"save it as {_SAVED.get(suffix, '.csv')}"
        )
        raise TaskFileError(Fault(source, rule, got, remedy))
    return suffix


def table_blocks(source: str, limit: int | None, *, wanted: Set[str]) -> Iterator[Block]:
    """Blocks of so many rows, or one block of all; a table without rows gives one empty block.

    Each row of JSON has all keys ``wanted`` that any row before it or of its block has, the first one those of any row.
    Columns that are not wanted may come without values.
    """
    existing_file(source)
    match _format(source):
        case ".csv" | ".tsv" as suffix:
            return delimited_blocks(source, limit, suffix=suffix, wanted=wanted)
        case ".parquet":
            from tutti.tasks.layouts.parquet import parquet_blocks  # whose library bundles need not have

            return parquet_blocks(source, limit, wanted)
        case workbook.SUFFIX:
            return workbook.workbook_blocks(source, limit)
        case _:
            return json_blocks(source, limit, wanted)
