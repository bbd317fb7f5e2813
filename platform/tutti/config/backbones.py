"""The backbones of a study: the one of its file, or those that its search space chooses from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tutti.config.space import Categorical, Distribution, SearchSpace
from tutti.config.study import StudyConfig
from tutti.errors import Fault

BACKBONE = "backbone"


def backbone_of(study: StudyConfig, parameters: Mapping[str, Any]) -> str:
    """The backbone of a trial with these parameters."""
    return str(parameters.get(BACKBONE, study.backbone))


def by_backbone(study: StudyConfig) -> dict[str, StudyConfig]:
    """Each backbone that trials may have, with the study as it would be if it had that one alone: of keys with
    ``when: {backbone: ...}``, only those that trials with this backbone draw.
    """
    space = study.search_space.root
    varied = space.get(BACKBONE)
    if not isinstance(varied, Categorical):
        return {study.backbone: study}
    backbones = [*map(str, varied.choices), *([study.backbone] if varied.when else [])]
    return {
        each: study.model_copy(
            update={"backbone": each, "search_space": SearchSpace.model_construct(root=_drawn_with(each, space))}
        )
        for each in dict.fromkeys(backbones)
    }


def _drawn_with(backbone: str, space: Mapping[str, Distribution]) -> dict[str, Distribution]:
    return {
        key: entry.model_copy(
            update={"when": {name: values for name, values in entry.when.items() if name != BACKBONE}}
        )
        for key, entry in space.items()
        if key != BACKBONE and backbone in entry.when.get(BACKBONE, (backbone,))
    }


def backbone_faults(what: str, distribution: Distribution) -> list[Fault]:
    """The faults of the search space's key ``backbone``."""
    if not isinstance(distribution, Categorical):
        rule, remedy = "be categorical: backbones have no order", "write `type: categorical` with `choices:`"
        return [Fault(f"{what}.type", rule, repr(distribution.type), remedy)]
    rule, remedy = "be a folder or a hub id", "correct it"
    return [
        Fault(f"{what}.choices.{index}", rule, repr(choice), remedy)
        for index, choice in enumerate(distribution.choices)
        if not isinstance(choice, str)
    ]


def map_backbones(raw: Mapping[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """A copy of a raw study in which each name of a backbone is ``change(key, name)``.

    These are in ``backbone``, the choices of the search space's key, conditions on it, and ``search.enqueue``. A study
    that names none itself has the first choice as its backbone.
    """
    mapped = dict(raw)
    space = raw.get("search_space")
    space = dict(space) if isinstance(space, dict) else {}
    varied = space.get(BACKBONE)
    choices = varied.get("choices") if isinstance(varied, dict) else None
    known: dict[Any, Any] = {}
    if isinstance(varied, dict) and isinstance(choices, list | tuple):
        known = {
            choice: change(f"search_space.{BACKBONE}.choices.{index}", choice)
            for index, choice in enumerate(choices)
            if isinstance(choice, str)
        }
        space[BACKBONE] = varied | {"choices": [_renamed(choice, known) for choice in choices]}
        for key, entry in space.items():
            when = entry.get("when") if isinstance(entry, dict) else None
            if isinstance(when, dict) and BACKBONE in when:
                space[key] = entry | {"when": when | {BACKBONE: _renamed(when[BACKBONE], known)}}
        mapped["search_space"] = space
        search = raw.get("search")
        if isinstance(search, dict) and isinstance(points := search.get("enqueue"), list | tuple):
            renamed = [
                point | {BACKBONE: _renamed(point[BACKBONE], known)}
                if isinstance(point, dict) and BACKBONE in point
                else point
                for point in points
            ]
            mapped["search"] = search | {"enqueue": renamed}
    if isinstance(name := raw.get(BACKBONE), str):
        mapped[BACKBONE] = known.get(name) or change(BACKBONE, name)
    elif BACKBONE not in raw and known:
        mapped[BACKBONE] = next(iter(known.values()))
    return mapped


def _renamed(value: Any, known: Mapping[Any, Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_renamed(each, known) for each in value]
    return known.get(value, value) if isinstance(value, str) else value
