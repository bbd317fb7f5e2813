"""How a study file names the files of a task: one, several that are taken together, or several sets by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

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
