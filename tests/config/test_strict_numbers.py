"""A key of numbers takes numbers alone, and a whole float is a whole number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from tutti.config.load import load_study
from tutti.config.recipe import Recipe
from tutti.config.strict import members
from tutti.config.study import StudyConfig


def _numbers(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Every numeric key of a model and of its nested models."""
    for key, field in model.model_fields.items():
        kinds = [*members(field.annotation)]
        if {int, float} & {*kinds}:
            yield model, key
        while kinds:
            kind = kinds.pop()
            kinds += [inner for each in get_args(kind) for inner in members(each)]
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _numbers(kind)


NUMBERS = [*_numbers(StudyConfig), *_numbers(Recipe)]


@pytest.mark.parametrize(("model", "key"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("value", [True, "4"])
def test_no_key_of_numbers_takes_what_could_be_made_one(model: type[BaseModel], key: str, value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        model.model_validate({key: value})
    assert [found["type"] for found in raised.value.errors() if found["loc"] == (key,)] in (
        ["int_type"],
        ["float_type"],
    )


def test_the_keys_of_numbers_are_found_at_every_depth() -> None:
    known = {f"{model.__name__}.{key}" for model, key in NUMBERS}
    assert {"Search.trials", "Resources.gpus_per_worker", "ExtraTrain.weight", "Int.low", "Members.top"} <= known


def test_a_whole_float_is_a_whole_number_and_a_whole_number_a_float(study: Path) -> None:
    search = load_study(study, overrides=["search.trials=3.0", "search.max_hours=8"]).search
    assert (search.trials, search.max_hours) == (3, 8.0)
