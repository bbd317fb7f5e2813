"""A study file as a commented text."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.metric_facts import FACTS, classes_fault

if TYPE_CHECKING:
    from tutti.data.guess.columns import Guess
    from tutti.data.guess.seen import Seen
    from tutti.data.guess.shapes import Shape

_WIDTH = 116
_PLAIN = re.compile(r"[A-Za-z_./][\w./@+-]*( [\w./@+-]+)*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # which YAML takes for something else
_SECTIONS = {
    "split": "rows that are held out rank the trials; folds: 5 in place of validation lets every row validate",
    "training": "the same in all trials; all keys: docs/training.md",
    "search_space": "what the trials vary: a name, a path, or keys as here",
    "search": "more: tutti tune --resume --trials +8",
    "resources": "of one trial",
    "ensemble": "who votes, and how",
}
_SHOWN_METRICS = 8


def study_text(
    document: Mapping[str, Any],
    guesses: Mapping[str, Guess],
    looked: Mapping[str, Seen],
    *,
    shape: Shape | None,
    like: str | None,
    given: Sequence[Path],
    out: Path,
) -> str:
    """The study file, with the reason for each guess beside it."""
    name, file = document["study"], shlex.quote(str(out))
    lines = [
        f"# Written by `tutti new {' '.join(shlex.quote(str(each)) for each in given)}`. What it saw: {out.stem}.md",
        "#",
        f"#   1. tutti tune {file}",
        f"#   2. tutti ensemble {name} --recipe auto            # writes the submission",
        "",
    ]
    if shape:
        lines += [f"# The shape is that of solutions of {shape.of} (--like {like}). They also had:"]
        lines += [f"#   {sentence}" for sentence in shape.words]
        lines += [""]
    lines += [
        f"study: {flow(name)}",
        "",
        f"backbone: {flow(document['backbone'])}  # a hub id, or a folder",
        "",
        "tasks:",
    ]
    for task, keys in document["tasks"].items():
        lines += [f"  {flow(task)}:", *_task(keys, guesses[task], looked[task])]
    for section, why in _SECTIONS.items():
        if value := document.get(section):
            lines += ["", *_section(section, value, why)]
    return "\n".join(lines) + "\n"


def _task(keys: Mapping[str, Any], guess: Guess, looked: Seen) -> Iterator[str]:
    rows = ", ".join(f"{part} {count:,}" for part, count in looked.rows.items())
    yield f"    # {looked.task.kind.describe(looked.task.names)}; {looked.language}; rows: {rows}"
    for key, value in keys.items():
        why = guess.why.get(key, "")
        if key == "metric":
            others = [name for name in guess.metrics if name != value and _fits(name, looked)][:_SHOWN_METRICS]
            why = f"or {', '.join(others)}" if others else why
        yield from _entry(key, value, why, indent=4)
    if "submission" not in keys and "submission" in guess.why:
        yield f"    # {guess.why['submission']}"


def _fits(metric: str, looked: Seen) -> bool:
    kind, outputs = looked.task.kind, len(looked.task.names)
    return not (kind.exclusive and classes_fault(FACTS[metric], outputs, what="")) or kind.exchangeable


def _section(name: str, value: Any, why: str) -> Iterator[str]:
    if not isinstance(value, Mapping) or name in ("search", "resources", "ensemble"):
        yield from _entry(name, value, why, indent=0)
        return
    yield f"{name}:  # {why}"
    for key, inner in value.items():
        yield from _entry(key, inner, "", indent=2)


def _entry(key: str, value: Any, why: str, *, indent: int) -> Iterator[str]:
    """A key with its value on one line, or on several where it is long, and its comment beside or above it."""
    space, line = " " * indent, f"{' ' * indent}{key}: {flow(value)}"
    beside = f"{line}  # {why}"
    if why and len(beside) <= _WIDTH:
        yield beside
        return
    if why:
        yield from (f"{space}# {each}" for each in textwrap.wrap(why, _WIDTH - indent - 2))
    broken = textwrap.wrap(line, _WIDTH, subsequent_indent=space + "  ", break_long_words=False, break_on_hyphens=False)
    quoted = any(each.count('"') % 2 for each in broken)  # a text would be broken
    yield from broken if isinstance(value, Mapping | list) and not quoted else [line]


def flow(value: Any) -> str:
    """A value on one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.casefold() not in _WORDS
        return value if plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)
