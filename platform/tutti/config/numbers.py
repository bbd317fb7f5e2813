"""What a key of numbers takes: numbers, and nothing that could be made one."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic_core import PydanticKnownError


def as_it_stands(given: Any, annotation: Any) -> Any:
    """The value of a key, before pydantic looks at it: for a key of numbers, true is no 1 and '4' no 4.

    Raises:
        PydanticKnownError: where one of these stands for a number.
    """
    kinds = set(members(annotation))
    if isinstance(given, bool | str) and kinds & {int, float} and type(given) not in kinds:
        raise PydanticKnownError("int_type" if int in kinds else "float_type")
    return given


def members(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the annotation itself; what ``Annotated`` adds is left out."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from members(member)
    else:
        yield annotation
