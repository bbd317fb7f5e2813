"""Reads a YAML 1.2 file into plain values; errors name line and column."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from tutti.errors import ConfigError, Fault, first_line
from tutti.files import nearest_file


def read_mapping(path: Path, *, kind: str) -> dict[str, Any]:
    """The file's top-level mapping, with string keys. ``kind`` names the file in messages, such as "study file".

    Raises:
        ConfigError: where the file is missing, is not UTF-8, is not YAML, repeats a key, or is no mapping.
    """
    value = parse_yaml(_read_text(path, kind=kind), what=str(path))
    if not isinstance(value, dict):
        got = "an empty file" if value is None else show(value)
        remedy = "write one key and its value on each line, as in `key: value`"
        raise ConfigError(Fault(str(path), f"hold the keys of a {kind}", got, remedy))
    return value


def parse_yaml(text: str, *, what: str) -> Any:
    """The value of one YAML document, with keys converted to strings.

    Raises:
        ConfigError: where the text is not YAML; the message has line and column.
    """
    try:
        return _with_string_keys(YAML(typ="safe", pure=True).load(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{what}, line {mark.line + 1}, column {mark.column + 1}," if mark else what
        problem = (error.problem or "a syntax error").split(" (original value")[0]
        if "duplicate key" in problem:
            rule, problem, remedy = "give each key once", f"a {problem.removeprefix('found ')}", "remove one of the two"
        elif "'\\t'" in problem:
            rule, problem, remedy = "be YAML", "a tab, which YAML does not take there", "put spaces in its place"
        else:
            rule, problem = "be YAML", f"what the reader calls {problem!r}"
            if error.context and error.context_mark:
                problem += f" {error.context}, which begins in line {error.context_mark.line + 1}"
            remedy = "correct the line: check its indentation (spaces only), colons, brackets and quotes"
            if wide := _full_width(text.splitlines()[: mark.line + 1] if mark else []):
                remedy = f"write the ASCII character for {wide}, or {remedy}"
        raise ConfigError(Fault(where, rule, problem, remedy)) from error
    except (YAMLError, ValueError, RecursionError) as error:
        got = getattr(error, "reason", None) or first_line(error)
        raise ConfigError(Fault(what, "be YAML", got, "remove what is not plain text")) from error


def _full_width(lines: Sequence[str]) -> str:
    """The last full-width punctuation in the lines, which Chinese keyboards write; empty without any."""
    for number in range(len(lines), 0, -1):
        if found := re.search("[：，｛｝［］]", lines[number - 1].partition("#")[0]):
            return f"the full-width {found[0]!r} in line {number}"
    return ""


def odd_values(value: Any, *, key: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Key, rule, got and remedy of every value that YAML allows but a study does not: dates, infinite numbers."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from odd_values(inner, key=f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from odd_values(inner, key=f"{key}.{index}")
    elif isinstance(value, float) and not math.isfinite(value):
        yield key, "be a finite number", show(value), "give a number"
    elif not isinstance(value, str | int | float | None):
        yield key, "be a text, a number, true, false or null", str(value), "put it in quotes"


def show(value: Any) -> str:
    """A value as written in the file, shortened."""
    if isinstance(value, dict):
        return f"a mapping with the keys {', '.join(map(str, value))}"[:100] if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _read_text(path: Path, *, kind: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"a byte that is not, at offset {error.start}"
        raise ConfigError(Fault(str(path), "be UTF-8 text", got, "save it as UTF-8")) from error
    except OSError as error:
        got = "a folder" if path.is_dir() else (error.strerror or str(error)).lower()
        remedy = "check its permissions"
        if not isinstance(error, PermissionError):
            remedy = nearest_file(path, otherwise="correct the path")
        raise ConfigError(Fault(str(path), f"be a readable {kind}", got, remedy)) from error


def _with_string_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else show(key): _with_string_keys(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_string_keys(inner) for inner in value]
    return value
