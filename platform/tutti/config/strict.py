"""The base of all sections of a study file or recipe."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Discriminator, ValidationInfo, field_validator

from tutti.config.strict_numbers import check_number


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
