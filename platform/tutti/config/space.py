"""What Optuna may vary: one distribution for each training key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    RootModel,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tutti.config.numbers import as_it_stands


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float | None):
        raise ValueError("be a text, a number, true, false or null")
    return value


# Checked as it stands: a union would let pydantic turn one kind into another, or report each member's fault.
Choice = Annotated[bool | int | float | str | None, PlainValidator(_plain)]


def _listed(value: Any) -> Any:
    """One value that a condition names is a list of one."""
    if not isinstance(value, dict):
        return value
    return {key: given if isinstance(given, list | tuple) else (given,) for key, given in value.items()}


Condition = Annotated[
    dict[str, Annotated[tuple[Choice, ...], Field(min_length=1)]],
    BeforeValidator(_listed),
]


class _Distribution(BaseModel):
    """Of one key. ``when`` names other keys with their values: elsewhere the key is not drawn (see conditions.py)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    when: Condition = {}

    # By name: pydantic allows no such validator of `type`, by which it tells distributions apart.
    @field_validator("low", "high", "step", mode="before", check_fields=False)
    @classmethod
    def _numbers_are_numbers(cls, given: Any, info: ValidationInfo) -> Any:
        return as_it_stands(given, cls.model_fields[info.field_name or ""].annotation)


class _Range(_Distribution):
    low: float
    high: float

    @model_validator(mode="after")
    def _low_is_below_high(self) -> _Range:
        if not self.low < self.high:
            raise ValueError(f"have low below high; got low {self.low} and high {self.high}")
        return self


class Uniform(_Range):
    """A float, every value as likely; with ``step``, quantised: low, low + step, ..."""

    type: Literal["uniform"]
    step: Annotated[float, Field(gt=0)] | None = None


class LogUniform(_Range):
    """A positive float, every order of magnitude as likely."""

    type: Literal["log_uniform"]
    low: Annotated[float, Field(gt=0)]


class Int(_Range):
    """A whole number, both ends included; quantised by ``step``; ``log`` makes orders of magnitude as likely."""

    type: Literal["int"]
    low: int
    high: int
    step: Annotated[int, Field(ge=1)] = 1
    log: bool = False

    @model_validator(mode="after")
    def _log_has_no_step(self) -> Int:
        if self.log and (self.step != 1 or self.low < 1):
            raise ValueError(
                f"have step 1 and low at least 1 where log is true; got step {self.step} and low {self.low}"
            )
        return self


class Categorical(_Distribution):
    """One of the choices."""

    type: Literal["categorical"]
    choices: Annotated[tuple[Choice, ...], Field(min_length=1)]


Distribution = Annotated[Uniform | LogUniform | Int | Categorical, Field(discriminator="type")]


class SearchSpace(RootModel[dict[str, Distribution]]):
    """Training key to distribution. In a study file it may also be the name or path of such a file."""

    model_config = ConfigDict(frozen=True)
    root: dict[str, Distribution] = {}


def sound_distributions(space: Any) -> dict[str, Distribution]:
    """Of a raw search space, the distributions that are valid each by itself; the others are reported elsewhere."""
    adapter: TypeAdapter[Distribution] = TypeAdapter(Distribution)
    sound = {}
    for key, value in space.items() if isinstance(space, dict) else ():
        try:
            sound[key] = adapter.validate_python(value)
        except ValidationError:
            continue
    return sound
