"""Schemes of tags: what files write before the type of an entity, to O, B and I and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tutti.tasks.kinds.entities import OUTSIDE, entities_of, repaired
from tutti.tasks.units import spans_of

_PREFIXED = re.compile(r"([BIMESLU])(?:[-_](.+))?", re.DOTALL)
_ROLES: Mapping[str, str] = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S"}
"""What each prefix says."""

NO_TYPE = "entity"
"""The type of entities in files that tell none."""


def plain_tags(tags: Sequence[str | None]) -> list[str | None]:
    """Tags of any scheme as O, B and I, each entity beginning with B; None, for one that is not known, stays.

    Tags without a prefix are types themselves: neighbours of one type are one entity. A tag that goes on where no
    entity of its type has begun begins one, and none goes on after E or S, as seqeval's default rule has it.

    >>> plain_tags(["B-LOC", "E-LOC", "O", "S-PER", "I-PER"])
    ['B-LOC', 'I-LOC', 'O', 'B-PER', 'B-PER']
    """
    plain: list[str | None] = []
    before, ended = "", True
    for tag in tags:
        if tag is None or tag in (OUTSIDE, ""):
            plain.append(None if tag is None else OUTSIDE)
            before, ended = "", True
            continue
        role, name = _role_and_type(tag)
        begins = role in "BS" or ended or name != before
        plain.append(f"{'B' if begins else 'I'}-{name}")
        before, ended = name, role in "ES"
    return plain


def _role_and_type(tag: str) -> tuple[str, str]:
    match = _PREFIXED.fullmatch(tag)
    return (_ROLES[match[1]], match[2] or NO_TYPE) if match else ("I", tag)


def are_tags(words: Sequence[str]) -> bool:
    """Whether words that stand side by side are tags: O, or a prefix with a type."""
    return all(word == OUTSIDE or ((match := _PREFIXED.fullmatch(word)) and match[2]) for word in words)


def misplaced(tags: Sequence[str | None], plain: Sequence[str | None]) -> int:
    """How many tags go on where no entity of their type has begun, which ``plain_tags`` has made begin one."""
    return sum(
        tag is not None
        and own is not None
        and own[0] == "B"
        and (match := _PREFIXED.fullmatch(tag)) is not None
        and _ROLES[match[1]] in "IE"
        for tag, own in zip(tags, plain, strict=True)
    )


def scheme_of(tags: Iterable[str]) -> str:
    """The letters of a scheme, such as ``BI`` or ``BMES``; empty where tags have no prefixes.

    The first letter begins an entity, the last ones end it and are it alone; ``BI`` alone tells no ends.
    """
    seen = {tag for tag in tags if tag not in ("", OUTSIDE)}
    matches = [_PREFIXED.fullmatch(tag) for tag in seen]
    if not all(matches):
        return ""
    letters = {match[1] for match in matches if match}
    if not letters & set("ESLU"):
        return "BI"
    inner = "M" if "M" in letters else "I"
    return f"B{inner}" + ("LU" if letters & set("LU") else "ES")


def in_scheme(tags: Sequence[str], scheme: str, *, types: bool = True) -> list[str]:
    """O, B and I as tags of a scheme; the inverse of ``plain_tags``, apart from what that repairs.

    Args:
        types: whether the tags have types.
    """
    written = []
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            written.append(OUTSIDE)
            continue
        role, name = tag.split("-", 1)
        goes_on = place + 1 < len(tags) and tags[place + 1] == f"I-{name}"
        if not scheme:
            written.append(name)
            continue
        letter = scheme[0] if role == "B" else scheme[1]
        if len(scheme) > 2 and not goes_on:
            letter = scheme[3] if role == "B" else scheme[2]
        written.append(f"{letter}-{name}" if types else letter)
    return written


def tags_of_spans(
    units: np.ndarray, spans: Sequence[tuple[int, int, str]], length: int
) -> tuple[list[str], dict[str, int]]:
    """The tags of units that spans of characters mark, and how many spans have what notices tell.

    A span marks every unit that it overlaps. One that overlaps another before it is left out.

    Args:
        units: ``(units, 2)``, where each begins and ends.
        spans: begin, end (the character after the last) and type, within the text.
        length: of the text.

    Raises:
        ValueError: where a span lies outside of the text, or marks nothing.
    """
    tags, notices = [OUTSIDE] * len(units), {"overlap": 0, "extended": 0, "spaces": 0}
    for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not 0 <= start < end <= length:
            raise ValueError(f"{start} to {end} of {length} characters")
        first = int(np.searchsorted(units[:, 1], start, side="right"))
        last = int(np.searchsorted(units[:, 0], end, side="left"))
        if first >= last:
            notices["spaces"] += 1
            continue
        if any(tag != OUTSIDE for tag in tags[first:last]):
            notices["overlap"] += 1
            continue
        notices["extended"] += bool(units[first, 0] < start or units[last - 1, 1] > end)
        tags[first:last] = [f"B-{name}", *[f"I-{name}"] * (last - first - 1)]
    return tags, notices


def piece_of(text: str, unit: str, cell: str) -> str:
    """The first piece of a text that its tags mark, empty for none.

    Args:
        cell: a JSON list of O, B and I for its units; further ones, of a text beside it, are passed over.
    """
    units = spans_of(text, unit)
    spans = spans_of_tags(units, [tag or OUTSIDE for tag in json.loads(cell)][: len(units)])
    return text[slice(*spans[0][:2])] if spans else ""


def by_type(tags: Sequence[Sequence[str | None] | None]) -> dict[str, list[str | None]]:
    """For each type the tags of all units, of units that have several; None for what is not known.

    >>> by_type([["B-PER", "B-LOC"], []])
    {'LOC': ['B-LOC', 'O'], 'PER': ['B-PER', 'O']}
    """
    found: dict[str, list[str | None]] = {}
    for unit, own in enumerate(tags):
        for tag in own or ():
            name = "" if tag in (None, OUTSIDE, "") else _role_and_type(str(tag).removeprefix("?-"))[1]
            if tag and name:
                of_type = found.setdefault(name, [None if each is None else OUTSIDE for each in tags])
                of_type[unit] = None if tag.startswith("?-") else tag
    return dict(sorted(found.items()))


def sets_of(sequences: Mapping[str, Sequence[str | None]], units: Sequence[Any]) -> list[list[str] | None]:
    """The inverse of ``by_type``; None for units that are None, and ``?-TYPE`` for a single tag that is not known."""
    sets: list[list[str] | None] = [None if unit is None else [] for unit in units]
    for name, tags in sequences.items():
        for own, tag in zip(sets, tags, strict=True):
            if own is not None and tag != OUTSIDE:
                own.append(f"?-{name}" if tag is None else tag)
    return sets


def spans_of_tags(units: np.ndarray, tags: Sequence[Any]) -> list[tuple[int, int, str]]:
    """Begin, end and type of each entity in characters; the inverse of ``tags_of_spans``.

    Args:
        tags: of O, B and I, or lists of such where entities of different types may overlap.
    """
    if any(not isinstance(tag, str) for tag in tags):
        sequences = by_type([[] if tag == OUTSIDE else tag for tag in tags]).values()
        spans = (spans_of_tags(units, [tag or OUTSIDE for tag in own]) for own in sequences)
        return sorted(span for of_type in spans for span in of_type)
    types = sorted({tag[2:] for tag in tags if tag != OUTSIDE})
    index = {name: 2 * number + 1 for number, name in enumerate(types)}
    numbers = [0 if tag == OUTSIDE else index[tag[2:]] + (tag[0] == "I") for tag in tags]
    found = entities_of(repaired(np.array([numbers], dtype=np.int64).reshape(1, -1)))
    return [
        (int(units[start, 0]), int(units[end - 1, 1]), types[kind])
        for start, end, kind in zip(found.start, found.end, found.type, strict=True)
    ]
