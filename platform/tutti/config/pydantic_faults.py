"""Turns pydantic's validation errors into faults that a user can act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails

from tutti.config.other_names import nearest_name
from tutti.config.strict import members
from tutti.config.yaml_file import show
from tutti.errors import Fault, nearest

Phrase = tuple[str, str]  # rule and remedy

_FIXED: dict[str, Phrase] = {
    "int_type": ("be a whole number", "give a whole number, such as 4"),
    "int_from_float": ("be a whole number", "give a whole number, such as 4"),
    "float_type": ("be a number", "give a number, such as 0.1"),
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
_FILE_OR_FILES = ("be a file, or a list of files", "write `train: FILE`, or `train: [FILE, FILE]`")
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def faults_of(
    error: ValidationError, *, raw: Any, model: type[BaseModel], what: Callable[[str], str]
) -> Iterator[Fault]:
    """Yields one fault for each key with an error.

    Args:
        raw: the validated value, which shows what parts of an error's location are keys of the file.
        model: the model it was validated against.
        what: maps a dotted key to the place shown in the message: ``study.yaml: search.trials``.
    """
    seen = set()
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]:
            continue  # pydantic counts only valid entries, and reports the invalid ones by themselves
        keys = _keys_in_file(details, raw)
        dotted = ".".join(keys)
        if dotted not in seen:
            seen.add(dotted)
            rule, got, remedy = _phrases(details, keys=keys, raw=raw, model=model)
            yield Fault(what(dotted), rule, got, remedy)


def _known_keys(model: type[BaseModel], keys: Sequence[str], raw: Any) -> tuple[str, ...]:
    """The keys that ``model`` has at the location ``keys``; empty where any name is allowed."""
    annotation: Any = model
    for key in keys:
        annotation = _annotation_below(annotation, key, raw)
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    inner = _model_of(annotation, raw)
    return tuple(inner.model_fields) if inner and not issubclass(inner, RootModel) else ()


def _phrases(details: ErrorDetails, *, keys: Sequence[str], raw: Any, model: type[BaseModel]) -> tuple[str, str, str]:
    """Rule, got and remedy of the fault for an error."""
    kind, got, context = details["type"], show(details["input"]), details.get("ctx", {})
    if kind == "missing":
        return "be given", "nothing", f"add `{keys[-1]}:`"
    if kind == "extra_forbidden":
        known = _known_keys(model, keys[:-1], raw)
        return "be a known key", "an unknown one", nearest_name(keys[-1], known)
    if kind in ("literal_error", "union_tag_invalid"):
        choices = re.findall(r"'([^']*)'", str(context.get("expected") or context["expected_tags"]))
        got = show(context["tag"]) if "tag" in context else got
        meant = str(context.get("tag", details["input"]))
        return f"be one of {', '.join(choices)}", got, nearest(meant, choices, otherwise="choose one of them")
    if kind == "union_tag_not_found":
        rule = "be given: uniform, log_uniform, int or categorical"
        return rule, "nothing", "add `type:` and the keys of that type"
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"be {word} {context[name]:.10g}", got, "change the number"
    if kind == "value_error":
        rule, _, specific = str(context["error"]).partition("; got ")  # a validator may describe the value itself
        return rule, specific or got, "correct it"
    if kind == "unknown_name":  # of a validator that knows what may be meant
        return context["rule"], got, context["remedy"]
    is_tag = details["loc"][-1:] == ("file",) and keys[-1:] != ["file"]  # of a union's member, and not a key
    if kind == "string_type" and isinstance(details["input"], list | dict) and not is_tag:
        return "be a text", got, "write one text in its place"
    if kind in _FIXED:
        of_files = _FILE_OR_FILES if keys[-1:] in (["train"], ["unlabeled"]) else _FILE_OR_SETS
        rule, remedy = of_files if is_tag else _FIXED[kind]
        return rule, got, remedy
    return f"be valid: {details['msg'][:1].lower()}{details['msg'][1:]}", got, "correct it"


def _keys_in_file(details: ErrorDetails, raw: Any) -> list[str]:
    """The error's location without the elements that pydantic adds (the tag of a union member, "[key]")."""
    keys = []
    part: Any
    for part in details["loc"]:
        if (isinstance(raw, Mapping) and part in raw) or (isinstance(raw, list) and isinstance(part, int)):
            raw = raw[part]
        elif details["type"] != "missing" or part != details["loc"][-1]:
            continue
        keys.append(str(part))
    return [*keys, "type"] if details["type"].startswith("union_tag") else keys


def _annotation_below(annotation: Any, key: str, raw: Any) -> Any:
    """The annotation of the value under ``key``."""
    model = _model_of(annotation, raw)
    if model is None:
        arguments = get_args(_mapping_or_list(annotation))
        return arguments[1] if len(arguments) == 2 and arguments[1] is not ... else (arguments or (Any,))[0]
    if issubclass(model, RootModel):
        return get_args(model.model_fields["root"].annotation)[1]
    field = model.model_fields.get(key)
    return field.annotation if field else Any


def _model_of(annotation: Any, raw: Any) -> type[BaseModel] | None:
    """The model in an annotation; with several, the one whose ``type`` the file names."""
    models = [member for member in members(annotation) if isinstance(member, type) and issubclass(member, BaseModel)]
    if len(models) < 2:
        return models[0] if models else None
    tag = raw.get("type") if isinstance(raw, Mapping) else None
    return next((model for model in models if tag in get_args(model.model_fields["type"].annotation)), None)


def _mapping_or_list(annotation: Any) -> Any:
    return next((member for member in members(annotation) if get_origin(member) in (dict, tuple)), annotation)
