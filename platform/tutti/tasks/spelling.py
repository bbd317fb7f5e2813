"""Spellings of one label: different tools write a class as 1, 1.0 or True, and a person as Yes or yes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

_WHOLE = re.compile(r"\+?(-?)([0-9]+)(?:\.0+)?")  # a whole number, as different tools write one
_PLACEHOLDERS = ("", "?", "-", "na", "n/a", "nan", "none", "null")  # of labels to fill in
_DIGITS = {"true": "1", "false": "0"}


def plain(label: str) -> str:
    """The same for spellings of one whole number, such as 1 and 01.0, and for those of one truth value."""
    if whole := _WHOLE.fullmatch(label):
        return f"{whole[1]}{whole[2].lstrip('0') or '0'}"
    return label.casefold() if label.casefold() in _DIGITS else label


def look(label: str) -> str:
    """The same for labels that a person takes for one: in letters of any case or width, with invisible characters."""
    seen = "".join(sign for sign in unicodedata.normalize("NFKC", label) if unicodedata.category(sign) != "Cf")
    return " ".join(plain(seen).casefold().split())


def spelled_alike(label: str) -> str:
    """The same for spellings in whatever case, and for those of one whole number."""
    return plain(label).casefold()


def _digit(label: str) -> str:
    return _DIGITS.get(label.casefold(), spelled_alike(label))


def _decimal(label: str) -> str:
    return f"{plain(label)}.0" if _WHOLE.fullmatch(label) else label


_STYLES: tuple[Callable[[str], str], ...] = (str, plain, _decimal, str.upper, str.lower, str.capitalize, _digit)


def is_placeholder(label: str) -> bool:
    """Whether a label may stand for one that is not there, as in a sample submission, which says nothing by it."""
    return label.strip().casefold() in _PLACEHOLDERS


def spelled_like(classes: Sequence[str], sample: Sequence[str]) -> dict[str, str] | None:
    """Each class as a sample spells it; a class that the sample lacks as the others are spelled there.

    Args:
        sample: labels, some of which may be of no class. Of two spellings of a class the first counts.

    Returns:
        By class, its spelling. None if no label of the sample is a spelling of a class.
    """
    for same in (spelled_alike, _digit, str):
        by_key = {same(name): name for name in classes}
        if len(by_key) < len(classes):  # classes that differ in spelling alone
            continue
        found = {name: label for label in reversed(sample) if (name := by_key.get(same(label)))}
        found |= {name: name for name in found if name in sample}
        if not found:
            continue
        style = next((style for style in _STYLES if all(style(name) == found[name] for name in found)), str)
        spelled = {name: found.get(name, style(name)) for name in classes}
        return spelled if len({*spelled.values()}) == len(classes) else dict(zip(classes, classes, strict=True))
    return None
