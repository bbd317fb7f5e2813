"""How a study file names the files of a task: one, several that are taken together, or several sets by name."""

from __future__ import annotations

import codecs
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]


def _file_or_sets(value: Any) -> str:
    return "sets" if isinstance(value, dict) else "file"


# Discriminated by hand, as ``Labels`` are.
TestFiles = Annotated[
    Annotated[str, Tag("file")] | Annotated[dict[Name, str], Field(min_length=1), Tag("sets")],
    Discriminator(_file_or_sets),
]


def _file_or_files(value: Any) -> str:
    return "files" if isinstance(value, list | tuple) else "file"


# Discriminated by hand, as ``TestFiles`` are.
Files = Annotated[
    Annotated[str, Tag("file")] | Annotated[tuple[str, ...], Field(min_length=1), Tag("files")],
    Discriminator(_file_or_files),
]


def _known_encoding(name: str) -> str:
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise ValueError("be the name of an encoding, such as gb18030, utf-16 or windows-1252") from error
    return name


Encoding = Annotated[str, AfterValidator(_known_encoding)]
