"""A row's own candidates, as a JSON list, and which of them a label means."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tutti.errors import Fault
from tutti.tasks.kinds.choice import letter, place_of
from tutti.tasks.layouts.cells import cell_text, parsed
from tutti.tasks.spelling import plain

if TYPE_CHECKING:
    from tutti.config.columns import AnswerForm

PREFIX = "choice of "
"""Prefix of our names for the columns of a table that hold candidates."""

_FORMS: Mapping[AnswerForm, str] = {
    "letter": "by letter",
    "index": "by place, counted from 0",
    "number": "by place, counted from 1",
    "text": "by text",
}
_SHOWN = 4


def candidates(columns: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Each row's candidates: of one column its lists, of several a candidate each, without empty ones at the end.

    Candidates have no white space around them. A list may be one of JSON or of Python in a text, or the list ``text``
    of a mapping.
    """
    if len(columns) == 1:
        return [[cell_text(each).strip() for each in _list_of(cell)] for cell in columns[0]]
    rows = [[cell_text(cell).strip() for cell in row] for row in zip(*columns, strict=True)]
    for row in rows:
        while row and not row[-1]:
            row.pop()
    return rows


def candidate_fault(own: Sequence[str], *, labelled: bool) -> tuple[str, str, str] | None:
    """The rule that a row's candidates break, what they are instead, and the remedy."""
    if not own:
        return "have candidates, a list of two or more", "none", "correct the row, or the name of their column"
    if "" in own:
        return "have no empty candidate", f"one at place {own.index('') + 1}", "write it, or close the gap"
    if labelled and len(own) < 2:
        return "have two candidates or more", f"{own[0]!r} alone", "add the others, or take the row out"
    if labelled and len({*own}) < len(own):
        same = next(each for each in own if own.count(each) > 1)
        return "have candidates that differ", f"{same!r} twice", "correct them, or take the row out"
    return None


def answer_form(labels: Sequence[str], choices: Sequence[Sequence[str]]) -> AnswerForm | None:
    """What the labels of rows say of their candidates: what most of them fit, the first of the possible forms.

    None where they are places, and could count from 0 or from 1, or where texts of candidates look like such.
    """
    rows = [(label.strip(), own) for label, own in zip(labels, choices, strict=True) if label.strip() and own]
    fitting = {form: sum(_place(label, own, form) is not None for label, own in rows) for form in _FORMS}
    most = max(fitting.values(), default=0)
    if fitting["text"] == most:
        others = [form for form in ("index", "number") if fitting[form] == most]
        told = all(_place(*row, form) == _place(*row, "text") for form in others[:1] for row in rows)  # type: ignore[arg-type]
        return "text" if told else None
    if fitting["letter"] == most:
        return "letter"
    return None if fitting["index"] == fitting["number"] else "index" if fitting["index"] == most else "number"


def answered(
    labels: Sequence[str], choices: Sequence[Sequence[str]], form: AnswerForm
) -> tuple[list[str], dict[int, tuple[str, str, str]]]:
    """The letter of each row's label; and by row the rule that a label breaks, what it is, and the remedy."""
    found, faults = [], {}
    for row, (label, own) in enumerate(zip(labels, choices, strict=True)):
        place = _place(label.strip(), own, form)
        if place is None and label.strip() and own:
            listed = ", ".join(own[:_SHOWN]) + (", ..." if len(own) > _SHOWN else "")
            rule = f"name one of its candidates as its label, {_FORMS[form]}"
            faults[row] = (rule, f"{label.strip()!r} for {listed}", "correct the label, or set `columns.answers`")
        found.append(letter(place) if place is not None else label)
    return found, faults


def answer(
    columns: dict[str, list[str]],
    own: Sequence[Sequence[str]],
    form: AnswerForm | None,
    faults: list[Fault],
    *,
    origin: str,
    places: Sequence[str],
) -> AnswerForm | None:
    """Makes letters of labels, and adds faults of candidates and labels, both in place; returns the labels' form.

    Args:
        columns: with ``label``, if rows have labels.
        own: each row's candidates.
        form: None for what most labels fit.
        places: what faults of each row are about.
    """
    found = [candidate_fault(each, labelled="label" in columns) for each in own]
    faults += [Fault(where, *fault) for where, fault in zip(places, found, strict=True) if fault]
    if "label" not in columns:
        return None
    rows = zip(columns["label"], own, strict=True)
    if form in ("index", "number") and all(_place(label.strip(), each, "letter") is not None for label, each in rows):
        form = "letter"  # as pseudo-labels have them
    form = form or answer_form(columns["label"], own)
    if form is None:
        faults.append(ambiguous(origin))
        return None
    columns["label"], wrong = answered(columns["label"], own, form)
    faults += [Fault(places[row], *fault) for row, fault in wrong.items() if not found[row]]
    return form


def spelled(letter_: str, own: Sequence[str], form: AnswerForm) -> str:
    """A letter as labels of a form are written."""
    place = place_of(letter_)
    return {"letter": letter_, "index": str(place), "number": str(place + 1), "text": own[place] if own else ""}[form]


def form_notices(source: str, form: AnswerForm | None) -> list[str]:
    """Says which form the labels of a file have, unless that is plain to see, or there are none."""
    return [] if form in (None, "letter") else [f"{source}: labels name candidates {_FORMS[form]}"]


def most_of(columns: Iterable[Iterable[str]]) -> int:
    """The number of candidates of the row that has most, of columns of JSON lists."""
    return max(len(own) for column in columns for own in from_json(column))


def ambiguous(source: str) -> Fault:
    """The fault of labels that could count from 0 or from 1, or be texts."""
    rule = "have labels that tell whether places count from 0 or from 1, or are texts of candidates"
    remedy = (
        "set `columns: {answers: index}` where the first candidate is 0, `{answers: number}` where it is 1, or "
        "`{answers: text}`"
    )
    return Fault(source, rule, "labels that fit several of these", remedy)


def as_json(rows: Sequence[Sequence[str]]) -> list[str]:
    """Each row's candidates as one text."""
    return [json.dumps(list(row), ensure_ascii=False) for row in rows]


def from_json(texts: Iterable[str]) -> list[list[str]]:
    """The inverse of ``as_json``."""
    return [json.loads(text) for text in texts]


def _place(label: str, own: Sequence[str], form: AnswerForm) -> int | None:
    if form == "text":
        return own.index(label) if label in own else None
    if form == "letter":
        place = place_of(label.strip("().").upper())
    else:
        text = plain(label)
        place = int(text) - (form == "number") if text.isdecimal() and text.isascii() else -1
    return place if 0 <= place < len(own) else None


def _list_of(cell: Any) -> list[Any]:
    if isinstance(cell, str) and cell.strip().startswith(("[", "{")):
        cell = parsed(cell.strip())
    if isinstance(cell, Mapping):
        cell = cell.get("text")
    return list(cell) if isinstance(cell, list | tuple) else []
