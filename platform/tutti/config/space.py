"""The search space: one distribution for each training key that Optuna varies."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

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

from tutti.config.strict import check_number


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float | None):
        raise ValueError("be a text, a number, true, false or null")
    return value


# A plain validator: with a union pydantic would convert between types, or report a fault for each member.
Choice = Annotated[bool | int | float | str | None, PlainValidator(_plain)]


def _listed(condition: Any) -> Any:
    """Turns the single values of a condition into tuples of one."""
    if not isinstance(condition, dict):
        return condition
    return {key: value if isinstance(value, list | tuple) else (value,) for key, value in condition.items()}


Condition = Annotated[dict[str, Annotated[tuple[Choice, ...], Field(min_length=1)]], BeforeValidator(_listed)]


class _Distribution(BaseModel):
    """The distribution of one key. It is sampled only where the keys under ``when`` have values listed there.

    See conditions.py.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    when: Condition = {}

    # By name instead of "*": pydantic allows no "before" validator on `type`, the discriminator.
    @field_validator("low", "high", "step", mode="before", check_fields=False)
    @classmethod
    def _check_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        return check_number(value, cls.model_fields[info.field_name or ""].annotation)


class _Range(_Distribution):
    low: float
    high: float

    @property
    def checked(self) -> tuple[tuple[str, Any], ...]:
        """The values that tell whether all are sound, each with its path below the key; the highest last."""
        return (("low", self.low), ("high", self.high))

    @model_validator(mode="after")
    def _low_is_below_high(self) -> _Range:
        if not self.low < self.high:
            raise ValueError(f"have low below high; got low {self.low} and high {self.high}")
        return self


class Uniform(_Range):
    """A float with uniform density; with ``step`` one of low, low + step, ..."""

    type: Literal["uniform"]
    step: Annotated[float, Field(gt=0)] | None = None


class LogUniform(_Range):
    """A positive float whose logarithm has uniform density."""

    type: Literal["log_uniform"]
    low: Annotated[float, Field(gt=0)]
    step: ClassVar[None] = None


class Int(_Range):
    """An integer from low to high inclusive, in steps of ``step``; with ``log`` its logarithm is sampled uniformly."""

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

    @property
    def checked(self) -> tuple[tuple[str, Any], ...]:
        """Every choice, with its path below the key."""
        return tuple((f"choices.{index}", choice) for index, choice in enumerate(self.choices))


Distribution = Annotated[Uniform | LogUniform | Int | Categorical, Field(discriminator="type")]
FIELDS = frozenset(name for kind in (Uniform, LogUniform, Int, Categorical) for name in kind.model_fields)


class SearchSpace(RootModel[dict[str, Distribution]]):
    """Maps training keys, and ``backbone``, to distributions. A study file may also give the name or path of a
    search-space file.
    """

    model_config = ConfigDict(frozen=True)
    root: dict[str, Distribution] = {}


def sound_distributions(space: Any) -> dict[str, Distribution]:
    """The distributions of a raw search space that are valid by themselves; invalid ones are reported elsewhere."""
    adapter: TypeAdapter[Distribution] = TypeAdapter(Distribution)
    valid = {}
    for key, value in space.items() if isinstance(space, dict) else ():
        try:
            valid[key] = adapter.validate_python(value)
        except ValidationError:
            continue
    return valid
