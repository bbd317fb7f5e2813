"""The base of all sections of a study file or recipe, whose numeric keys take numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError


def by_type(kinds: type | tuple[type, ...], then: str, otherwise: str) -> Discriminator:
    """The tag of a union's member, by the type of the value: pydantic would report a fault for each member."""
    return Discriminator(lambda value: then if isinstance(value, kinds) else otherwise)


class Strict(BaseModel):
    """Base of all sections: unknown keys are errors, instances are frozen, and numbers are not converted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        return check_number(value, cls.model_fields[info.field_name or ""].annotation)


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
