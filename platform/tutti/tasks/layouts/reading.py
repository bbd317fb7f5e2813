"""Shared by all layouts: opening a file, checking its rows, and reporting their faults."""

from __future__ import annotations

import codecs
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.errors import Fault, TaskFileError
from tutti.files import is_lfs_pointer, nearest_file, sha256_of
from tutti.tasks.layouts.packed import opened, packing

if TYPE_CHECKING:
    from pandas import DataFrame

FAULTS_SHOWN = 10
_OTHERWISE_ENCODED = (
    "set `encoding:` of the task (gb18030 for Chinese text, windows-1252 for Western), or save it as UTF-8"
)
REPEATED = "repeated"
"""The attribute of frames of labelled rows with the faults that ids which repeat would be in rows to predict."""
TEXTS = ("text", "choices")  # how the names of columns of texts begin
_FEW = 3  # faults of one kind that are told one by one
CellCheck = Callable[[str], tuple[str, str, str] | None]
"""A label to the rule that it breaks, what it is instead, and the remedy; or None."""

Block = tuple[Mapping[str, Sequence[Any]], Sequence[int], str]
"""Rows of a table: its columns by name, the places of the rows in the file, and the unit of the places."""

_ROW = re.compile(r"(.*), (line|row) ([0-9]+)", re.DOTALL)  # what a fault of one row is about
_CHUNK = 2**16  # bytes
_RARE = 100  # a text has one zero byte in more bytes than these, if a faulty program has written some


class FileSource:
    """Base of the layouts whose sources are files."""

    def origin(self, source: str) -> str:
        return source

    def fingerprint(self, source: str) -> str:
        return sha256_of(existing_file(source))

    def class_order(self, source: str) -> tuple[str, ...]:
        return ()

    def notices(self, source: str) -> tuple[str, ...]:
        return ()

    def further_columns(self, source: str) -> dict[str, Sequence[object]]:
        return {}


def existing_file(source: str) -> Path:
    """The path of an existing, readable file.

    Raises:
        TaskFileError: where there is none; it suggests the file in that folder with the most similar name.
    """
    path = Path(source)
    try:
        if path.is_file():
            if is_lfs_pointer(path):
                got, remedy = "a pointer of Git LFS in its place", "run `git lfs pull` in its repository"
                raise TaskFileError(Fault(source, "be the file itself", got, remedy))
            return path
        if path.is_dir():
            raise TaskFileError(Fault(source, "be a file", "a folder", "name a file in it"))
    except OSError as error:
        got, remedy = error.strerror or str(error), "check its permissions, or correct the path"
        raise TaskFileError(Fault(source, "be a readable file", got, remedy)) from error
    remedy = nearest_file(path, otherwise="correct the path, or put the file there")
    raise TaskFileError(Fault(source, "be a file", "no such file", remedy))


def check_text(source: str, *, remedy: str = _OTHERWISE_ENCODED) -> None:
    """Reads a file once, in constant memory, to check that it is text.

    Args:
        remedy: where it is not UTF-8.

    Raises:
        TaskFileError: where the file is missing, empty, binary, or not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, lines, filled = 0, 1, False
    existing_file(source)
    with opened(source) as file:
        while content := file.read(_CHUNK):
            if offset == 0 and content.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise TaskFileError(
                    Fault(source, "be UTF-8", "UTF-16", "save the file as UTF-8 (iconv -f UTF-16 -t UTF-8)")
                )
            if (zero := content.find(b"\0")) >= 0:
                got = f"a binary file (a zero byte at offset {offset + zero})"
                remedy = "name the text file itself, unpacked"
                if content.count(b"\0") * _RARE < len(content):
                    got, remedy = f"a zero byte at offset {offset + zero}", "take it out (tr -d '\\000')"
                if packing(source) == "workbook":
                    got, remedy = "a workbook of Excel", "use the layout table, which reads it, or save it as text"
                raise TaskFileError(Fault(source, "be a text file", got, remedy))
            rest = decoder.getstate()[0]  # the bytes of a character that the last chunk has cut off
            _decode(decoder, rest + content, source, offset=offset - len(rest), line=lines, remedy=remedy)
            filled = filled or bool((content.removeprefix(codecs.BOM_UTF8) if offset == 0 else content).strip())
            offset, lines = offset + len(content), lines + content.count(b"\n")
        rest = decoder.getstate()[0]
        _decode(decoder, rest, source, offset=offset - len(rest), line=lines, remedy=remedy, final=True)
    if not filled:
        got = "an empty file, or white space alone"
        raise TaskFileError(Fault(source, "have at least one row", got, "name the file that has the rows"))


def _decode(
    decoder: codecs.IncrementalDecoder,
    content: bytes,
    source: str,
    *,
    offset: int,
    line: int,
    remedy: str,
    final: bool = False,
) -> None:
    """Decodes ``content``, which starts at byte ``offset`` of the file and in its line number ``line``."""
    decoder.setstate((b"", 0))
    try:
        decoder.decode(content, final)
    except UnicodeDecodeError as error:
        place = line + content.count(b"\n", 0, error.start)
        what = f"{source}, line {place}"
        got = f"byte 0x{content[error.start]:02x} at offset {offset + error.start}"
        raise TaskFileError(Fault(what, "be UTF-8", got, remedy)) from error


def raise_any(faults: Sequence[Fault], *, origin: str) -> None:
    """Raises the first faults with the number of further ones; does nothing if there are none.

    A fault that many rows have is told once, with their places.

    Raises:
        TaskFileError: where there are faults.
    """
    faults = _told_once(faults)
    if len(faults) > FAULTS_SHOWN:
        more = f"{len(faults) - FAULTS_SHOWN} more faults than the {FAULTS_SHOWN} shown"
        last = Fault(origin, "be free of faults", more, "correct those shown, then look for the same in other rows")
        raise TaskFileError(*faults[:FAULTS_SHOWN], last)
    if faults:
        raise TaskFileError(*faults)


def _told_once(faults: Sequence[Fault]) -> list[Fault]:
    """The faults, those that many rows of a file have merged into one each, in the place of the first."""
    alike: dict[tuple[str, ...], list[tuple[str, Fault]]] = defaultdict(list)
    for fault in faults:
        row = _ROW.fullmatch(fault.what)
        file, unit, place = row.groups() if row else (fault.what, "", "")
        alike[file, unit, fault.rule, fault.remedy].append((place, fault))
    told = []
    for (file, unit, rule, remedy), same in alike.items():
        if len(same) <= _FEW or not unit:
            told += [fault for _, fault in same]
            continue
        shown = same[:FAULTS_SHOWN]
        places = [place for place, _ in shown]
        last = f"{len(same) - len(shown)} more" if len(same) > len(shown) else places.pop()
        gots = list(dict.fromkeys(fault.got for _, fault in shown))
        got = ", ".join(gots[:_FEW]) + (", ..." if len(gots) > _FEW else "")
        told.append(Fault(f"{file}, {unit}s {', '.join(places)} and {last}", rule, got, remedy))
    return told


def check_names(names: Sequence[str], source: str) -> None:
    """Raises TaskFileError where two columns have the same name; any number may have none, as Excel writes them."""
    if repeated := sorted(name for name, count in Counter(names).items() if name and count > 1):
        got = f"{', '.join(repeated)} twice"
        raise TaskFileError(Fault(source, "have columns of different names", got, "rename one"))


def own_ids(ids: Sequence[str]) -> list[str]:
    """An id of its own for each row: a repeated one with the number of its repetition, an empty one the row's number.

    >>> own_ids(["test", "test", ""])
    ['test', 'test#2', 'row 2']
    """
    seen: Counter[str] = Counter()
    own: dict[str, None] = {}
    for row, name in enumerate(ids):
        seen[name] += 1
        new = name if name.strip() and seen[name] == 1 else f"{name}#{seen[name]}" if name.strip() else f"row {row}"
        while new in own:
            new += "#"
        own[new] = None
    return list(own)


def checked_frame(columns: Mapping[str, Sequence[str]], **options: Any) -> DataFrame:
    """``checked_columns`` as a data frame; raises as they do."""
    from pandas import DataFrame  # which bundles need not have

    repeated: list[Fault] = []
    frame = DataFrame(checked_columns(columns, repeated=repeated, **options), dtype="str")
    if "label" in columns:
        frame.attrs[REPEATED] = repeated
    return frame


def checked_columns(
    columns: Mapping[str, Sequence[str]],
    *,
    origin: str,
    places: Sequence[int],
    place: str = "line",
    faults: Sequence[Fault],
    check: CellCheck | None = None,
    unique: bool = True,
    repeated: list[Fault] | None = None,
) -> dict[str, list[str]]:
    """The columns, after checking for empty cells and repeated ids; labels without surrounding space.

    Texts may be empty where there is no column ``label``: users cannot change the test file of a competition. A row
    with an empty ``group`` is in none.

    Args:
        columns: ``id``, ``text``, ``text_b``, ``label``, ``group``, ``fold``, as far as present, with one str per row.
        origin: the file, for messages.
        places: number of each row's line or row in the file.
        place: the unit of ``places``: ``line`` or ``row``.
        faults: earlier faults, raised together with those found here.
        check: says what is wrong with a label; None where it may be any text.
        unique: whether ids of rows to predict must be unique. Those of labelled rows are made so, see ``own_ids``.

    Raises:
        TaskFileError: where there is any fault, or no row.
    """
    all_faults = list(faults)
    if not places and not all_faults:
        all_faults.append(Fault(origin, "have at least one row", "none", "name the file that has the rows"))
    labelled = "label" in columns
    for name, values in columns.items():
        if name == "group" or (name.startswith(TEXTS) and not labelled) or (name == "id" and labelled):
            continue
        rule = f"have {'an' if name == 'id' else 'a'} {name} that is not empty"
        remedy = f"fill in the {name}, or take the row out"
        for number_in_file, value in zip(places, values, strict=True):
            if not value.strip():
                all_faults.append(Fault(f"{origin}, {place} {number_in_file}", rule, "an empty one", remedy))
    if check is not None and "label" in columns:
        for number_in_file, value in zip(places, columns["label"], strict=True):
            if value.strip() and (fault := check(value)):
                all_faults.append(Fault(f"{origin}, {place} {number_in_file}", *fault))
    first: dict[str, int] = {}
    repeats: list[Fault] = []
    for number_in_file, row_id in zip(places, columns["id"], strict=True) if unique else ():
        if row_id in first:
            got = f"{row_id!r}, which {place} {first[row_id]} has already"
            what, remedy = f"{origin}, {place} {number_in_file}", "give each row its own id"
            repeats.append(Fault(what, "have an id of its own", got, remedy))
        first.setdefault(row_id, number_in_file)
    raise_any([*all_faults, *([] if labelled else repeats)], origin=origin)
    checked = {name: list(cells) for name, cells in columns.items()}
    if labelled:  # white space around a label would make a class of its own
        checked["id"], checked["label"] = own_ids(columns["id"]), [label.strip() for label in checked["label"]]
    if repeated is not None:
        repeated += repeats
    return checked
