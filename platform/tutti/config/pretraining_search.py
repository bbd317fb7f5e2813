"""The search over a pretraining file: its keys, and what a search space may vary there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from tutti.config.backbones import BACKBONE, backbone_faults
from tutti.config.pydantic_faults import faults_of
from tutti.config.raw import section
from tutti.config.search import search_faults
from tutti.config.space import Distribution, LogUniform, Uniform, sound_distributions
from tutti.config.study import AnySearch, Search
from tutti.errors import Fault, nearest

_OF_THE_LOSS = ("objective", "mask_share", "masks", "all_masks", "generator_size", "discriminator_weight")
"""Keys that change what the held-out loss is a loss of."""
_OF_ALL_TRIALS = {
    "epochs",
    "steps",
    "seed",
    "save_steps",
    "save_minutes",
    "evaluate_steps",
    "log_steps",
    "keep_every",
    "fsdp",
}
_WHOLE = ("batch_size", "accumulation")


class PretrainingSearch(AnySearch):
    """A search over a pretraining file: trials of ``steps`` steps each, for ``tutti tune``.

    Attributes:
        objective: by what trials are compared: the held-out ``loss``, or the ``downstream`` score of ``study``.
        study: the study whose tasks a trial's backbone is fine-tuned on, with the settings of its ``training:``, after
            every ``evaluate_steps``.
        concurrent_trials: how many run at a time; by default as many as there are CPUs, or GPUs.
        grace_evaluations: no trial is stopped earlier.
    """

    objective: Literal["loss", "downstream"] = "loss"
    study: Path | None = None
    concurrent_trials: Annotated[int, Field(ge=1)] | None = None
    scheduler: Literal["asha", "hyperband", "median", "none"] = "asha"
    grace_evaluations: Annotated[int, Field(ge=1)] = 1

    @property
    def as_of_study(self) -> Search:
        """The same as a study has it, whose epochs are evaluations."""
        own = {"objective", "study", "concurrent_trials", "grace_evaluations"}
        return Search(**self.model_dump(exclude=own), grace_epochs=self.grace_evaluations)


def pretraining_search_faults(
    raw: Mapping[str, Any], *, settings: type[BaseModel], what: Callable[[str], str]
) -> Iterator[Fault]:
    """A fault for each key, value or setting that a search over a raw pretraining file cannot have.

    Args:
        settings: the model whose fields are keys that trials can have, with ``objective``.
    """
    space, search = sound_distributions(raw.get("search_space")), section(raw, "search")
    if not raw.get("search_space"):
        return
    fixed = {key: value for key, value in raw.items() if key in {BACKBONE, *settings.model_fields}}
    yield from search_faults({"search_space": raw["search_space"], "search": search, "training": fixed}, what=what)
    if raw.get("steps") is None:
        yield Fault(what("steps"), "be given with a search space", "nothing", "add the number of steps of a trial")
    downstream = search.get("objective") == "downstream"
    if downstream and not search.get("study"):
        rule, remedy = "be given with `objective: downstream`", "name the file of a study"
        yield Fault(what("search.study"), rule, "nothing", remedy)
    varied = sorted({BACKBONE, *settings.model_fields} - _OF_ALL_TRIALS)
    for key, distribution in space.items():
        place = what(f"search_space.{key}")
        if key not in varied:
            remedy = nearest(key, varied, otherwise=f"vary one of {', '.join(varied)}")
            yield Fault(place, "be a key that can differ between trials of pretraining", repr(key), remedy)
        elif key == BACKBONE:
            yield from backbone_faults(place, distribution)
        elif key in _OF_THE_LOSS and not downstream:
            rule = "not vary where trials are compared by their held-out loss, which is of something else then"
            yield Fault(place, rule, key, "set `search.objective: downstream` and `search.study`")
        elif key in _WHOLE and isinstance(distribution, Uniform | LogUniform):
            yield Fault(f"{place}.type", "be int or categorical", repr(distribution.type), "write `type: int`")
        else:
            yield from _value_faults(key, distribution, settings=settings, place=place)


def _value_faults(key: str, distribution: Distribution, *, settings: type[BaseModel], place: str) -> Iterator[Fault]:
    for below, value in distribution.checked:
        try:
            settings.model_validate({key: value})
        except ValidationError as error:
            yield from faults_of(error, raw={key: value}, model=settings, what=f"{place}.{below}".format)
