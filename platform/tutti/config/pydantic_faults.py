"""Turns what pydantic finds in a file into faults that a user can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from tutti.config.numbers import members
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

Phrase = tuple[str, str]  # rule and remedy

_FIXED: dict[str, Phrase] = {
    "int_type": ("be a whole number", "give a whole number, such as 4"),
    "int_parsing": ("be a whole number", "give a whole number, such as 4"),
    "int_from_float": ("be a whole number", "give a whole number, such as 4"),
    "float_type": ("be a number", "give a number, such as 0.1"),
    "float_parsing": ("be a number", "give a number, such as 0.1"),
    "bool_type": ("be true or false", "write true or false"),
    "bool_parsing": ("be true or false", "write true or false"),
    "string_type": ("be a text", "put it in quotes if it is meant as a text"),
    "path_type": ("be a path", "give the path of a file or folder"),
    "model_type": ("hold keys of its own", "write its keys below it, indented"),
    "model_attributes_type": ("hold keys of its own", "write its keys below it, indented"),
    "dict_type": ("hold keys of its own", "write its keys below it, indented"),
    "tuple_type": ("be a list", "write it as [first, second]"),
    "string_pattern_mismatch": (
        "be a name of 1 to 80 letters, digits, dots, dashes and underscores that starts with a letter or digit",
        "choose such a name",
    ),
    "too_short": ("hold at least one entry", "add one"),
}
_FILE_OR_SETS = (
    "be a file, or a mapping of names to files",
    "write `test: FILE`, or `test: {round1: FILE, round2: FILE}`",
)
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def faults_of(
    error: ValidationError, *, raw: Any, model: type[BaseModel], what: Callable[[str], str]
) -> Iterator[Fault]:
    """A fault for each thing pydantic found, one for each key.

    Args:
        raw: the value that was validated; it tells which parts of an error's place are keys of the file.
        model: the model it was validated against.
        what: dotted key to how the message names the place: ``study.yaml: search.trials``.
    """
    seen = set()
    for found in error.errors(include_url=False):
        if found["type"] == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # pydantic counts the entries that are sound; what is wrong with the others is told of them
        keys = _keys_in_file(found, raw)
        dotted = ".".join(keys)
        if dotted not in seen:
            seen.add(dotted)
            rule, got, remedy = _sentence(found, keys=keys, raw=raw, model=model)
            yield Fault(what(dotted), rule, got, remedy)


def known_keys(model: type[BaseModel], keys: Sequence[str], raw: Any) -> tuple[str, ...]:
    """The keys that ``model`` knows at the place ``keys``; none where any name is allowed."""
    annotation: Any = model
    for key in keys:
        annotation = _step(annotation, key, raw)
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    found = _one_model(annotation, raw)
    return tuple(found.model_fields) if found and not issubclass(found, RootModel) else ()


def _sentence(found: ErrorDetails, *, keys: Sequence[str], raw: Any, model: type[BaseModel]) -> tuple[str, str, str]:
    kind, got, context = found["type"], show(found["input"]), found.get("ctx", {})
    if kind == "missing":
        return "be given", "nothing", f"add `{keys[-1]}:`"
    if kind == "extra_forbidden":
        known = known_keys(model, keys[:-1], raw)
        return "be a known key", "an unknown one", nearest(keys[-1], known, otherwise=f"known here: {', '.join(known)}")
    if kind in ("literal_error", "union_tag_invalid"):
        choices = re.findall(r"'([^']*)'", str(context.get("expected") or context["expected_tags"]))
        got = show(context["tag"]) if "tag" in context else got
        meant = str(context.get("tag", found["input"]))
        return f"be one of {', '.join(choices)}", got, nearest(meant, choices, otherwise="choose one of them")
    if kind == "union_tag_not_found":
        rule = "be given: uniform, log_uniform, int or categorical"
        return rule, "nothing", "add `type:` and the keys of that type"
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"be {word} {context[name]:.10g}", got, "change the number"
    if kind == "value_error":
        rule, _, said = str(context["error"]).partition("; got ")  # a validator may say better what it got
        return rule, said or got, "correct it"
    if kind in _FIXED:
        file_or_sets = found["loc"][-1:] == ("file",) and keys[-1:] != [
            "file"
        ]  # pydantic's mark of a union's member, no key
        rule, remedy = _FILE_OR_SETS if file_or_sets else _FIXED[kind]
        return rule, got, remedy
    return f"be valid: {found['msg'][:1].lower()}{found['msg'][1:]}", got, "correct it"


def _keys_in_file(found: ErrorDetails, raw: Any) -> list[str]:
    """The error's place without pydantic's own marks (the chosen member of a union, a key as such)."""
    keys = []
    part: Any
    for part in found["loc"]:
        if (isinstance(raw, Mapping) and part in raw) or (isinstance(raw, list) and isinstance(part, int)):
            raw = raw[part]
        elif found["type"] != "missing" or part != found["loc"][-1]:
            continue
        keys.append(str(part))
    return [*keys, "type"] if found["type"].startswith("union_tag") else keys


def _step(annotation: Any, key: str, raw: Any) -> Any:
    """The annotation of what stands under ``key``."""
    model = _one_model(annotation, raw)
    if model is None:
        arguments = get_args(_mapping_or_list(annotation))
        return arguments[1] if len(arguments) == 2 and arguments[1] is not ... else (arguments or (Any,))[0]
    if issubclass(model, RootModel):
        return get_args(model.model_fields["root"].annotation)[1]
    field = model.model_fields.get(key)
    return field.annotation if field else Any


def _one_model(annotation: Any, raw: Any) -> type[BaseModel] | None:
    """The model that an annotation stands for; of several, the one whose ``type`` the file names."""
    models = [member for member in members(annotation) if isinstance(member, type) and issubclass(member, BaseModel)]
    if len(models) < 2:
        return models[0] if models else None
    tag = raw.get("type") if isinstance(raw, Mapping) else None
    return next((model for model in models if tag in get_args(model.model_fields["type"].annotation)), None)


def _mapping_or_list(annotation: Any) -> Any:
    return next((member for member in members(annotation) if get_origin(member) in (dict, tuple)), annotation)
