"""Files as users keep them: plain, packed by gzip, or the only file of a zip archive. Their content tells which."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, TextIO, cast

from tutti.errors import Fault, TaskFileError, first_line

SUFFIXES = (".gz", ".zip")
_SHOWN = 5
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_DAMAGED = (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)


_ENCODINGS: dict[str, str] = {}  # by file, of those that a study file says one of


def declare_encoding(sources: Iterable[str], encoding: str | None) -> None:
    """Says how these files are encoded where they are not UTF-8; None for no other encoding."""
    for source in sources:
        if encoding is None:
            _ENCODINGS.pop(source, None)
        else:
            _ENCODINGS[source] = encoding


def encoding_of(source: str) -> str | None:
    """The encoding of a text file that is not UTF-8, by its content: UTF-16, GB18030 or Windows-1252."""
    with _opened(source) as file:
        content = file.read()
    if content.startswith(_UTF_16):
        return "utf-16"
    for encoding in ("utf-8", "gb18030"):
        try:
            content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return None if encoding == "utf-8" else encoding
    return "windows-1252"


def packing(source: str) -> Literal["", "gzip", "zip", "workbook"]:
    """How a file is packed, if it is. A workbook of Excel is a zip archive too, but is read as it is."""
    with Path(source).open("rb") as file:
        start = file.read(4)
    if start.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if start != b"PK\x03\x04" or not zipfile.is_zipfile(source):
        return ""
    with zipfile.ZipFile(source) as archive:
        return "workbook" if "xl/workbook.xml" in archive.namelist() else "zip"


def unpacked_name(source: str) -> str:
    """The name without ``.gz`` or ``.zip``."""
    return source[: -len(Path(source).suffix)] if Path(source).suffix.lower() in SUFFIXES else source


def content_name(source: str) -> str:
    """The name of what a file holds: of the file in a zip archive, otherwise its own without ``.gz``.

    Raises:
        TaskFileError: where an archive has no file, or several.
    """
    if packing(source) != "zip":
        return unpacked_name(source)
    with zipfile.ZipFile(source) as archive:
        member = _member(archive, source).filename
    return member if Path(member).suffix else unpacked_name(source)


@contextmanager
def opened(source: str) -> Iterator[IO[bytes]]:
    """Opens an existing file, unpacked, and where another encoding was declared, as UTF-8.

    Raises:
        TaskFileError: where it cannot be unpacked or decoded; also while it is read.
    """
    encoding = _ENCODINGS.get(source)
    with _opened(source) as file:
        if encoding is None or packing(source) == "workbook":
            yield file
            return
        content = file.read()
    yield io.BytesIO(content if content.startswith(b"PAR1") else _as_utf8(content, encoding, source))


def _as_utf8(content: bytes, encoding: str, source: str) -> bytes:
    """Text in UTF-8: as it is, where it is so already, such as a file of pseudo-labels."""
    try:
        if not content.startswith(_UTF_16):
            content.decode("utf-8")
            return content
        return content.decode("utf-16").encode()
    except UnicodeDecodeError:
        pass
    try:
        return content.decode(encoding).encode()
    except UnicodeDecodeError as error:
        got = f"byte 0x{content[error.start]:02x} at offset {error.start}"
        remedy = "correct `encoding:`, or save the file as UTF-8"
        raise TaskFileError(Fault(source, f"be UTF-8 or {encoding}", got, remedy)) from error


@contextmanager
def _opened(source: str) -> Iterator[IO[bytes]]:
    kind = packing(source)
    if kind not in ("gzip", "zip"):
        with Path(source).open("rb") as file:
            yield file
        return
    try:
        if kind == "gzip":
            with gzip.open(source) as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            with zipfile.ZipFile(source) as archive, archive.open(_member(archive, source)) as file:
                yield file
    except _DAMAGED as error:
        raise TaskFileError(
            Fault(source, f"be a {kind} file that can be unpacked", first_line(error), "pack it again")
        ) from error


@contextmanager
def opened_text(source: str) -> Iterator[TextIO]:
    """The same as UTF-8 text, in which only a line feed ends a line."""
    with opened(source) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="\n") as text:
        yield text


def _member(archive: zipfile.ZipFile, source: str) -> zipfile.ZipInfo:
    """The only file of an archive, besides those that some systems add and hide."""
    files = [each for each in archive.infolist() if not each.is_dir() and not each.filename.startswith("__MACOSX/")]
    files = [each for each in files if not Path(each.filename).name.startswith(".")]
    if len(files) != 1:
        names = ", ".join(each.filename for each in files[:_SHOWN]) + (", ..." if len(files) > _SHOWN else "")
        got = f"{len(files)} files: {names}" if files else "none"
        raise TaskFileError(Fault(source, "hold one file", got, "unpack it, and name the file that is meant"))
    if files[0].flag_bits & 1:
        raise TaskFileError(Fault(source, "be a zip archive without a password", "one with it", "unpack it"))
    return files[0]
