"""How a study file names the files of a task: one, several that are taken together, or several sets by name."""

from __future__ import annotations

import codecs
from typing import Annotated

from pydantic import AfterValidator, Field, Tag

from tutti.config.strict import by_type

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]


TestFiles = Annotated[
    Annotated[str, Tag("file")] | Annotated[dict[Name, str], Field(min_length=1), Tag("sets")],
    by_type(dict, "sets", "file"),
]


Files = Annotated[
    Annotated[str, Tag("file")] | Annotated[tuple[str, ...], Field(min_length=1), Tag("files")],
    by_type((list, tuple), "files", "file"),
]


def _known_encoding(name: str) -> str:
    try:
        codecs.lookup(name)
    except LookupError as error:
        raise ValueError("be the name of an encoding, such as gb18030, utf-16 or windows-1252") from error
    return name


Encoding = Annotated[str, AfterValidator(_known_encoding)]
