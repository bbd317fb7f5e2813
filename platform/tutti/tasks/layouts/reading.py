"""What all layouts share: opening a file, checking its rows, and naming what is wrong with them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pandas import DataFrame

from tutti.errors import Fault, TaskFileError
from tutti.files import nearest_file

FAULTS_SHOWN = 10
_CHUNK = 2**16  # bytes
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def existing_file(source: str) -> Path:
    """``source`` as a path that is a file.

    Raises:
        TaskFileError: where it is not, or cannot be read; names the file of that folder with the nearest name.
    """
    path = Path(source)
    try:
        if path.is_file():
            with path.open("rb"):
                return path
        if path.is_dir():
            raise TaskFileError(Fault(source, "be a file", "a folder", "name a file in it"))
    except OSError as error:
        got, remedy = error.strerror or str(error), "see to its permissions, or correct the path"
        raise TaskFileError(Fault(source, "be a file that can be read", got, remedy)) from error
    remedy = nearest_file(path, otherwise="correct the path, or put the file there")
    raise TaskFileError(Fault(source, "be a file", "nothing there", remedy))


def check_text(source: str) -> None:
    """Reads a file once, in memory that does not grow with it, to see that it is text.

    Raises:
        TaskFileError: where the file is missing, empty, binary, or not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, lines, filled = 0, 1, False
    with existing_file(source).open("rb") as file:
        while content := file.read(_CHUNK):
            if offset == 0 and content.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise TaskFileError(Fault(source, "be UTF-8", "UTF-16", "save the file as UTF-8"))
            if (zero := content.find(b"\0")) >= 0:
                got = f"a binary file (a zero byte at offset {offset + zero})"
                raise TaskFileError(Fault(source, "be a text file", got, "name the text file itself, unpacked"))
            rest = decoder.getstate()[0]  # the beginning of a character that the last chunk ended in
            _decode(decoder, rest + content, source, offset=offset - len(rest), line=lines)
            filled = filled or bool((content.removeprefix(codecs.BOM_UTF8) if offset == 0 else content).strip())
            offset, lines = offset + len(content), lines + content.count(b"\n")
        rest = decoder.getstate()[0]
        _decode(decoder, rest, source, offset=offset - len(rest), line=lines, final=True)
    if not filled:
        raise TaskFileError(Fault(source, "have at least one row", "an empty file", "name the file that has the rows"))


def _decode(
    decoder: codecs.IncrementalDecoder, content: bytes, source: str, *, offset: int, line: int, final: bool = False
) -> None:
    """Decodes ``content``, which begins at ``offset`` of the file and in its ``line``."""
    decoder.setstate((b"", 0))
    try:
        decoder.decode(content, final)
    except UnicodeDecodeError as error:
        place = line + content.count(b"\n", 0, error.start)
        raise TaskFileError(
            Fault(
                f"{source}, line {place}",
                "be UTF-8",
                f"byte 0x{content[error.start]:02x} at offset {offset + error.start}",
                "save the file as UTF-8 (a Chinese one is often GB18030: iconv -f GB18030 -t UTF-8)",
            )
        ) from error


def number(text: str) -> np.float32:
    """A label of a regression, such as ``3``, ``-0.5`` or ``1e-3``; NaN or infinity where float32 cannot hold it.

    ASCII digits with a point only: ``float`` would also take ``1_000`` and digits of other scripts.
    """
    with np.errstate(over="ignore"):
        return np.float32(text if _NUMBER.fullmatch(text.strip()) else "nan")


def raise_any(faults: Sequence[Fault], *, origin: str) -> None:
    """Raises the first faults, and says how many more there are. Does nothing without any.

    Raises:
        TaskFileError: where there are faults.
    """
    if len(faults) > FAULTS_SHOWN:
        more = f"{len(faults) - FAULTS_SHOWN} more faults than the {FAULTS_SHOWN} shown"
        last = Fault(origin, "be free of faults", more, "mend those shown, then look for the same in other rows")
        raise TaskFileError(*faults[:FAULTS_SHOWN], last)
    if faults:
        raise TaskFileError(*faults)


def checked_frame(
    columns: Mapping[str, Sequence[str]],
    *,
    origin: str,
    places: Sequence[int],
    place: str = "line",
    faults: Sequence[Fault] = (),
    numbers: bool = False,
    unique: bool = True,
) -> DataFrame:
    """The columns as a table, once nothing is empty that may not be and no id stands twice.

    Texts may be empty where there is no column ``label``: a competition's test file is not the user's to change.

    Args:
        columns: ``id``, ``text``, ``text_b``, ``label``, as far as there are; one str for each row.
        origin: the file, for messages.
        places: for each row, where it stands in the file.
        place: what ``places`` counts: ``line`` or ``row``.
        faults: what was found wrong before; raised together with what is found here.
        numbers: whether each label must be a number.
        unique: whether an id may stand only once.

    Raises:
        TaskFileError: where there is any fault, or no row.
    """
    found = list(faults)
    if not places and not found:
        found.append(Fault(origin, "have at least one row", "none", "name the file that has the rows"))
    for name, values in columns.items():
        if name.startswith("text") and "label" not in columns:
            continue
        rule = f"have {'an' if name == 'id' else 'a'} {name} that is not empty"
        remedy = f"fill in the {name}, or take the row out"
        for where, value in zip(places, values, strict=True):
            if not value.strip():
                found.append(Fault(f"{origin}, {place} {where}", rule, "an empty one", remedy))
    if numbers and "label" in columns:
        rule = "have a number as its label, as the task's metric asks"
        remedy = "mend the label, or name a metric of classes"
        for where, value in zip(places, columns["label"], strict=True):
            if value.strip() and not np.isfinite(number(value)):
                found.append(Fault(f"{origin}, {place} {where}", rule, repr(value), remedy))
    first: dict[str, int] = {}
    for where, identity in zip(places, columns["id"], strict=True) if unique else ():
        if identity in first:
            got = f"{identity!r}, which {place} {first[identity]} has already"
            found.append(Fault(f"{origin}, {place} {where}", "have an id of its own", got, "give each row its own id"))
        first.setdefault(identity, where)
    raise_any(found, origin=origin)
    return DataFrame(dict(columns), dtype="str")
