"""Rows of words with tags, and of texts with marked spans, as files have them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tutti.tasks.layouts.tags import (
    are_tags,
    by_type,
    in_scheme,
    misplaced,
    plain_tags,
    scheme_of,
    sets_of,
    spans_of_tags,
    tags_of_spans,
)
from tutti.tasks.units import joined, spans_of

_SHOWN = 60  # characters of a value in a message
_STARTS, _ENDS = ("start", "start_offset", "begin"), ("end", "end_offset", "stop")
_TYPES = ("label", "labels", "type", "entity", "entity_group", "tag")
ANSWER = "answer"
"""The type of spans that are told by their text."""

Form = Literal["tags", "lists", "objects", "nested", "answers", "answer"]
"""How labels are written: a tag for each unit, or spans as ``[start, end, type]``, as objects with these keys, or as
``{type: {text: [[start, end], ...]}}`` with the last character in place of the end, as CLUENER has them, or
``{text: [...], answer_start: [...]}``, as SQuAD has them, or as one piece of the text."""


class Unfit(ValueError):
    """A row that cannot be read: the rule, what it is instead, and the remedy."""


@dataclass(frozen=True)
class Read:
    """A row as it was read.

    Attributes:
        text: its units in the way of ``tutti.tasks.units``.
        tags: of O, B and I, or where entities may overlap lists of these; None where the row is to be predicted, and
            for a tag that is not known.
        odd: how often what notices tell occurred.
        answers: of labels that are pieces of the text, all of them, each of which is right.
    """

    text: str
    tags: list[Any] | None = None
    odd: Counter[str] = field(default_factory=Counter)
    answers: tuple[str, ...] | None = None


def read_row(
    text_cell: Any,
    label_cell: Any,
    *,
    unit: str,
    labelled: bool,
    names: Sequence[str] | None = None,
    marks: bool = True,
    overlapping: bool = False,
) -> Read:
    """The row of a cell with a text or a list of words, and one with its labels.

    Args:
        names: of tags that are written as numbers.
        marks: whether tags mark spans; otherwise they are read as they are.
        overlapping: whether entities of different types may overlap.

    Raises:
        Unfit: where it cannot be read.
    """
    text = _text(text_cell, unit)
    if not labelled:
        return Read(text)
    units, labels = spans_of(text, unit), _decoded(label_cell)
    if isinstance(labels, str) and (unit != "piece" or not marks or are_tags(labels.split())):
        labels = labels.split()
    if overlapping and (sets := tag_sets(labels, names)) is not None:
        _check_count(sets, units, unit)
        return Read(text, *_plain_sets(sets))
    if form_of(labels) == "tags":
        _check_count(labels, units, unit)
        tags = [_named(tag, names) for tag in labels]
        if not marks:
            return Read(text, tags)
        plain = plain_tags(tags)
        return Read(text, plain, Counter({"misplaced": misplaced(tags, plain)}))
    if not marks:
        raise Unfit(
            "have a tag for each word", shown(labels), "leave `spans: none` out, or name the column of the tags"
        )
    spans = _spans(labels, text)
    try:
        if overlapping:
            return Read(text, *_marked_sets(units, spans, len(text)))
        marked, odd = tags_of_spans(units, spans, len(text))
    except ValueError as error:
        rule = "have spans within the text, the end after the start"
        raise Unfit(rule, str(error), "correct the offsets, which count characters from 0") from error
    answers = None
    if form_of(labels) in ("answer", "answers"):
        answers = (labels,) if isinstance(labels, str) else tuple(labels["text"])
    return Read(text, [*marked], Counter(odd), answers)


def _check_count(labels: Sequence[Any], units: np.ndarray, unit: str) -> None:
    if len(labels) != len(units):
        what = {"word": "word", "character": "character", "piece": "word or sign"}[unit]
        raise Unfit(f"have a tag for each {what}", f"{len(labels)} tags for {len(units)}", "correct the row")


def tag_sets(labels: Any, names: Sequence[str] | None = None) -> list[list[str] | None] | None:
    """The tags of each unit, of a list of tags, with ``|`` between several, or of lists of such; None for spans."""
    if not labels or not isinstance(labels, list | tuple):
        return None
    sets: list[list[str] | None] = []
    for one in labels:
        if isinstance(one, list | tuple) and all(isinstance(tag, str) for tag in one):
            sets.append(list(one))
        elif one is None or isinstance(one, str | int):
            named = _named(one, names)
            sets.append(None if named is None else named.split("|"))
        else:
            return None
    return sets


def _plain_sets(sets: list[list[str] | None]) -> tuple[list[Any], Counter[str]]:
    """The tags of each unit as O, B and I of each type, and what notices tell."""
    sequences, odd = by_type(sets), 0
    for name, tags in sequences.items():
        sequences[name] = plain_tags(tags)
        odd += misplaced(tags, sequences[name])
    return sets_of(sequences, sets), Counter({"misplaced": odd})


def _marked_sets(
    units: np.ndarray, spans: Sequence[tuple[int, int, str]], length: int
) -> tuple[list[Any], Counter[str]]:
    """As ``tags_of_spans``, of each type by itself."""
    sequences: dict[str, Sequence[str | None]] = {}
    odd: Counter[str] = Counter()
    for name in sorted({name for *_, name in spans}):
        sequences[name], more = tags_of_spans(units, [span for span in spans if span[2] == name], length)
        odd.update(more)
    return sets_of(sequences, [""] * len(units)), odd


def _text(cell: Any, unit: str) -> str:
    if isinstance(cell, str) and unit != "piece" and is_list(cell):
        cell = json.loads(cell)
    if isinstance(cell, str):
        return cell
    if not isinstance(cell, list | tuple) or not all(isinstance(one, str) for one in cell):
        raise Unfit("have a text, or a list of words", shown(cell), "name the column that has them")
    if unit == "character" and (long := next((one for one in cell if len(one) != 1), None)) is not None:
        raise Unfit("list single characters, as `unit: character` says", shown(long), "set `unit: word`")
    text = joined(list(cell), unit)
    if unit == "piece" and len(spans_of(text, unit)) != len(cell):
        raise Unfit("have running text, as the first row of the training file has", "a list", "set `unit: word`")
    return text


def is_list(cell: str) -> bool:
    """Whether a text is a list of JSON, as files of plain cells have them."""
    if not cell.startswith("["):
        return False
    try:
        return isinstance(json.loads(cell), list)
    except ValueError:
        return False


def _decoded(cell: Any) -> Any:
    """A cell that holds a list or object, which files of plain cells have as JSON."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("[", "{")):
        return [] if cell is None or cell == "" else cell
    try:
        return json.loads(cell)
    except ValueError as error:
        raise Unfit("be JSON", str(error), "correct the row") from error


def _named(tag: Any, names: Sequence[str] | None) -> str | None:
    if isinstance(tag, int) and names is not None and 0 <= tag < len(names):
        return names[tag]
    if tag is not None and not isinstance(tag, str):
        raise Unfit("have the names of tags", shown(tag), "write the names in place of numbers")
    return tag


def form_of(labels: Any) -> Form:
    """How the labels of a row are written."""
    if isinstance(labels, Mapping):
        return "answers" if "answer_start" in labels else "nested"
    if isinstance(labels, str):
        return "answer"
    if not isinstance(labels, list | tuple):
        return "tags"
    first: Any = next(iter(labels), [])
    if isinstance(first, Mapping):
        return "objects"
    return "lists" if isinstance(first, list | tuple) else "tags"


def _spans(labels: Any, text: str) -> list[tuple[int, int, str]]:
    if isinstance(labels, str):
        start = text.find(labels)
        if start < 0:
            raise Unfit("have a label that is a piece of the text", shown(labels), "correct the row")
        return [_span(start, start + len(labels), ANSWER)]
    if form_of(labels) == "answers":
        answers = zip(labels["answer_start"], labels["text"], strict=True)
        return [_span(start, start + len(answer), ANSWER) for start, answer in answers][:1]  # any one is right
    if isinstance(labels, Mapping):
        nested = ((name, places) for name, of_type in labels.items() for places in _places(of_type))
        return [_span(place[0], place[1] + 1, name) for name, place in nested]
    spans = []
    for one in labels:
        if isinstance(one, Mapping):
            start, end, name = (_first(one, keys) for keys in (_STARTS, _ENDS, _TYPES))
            name = name[0] if isinstance(name, list) and len(name) == 1 else name
            spans.append(_span(start, end, name))
        elif isinstance(one, list | tuple) and len(one) == 3:
            spans.append(_span(*one))
        else:
            raise Unfit("have spans as [start, end, type]", shown(one), "correct the row")
    return spans


def _places(of_type: Any) -> list[Any]:
    places = list(of_type.values()) if isinstance(of_type, Mapping) else [of_type]
    found = [place for each in places for place in (each if isinstance(each, list) else [None])]
    if not all(isinstance(place, list | tuple) and len(place) == 2 for place in found):
        raise Unfit("have spans as {type: {text: [[first, last], ...]}}", shown(of_type), "correct the row")
    return found


def _first(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((row[key] for key in keys if key in row), None)


def _span(start: Any, end: Any, name: Any) -> tuple[int, int, str]:
    if type(start) is not int or type(end) is not int or not isinstance(name, str) or not name:
        got = shown([start, end, name])
        raise Unfit("have spans of a start and an end, whole numbers, and one type", got, "correct the row")
    return start, end, name


@dataclass(frozen=True)
class Style:
    """How the labels of a training file are written, so that predictions are written alike.

    Attributes:
        form: of a row's labels.
        scheme: of tags, as of ``scheme_of``.
        typed: whether tags have types.
        keys: of objects: those of start, end and type.
        listed: of objects: whether the type is a list of one.
        marks: whether tags mark spans; otherwise they are written as they are.
    """

    form: Form = "tags"
    scheme: str = "BI"
    typed: bool = True
    keys: tuple[str, str, str] = ("start", "end", "label")
    listed: bool = False
    marks: bool = True

    @classmethod
    def of(cls, rows: Sequence[Any], names: Sequence[str] | None = None, *, overlapping: bool = False) -> Style:
        """The style of label cells, of which some may be empty."""
        decoded = [_decoded(row) for row in rows]
        filled = [row for row in decoded if row]
        if overlapping:
            several = (row.split() if isinstance(row, str) and are_tags(row.split()) else row for row in filled)
            sets = [tag_sets(row, names) for row in several]
            if None not in sets:
                filled = [[tag for own in row or () for tag in own or ()] for row in sets]
        form = form_of(filled[0]) if filled else "tags"
        if form == "answer" and all(are_tags(row.split()) for row in filled):
            form = "tags"
        if form == "tags":
            written = (row.split() if isinstance(row, str) else row for row in filled)
            tags = {_named(tag, names) or "O" for row in written for tag in row} - {"O"}
            scheme = scheme_of(tags)
            return cls(scheme=scheme, typed=not scheme or any(len(tag) > 1 for tag in tags))
        if form != "objects":
            return cls(form=form)
        one = filled[0][0]
        keys = [next((key for key in of_part if key in one), of_part[0]) for of_part in (_STARTS, _ENDS, _TYPES)]
        return cls(form=form, keys=(keys[0], keys[1], keys[2]), listed=isinstance(one.get(keys[2]), list))

    def written(self, text: str, unit: str, tags: Sequence[Any]) -> Any:
        """A row's labels, from tags of O, B and I, or lists of such, or from tags that mark no spans."""
        if not self.marks:
            return list(tags)
        if self.form == "tags" and any(not isinstance(tag, str) for tag in tags):
            sequences = by_type(tags)
            written = {
                name: in_scheme([tag or "O" for tag in own], self.scheme, types=True) for name, own in sequences.items()
            }
            return ["|".join(own or ()) or "O" for own in sets_of(written, tags)]
        if self.form == "tags":
            return in_scheme(tags, self.scheme, types=self.typed)
        units: np.ndarray = spans_of(text, unit)
        spans = spans_of_tags(units, tags)
        if self.form == "lists":
            return [list(span) for span in spans]
        if self.form == "objects":
            start, end, name = self.keys
            return [{start: a, end: b, name: [kind] if self.listed else kind} for a, b, kind in spans]
        if self.form == "answer":
            return text[spans[0][0] : spans[0][1]] if spans else ""
        if self.form == "answers":
            return {"text": [text[a:b] for a, b, _ in spans], "answer_start": [a for a, *_ in spans]}
        nested: dict[str, dict[str, list[list[int]]]] = {}
        for first, last, kind in spans:
            nested.setdefault(kind, {}).setdefault(text[first:last], []).append([first, last - 1])
        return nested


def shown(value: Any) -> str:
    """A value as a message shows it, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
