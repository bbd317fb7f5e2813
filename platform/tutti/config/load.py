"""Loads study and recipe files: everything is checked before anything starts, and all faults are reported at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tutti.config.address import address_fault
from tutti.config.cross_checks import CHECKS
from tutti.config.folder import StudyFolder
from tutti.config.names import Kind, is_path, shipped_folder, shipped_names
from tutti.config.objective_weights import listed, proportional
from tutti.config.paths import absolute, as_stored, has_begun, missing_file, older_folders, resolve_paths
from tutti.config.pydantic_faults import faults_of
from tutti.config.raw import section
from tutti.config.recipe import Recipe
from tutti.config.space import FIELDS, Distribution, sound_distributions
from tutti.config.stages import STAGES, WEIGHTS
from tutti.config.study import StudyConfig
from tutti.config.yaml_file import odd_values, parse_yaml, read_mapping, show
from tutti.errors import ConfigError, Fault, nearest

CheckTraining = Callable[[Mapping[str, Any], Mapping[str, Distribution], str], Iterable[Fault]]
_SPACE = "search_space"
# Mappings whose values have no keys of their own, so that all of what follows in a dotted key is one key.
_FLAT = re.compile(rf"objective_weights|search\.enqueue\.\d+|{_SPACE}\..+\.when|training\.(.+\.)?({'|'.join(WEIGHTS)})")

_TEST_FILE = re.compile(r"tasks\..+\.test")


def load_study(
    path: Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    check_training: CheckTraining | None = None,
    shared: bool = False,
) -> StudyConfig:
    """Loads and validates a study file; its search space is read in, and every path is made absolute.

    Args:
        path: the YAML file, or its content. Paths in it, and in ``overrides``, are relative to its folder, or to the
            current one.
        overrides: the arguments of ``--set``, each ``dotted.key=value`` with the value as YAML; null removes the key.
        check_training: called with the ``training`` mapping, the valid distributions of the search space, and the
            file's name as shown in messages. Its faults, ``FILE: training.KEY``, are reported with all others.
        shared: whether the study will run on a cluster whose storage this machine may not have mounted: if
            ``storage.path`` does not exist here, nothing below it has to.

    Raises:
        ConfigError: with every fault: a wrong, missing or unknown key, or a file that is not there.
    """
    if isinstance(path, Path):
        raw, folder, places = read_mapping(path, kind="study file"), path.parent, Places(str(path))
    else:
        raw, folder, places = _plain(path), Path.cwd(), Places("the study")
    faults = []
    for_space = [text for text in overrides if text.strip().startswith(f"{_SPACE}.")]  # after its file has been read
    faults += override(raw, [text for text in overrides if text not in for_space], places)
    faults += _read_space(raw, folder, places)
    faults += override(raw, for_space, places)
    faults += _odd_values(raw, places)
    raw, path_faults = resolve_paths(raw, folder=folder, what=places.what, shared=shared)
    faults += path_faults + _recipe_faults(raw, folder, places)
    for check in CHECKS:
        faults = _merged(faults, check(raw, what=places.what))
    config = None
    try:
        config = StudyConfig.model_validate(raw)
        faults += _older_faults(config, raw, places)
    except ValidationError as error:
        faults = _merged(faults, faults_of(error, raw=raw, model=StudyConfig, what=places.what))
    if check_training:
        distributions = sound_distributions(raw.get(_SPACE))
        faults += map(places.relocated, check_training(section(raw, "training"), distributions, places.file))
    if faults or config is None:
        raise ConfigError(*map(places.with_way_out, faults))
    return config


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that holds what a YAML file can: paths as texts, NumPy's numbers as Python's."""
    copied: dict[str, Any] = json.loads(
        json.dumps(document, default=lambda value: value.item() if hasattr(value, "item") else str(value))
    )
    return copied


def load_recipe(name_or_path: str) -> tuple[str, Recipe]:
    """Name and content of a recipe, which is given by the name of a shipped one or by the path of a YAML file.

    Raises:
        ConfigError: where it does not exist, or with every fault in it.
    """
    path = _shipped_or_own("ensembles", name_or_path, folder=Path(), what=f"the recipe {name_or_path!r}")
    raw = read_mapping(path, kind="recipe")
    places = Places(str(path))
    faults = _odd_values(raw, places)
    recipe = None
    try:
        recipe = _with_templates(Recipe.model_validate(raw), path.parent)
        faults += [
            fault
            for name, file in recipe.submission.templates.items()
            if (fault := missing_file(file, what=places.what(f"submission.templates.{name}")))
        ]
    except ValidationError as error:
        faults = _merged(faults, faults_of(error, raw=raw, model=Recipe, what=places.what))
    if faults or recipe is None:
        raise ConfigError(*faults)
    return path.stem, recipe


def _with_templates(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with the paths of its templates made absolute, relative to its own folder."""
    templates = {name: absolute(str(file), folder) for name, file in recipe.submission.templates.items()}
    return recipe.model_copy(update={"submission": recipe.submission.model_copy(update={"templates": templates})})


def dump_study(config: StudyConfig) -> str:
    """The study as JSON, for the study's folder; ``parse_study`` reads it back."""
    return config.model_dump_json(indent=2) + "\n"


def parse_study(source: str | Path) -> StudyConfig:
    """Reads a study written by ``dump_study``, from the JSON text or from the path of a file.

    Raises:
        ConfigError: where the file cannot be read, or holds no valid study since it was edited by hand.
    """
    what = str(source) if isinstance(source, Path) else "the stored study"
    remedy = "restore the file, or run the study under a new name"
    try:
        raw = json.loads(as_stored(source) if isinstance(source, Path) else source)
        return StudyConfig.model_validate(raw)
    except OSError as error:
        got = (error.strerror or str(error)).lower()
        raise ConfigError(Fault(what, "be a stored study", got, remedy)) from error
    except ValidationError as error:
        faults = faults_of(error, raw=raw, model=StudyConfig, what=lambda key: f"{what}: {key}")
        raise ConfigError(*(replace(fault, remedy=remedy) for fault in faults)) from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise ConfigError(Fault(what, "be a study as JSON", str(error), remedy)) from error


@dataclass
class Places:
    """How messages name a place: by file and key, or by ``--set`` where that gave the value."""

    file: str
    space_file: str | None = None
    overridden: list[str] = field(default_factory=list)

    def what(self, key: str) -> str:
        if any(key == override or key.startswith(f"{override}.") for override in self.overridden):
            return f"--set {key}"
        if self.space_file and key.startswith(f"{_SPACE}."):
            return f"{self.space_file}: {key.removeprefix(f'{_SPACE}.')}"
        return f"{self.file}: {key}" if key else self.file

    def relocated(self, fault: Fault) -> Fault:
        """A fault located as ``FILE: KEY``, with its place as ``what`` names it."""
        prefix = f"{self.file}: "
        if not fault.what.startswith(prefix):
            return fault
        return replace(fault, what=self.what(fault.what.removeprefix(prefix)))

    def with_way_out(self, fault: Fault) -> Fault:
        """A fault whose remedy also says how to do without a key of a shipped search space, which nobody edits."""
        file, _, key = fault.what.rpartition(": ")
        if not key or file != self.space_file or Path(file).parent != shipped_folder("search_spaces"):
            return fault
        option = f"--set {_SPACE}.{key.split('.')[0]}=null"
        return replace(fault, remedy=f"{fault.remedy}; `{option}` takes it out of the shipped search space")


def override(raw: dict[str, Any], overrides: Sequence[str], places: Places) -> list[Fault]:
    """Sets the keys that the arguments of ``--set`` name, and tells ``places``. Returns what is wrong with them."""
    faults = []
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            remedy = "write it like --set training.learning_rate=2e-5"
            faults.append(Fault(f"--set {text}", "be KEY=VALUE with a dotted key", repr(text), remedy))
            continue
        try:
            parsed = parse_yaml(value, what=f"--set {key}")
        except ConfigError as error:
            faults += error.faults
            continue
        obstacle, overridden = _put(raw, key.split("."), parsed)
        if obstacle:
            rule = "name a key inside a mapping, or the number of a list's entry"
            faults.append(Fault(f"--set {key}", rule, obstacle, "correct the key"))
        else:
            places.overridden.append(overridden)
    return faults


def _put(raw: dict[str, Any], parts: Sequence[str], value: Any) -> tuple[str | None, str]:
    """Sets a value; None removes a key that is there, so that its default applies.

    The longest match finds keys that contain dots (see ``_length_of_new`` for others); entries of lists are numbered
    from 0.

    Returns:
        A description of the value that blocks the way, or None; and the dotted key of the outermost mapping that was
        created, or of the value where none was.
    """
    node: Any = raw
    path = created = ""
    while True:
        match = _match(node, parts, path)
        if match is None:
            got = f"a list of {len(node)}" if isinstance(node, list) else show(node)
            return f"{got} at {path!r}", path
        name, length = match
        parts = parts[length:]
        path = f"{path}.{name}" if path else str(name)
        if not parts:
            if value is None and isinstance(node, dict) and name in node:
                del node[name]
            else:
                node[name] = value
            return None, created or path
        if (node[name] if isinstance(node, list) else node.get(name)) is None:
            node[name] = {}
            created = created or path
        elif isinstance(node[name], str) and _TEST_FILE.fullmatch(path):  # it becomes one of several sets
            node[name] = {"test": node[name]}
        node = node[name]


def _match(node: Any, parts: Sequence[str], path: str) -> tuple[Any, int] | None:
    """The key of a mapping, or the index of a list, that the first parts name, and how many parts these are.

    Args:
        path: the dotted key of ``node``.
    """
    if isinstance(node, list):
        return (int(parts[0]), 1) if parts[0].isdecimal() and int(parts[0]) < len(node) else None
    if not isinstance(node, dict):
        return None
    existing = (n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in node)
    length = next(existing, None) or _length_of_new(parts, path)
    return ".".join(parts[:length]), length


def _length_of_new(parts: Sequence[str], path: str) -> int:
    """How many of the parts are the key that the mapping at ``path`` does not have yet.

    One, except for ``stages.N.KEY`` and ``task_weights.NAME`` of a search space, and in mappings of single values.
    """
    if _FLAT.fullmatch(path):
        return len(parts)
    if path == _SPACE and parts[0] == STAGES:
        return min(3, len(parts))
    if path == _SPACE and parts[0] in WEIGHTS:  # a task's name may contain dots
        return next((n for n in range(2, len(parts)) if parts[n] in FIELDS), len(parts))
    return 1


def _read_space(raw: dict[str, Any], folder: Path, places: Places) -> list[Fault]:
    """Replaces the name or path of the search space by its content; an unreadable one counts as empty."""
    name = raw.get(_SPACE)
    if not isinstance(name, str):
        return []
    raw[_SPACE] = {}
    try:
        path = _shipped_or_own("search_spaces", name, folder=folder, what=places.what(_SPACE))
        raw[_SPACE] = read_mapping(path, kind="search space")
    except ConfigError as error:
        return list(error.faults)
    if _SPACE in places.overridden:  # --set named the file, but faults inside it belong to the file
        places.overridden.remove(_SPACE)
    places.space_file = str(path)
    return []


def _shipped_or_own(kind: Kind, name: str, *, folder: Path, what: str) -> Path:
    if is_path(name):
        path = absolute(name, folder)
        if fault := address_fault(name, what=what) or missing_file(path, what=what):
            raise ConfigError(fault)
        return path
    known = shipped_names(kind)
    if name not in known:
        rule = f"be one of {', '.join(known)}, or the path of a YAML file"
        raise ConfigError(Fault(what, rule, repr(name), nearest(name, known, otherwise="choose one of them")))
    return shipped_folder(kind) / f"{name}.yaml"


def _recipe_faults(raw: dict[str, Any], folder: Path, places: Places) -> list[Fault]:
    """Makes the recipe's path absolute, and reads the recipe, so that its faults are reported before the study runs."""
    ensemble = section(raw, "ensemble")
    name = ensemble.get("recipe")
    if not isinstance(name, str):
        return []
    try:
        path = _shipped_or_own("ensembles", name, folder=folder, what=places.what("ensemble.recipe"))
        load_recipe(str(path))
    except ConfigError as error:
        return list(error.faults)
    if is_path(name):
        raw["ensemble"] = {**ensemble, "recipe": str(path)}
    return []


def _older_faults(study: StudyConfig, raw: Mapping[str, Any], places: Places) -> list[Fault]:
    """A fault for each warm-start study that cannot be read, or has other tasks, metrics or objectives.

    None once the study has trials: it has copies of theirs then.
    """
    metrics = {name: task.metric_name for name, task in study.tasks.items()}
    faults: list[Fault] = []
    for index, folder in older_folders(raw).items() if not has_begun(raw, trials=True) else ():
        try:
            older = parse_study(StudyFolder(folder).study_file)
        except ConfigError as error:
            faults += error.faults
            continue
        theirs = {name: task.metric_name for name, task in older.tasks.items()}
        remedy = "name a study that has them, or take it out"
        if not {"score", *older.search.objectives}.issuperset(study.search.objectives):
            rule = f"have measured this study's objectives, {', '.join(study.search.objectives)}"
            got, remedy = ", ".join(older.search.objectives), "take it out, or the objectives that it has not"
        elif theirs != metrics:
            rule, got = f"have this study's tasks and metrics, {_listed(metrics)}", _listed(theirs)
        elif not proportional(study.weights, older.weights):
            rule, got = f"have this study's objective_weights, {listed(study.weights)}", listed(older.weights)
        else:
            continue
        faults.append(Fault(places.what(f"search.warm_start.{index}"), rule, got, remedy))
    return faults


def _listed(metrics: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} ({metric})" for name, metric in metrics.items())


def _odd_values(raw: dict[str, Any], places: Places) -> list[Fault]:
    return [Fault(places.what(key), rule, got, remedy) for key, rule, got, remedy in odd_values(raw)]


def _merged(faults: Sequence[Fault], more: Iterable[Fault]) -> list[Fault]:
    """Both lists, without further faults for places that have one already."""
    places = {fault.what for fault in faults}
    return [*faults, *(fault for fault in more if fault.what not in places)]
