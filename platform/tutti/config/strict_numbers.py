"""Strict numbers: a numeric key takes numbers only, and no values that pydantic would convert to one."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic_core import PydanticKnownError


def check_number(value: Any, annotation: Any) -> Any:
    """Returns the value unchanged, for use in a "before" validator: true is not accepted as 1, nor '4' as 4.

    Raises:
        PydanticKnownError: where a numeric key has a boolean or a string that its annotation does not allow.
    """
    types = set(members(annotation))
    if isinstance(value, bool | str) and types & {int, float} and type(value) not in types:
        raise PydanticKnownError("int_type" if int in types else "float_type")
    return value


def members(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself, without the metadata of ``Annotated``."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from members(member)
    else:
        yield annotation
