"""Text cleaning as usual in Chinese competitions, and removal of duplicate training rows."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.errors import ConfigError, Fault, first_line
from tutti.tasks.layouts.candidates import as_json, from_json

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.config.cleaning import Cleaning

# A bracketed emoticon name, as in microblogs: no spaces, and at least one letter, so that [12] is not matched. Nor are
# tokens that a template may have.
_EMOTICON = re.compile(r"\[(?!(?:SEP|CLS|MASK)\])(?=\w{0,9}[^\W\d_])(\w{1,10})\]")
_MOST_CONNECTED, _FEW = 3, 5
_SPACES = re.compile(r" {2,}")
CLEANED_BY = ("emoji", "emoticons", "brackets", "repeated_punctuation")  # steps that change texts
_DOUBLED = "…—/／"  # marks whose runs are no repetition


def clean_text(
    text: str,
    *,
    emoji: str | None = None,
    emoticons: bool = False,
    brackets: bool = False,
    repeated_punctuation: bool | Sequence[str] = False,
) -> str:
    """Cleans one text. Idempotent; a non-empty text never becomes empty.

    Args:
        emoji: ``zh`` or ``en`` to replace emoji by words of that language, or a JSON file of emoji to words; None to
            leave them.
        emoticons: whether ``[生病]`` becomes ``生病``. Latin names get surrounding spaces, so that they remain words.
        brackets: whether ``[`` and ``]`` are taken out, whatever they enclose.
        repeated_punctuation: whether a run of the same punctuation mark (Unicode category P) becomes a single one, but
            not of ``…``, ``—`` and ``/``, which are doubled by rule: ``……``, ``——``, ``//@``; or these marks alone.
    """
    while True:
        cleaned = text
        if emoji is not None and not cleaned.isascii():
            cleaned = _emoji_to_words(cleaned, emoji)
        if emoticons and "[" in cleaned:
            cleaned = _trim_spaces(cleaned, _EMOTICON.sub(lambda match: _spaced(match[1]), cleaned))
        if brackets and (without := cleaned.replace("[", "").replace("]", "")).strip():
            cleaned = without
        if repeated_punctuation:
            marks = None if repeated_punctuation is True else tuple(repeated_punctuation)
            cleaned = _punctuation_runs(marks).sub(r"\1", cleaned)
        if cleaned == text:  # repeat, since one step can enable another: [😂] becomes an emoticon
            return cleaned
        text = cleaned


def drop_duplicates(rows: DataFrame) -> DataFrame:
    """Drops training rows whose texts and label occur in an earlier row. Preserves the order."""
    return rows.drop_duplicates(subset=[*text_columns(rows), "label"]).reset_index(drop=True)


def text_columns(rows: DataFrame) -> list[str]:
    """``text``, in pairs ``text_b``, and with candidates ``choices``, lists of JSON."""
    return [name for name in ("text", "text_b", "choices") if name in rows]


def row_texts(rows: DataFrame) -> list[tuple[str, ...]]:
    """Each row's text, or its two texts, as a tuple."""
    return list(rows[text_columns(rows)].itertuples(index=False, name=None))


def have_texts_of(rows: DataFrame, others: DataFrame) -> np.ndarray:
    """``(rows,)`` bool: whether the texts of each row are those of one of ``others``."""
    known = set(row_texts(others))
    return np.array([texts in known for texts in row_texts(rows)], dtype=bool)


def text_groups_of(tasks: Mapping[str, DataFrame], *, apart: Collection[str] = ()) -> dict[str, np.ndarray]:
    """By task ``(rows,)`` int64: the same number for rows that share their texts or a group, in whatever task.

    Rows are connected through others too: where a text is in two groups, all rows of both have one number. Numbers are
    from 0 in order of appearance.

    Args:
        tasks: rows with text, text_b (pairs) and, where the study names groups, group: str, empty for a row of none.
        apart: tasks whose rows are connected by either of their two texts, unless almost all would be, see
            ``can_be_apart``; those of others only by both.
    """
    import pandas as pd  # which bundles need not have

    counts = [len(rows) for rows in tasks.values()]
    tasks = {
        name: _linked(rows, name) if name in apart and can_be_apart(rows) else rows for name, rows in tasks.items()
    }
    columns = [
        pd.DataFrame({"text": rows["text"], "text_b": rows.get("text_b", ""), "group": rows.get("group", "")})
        for rows in tasks.values()
    ]
    together = pd.concat(columns)
    numbers = together.groupby(["text", "text_b"], sort=False).ngroup().to_numpy()
    grouped = (together["group"] != "").to_numpy()
    if grouped.any():
        from scipy.sparse import coo_array  # slow to import
        from scipy.sparse.csgraph import connected_components

        groups, texts = pd.factorize(together["group"][grouped])[0], int(numbers.max()) + 1
        size = texts + int(groups.max()) + 1
        edges = numbers[grouped], texts + groups
        graph = coo_array((np.ones(len(groups), dtype=bool), edges), shape=(size, size))
        numbers = pd.factorize(connected_components(graph, directed=False)[1][numbers])[0].astype(np.int64)
    parts = np.split(numbers, np.cumsum([len(rows) for rows in tasks.values()])[:-1])
    return {name: own[:count] for name, own, count in zip(tasks, parts, counts, strict=True)}


def can_be_apart(rows: DataFrame) -> bool:
    """Whether pairs that share a text can be kept together: not where that connects more than a third of all rows."""
    numbers = text_groups_of({"": _linked(rows, "")})[""][: len(rows)]
    return bool(np.bincount(numbers).max(initial=0) <= max(len(rows) / _MOST_CONNECTED, _FEW))


def _linked(rows: DataFrame, task: str) -> DataFrame:
    """The rows with their first texts alone, and behind them both texts of each row in a group of their own."""
    import pandas as pd

    links = [f"\0{task} {number}" for number in range(len(rows))]  # a group that no file has
    first = rows.assign(text_b="", group=rows.get("group", ""))
    return pd.concat([first, first.assign(group=links), first.assign(text=rows["text_b"], group=links)])


def _emoji_to_words(text: str, language: str) -> str:
    if language not in ("zh", "en"):
        known, pattern = _emoji_table(language)
        replaced = pattern.sub(lambda match: known[match[0]], text)
        return replaced if replaced.strip() else text
    import emoji as emoji_library  # of which bundles that need it bring a copy

    def words(emoji: str, _data: dict[str, str]) -> str:
        name = emoji_library.demojize(emoji, delimiters=("", ""), language=language)
        word = name.replace("_", " ")
        return emoji if name == emoji else f" {word} " if language == "en" else _spaced(word)  # also piñata

    replaced = _trim_spaces(text, emoji_library.replace_emoji(text, replace=words))
    return replaced if replaced.strip() else text  # a lone variation selector is removed, and may be the whole text


@lru_cache(maxsize=8)
def _emoji_table(file: str) -> tuple[dict[str, str], re.Pattern[str]]:
    """The words of a user's own table, and what finds its emoji, the longest first.

    Raises:
        ConfigError: where the file is no JSON object of texts.
    """
    try:
        known = json.loads(Path(file).read_text(encoding="utf-8-sig"))
        if not isinstance(known, dict) or not all(known) or not all(isinstance(word, str) for word in known.values()):
            raise ValueError("something else")
        if again := next((word for word in known.values() if any(emoji in word for emoji in known)), None):
            raise ValueError(f"{again!r}, in which an emoji stands again")
    except (OSError, ValueError) as error:
        rule, remedy = "be a JSON object of emoji to their words", 'write it like {"😂": "笑哭"}'
        raise ConfigError(Fault(f"cleaning.emoji {file}", rule, first_line(error), remedy)) from error
    longest_first = sorted(known, key=len, reverse=True)
    return known, re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _spaced(word: str) -> str:
    """Surrounds Latin words with spaces; Chinese words need none."""
    return f" {word} " if word.isascii() else word


def _trim_spaces(before: str, after: str) -> str:
    """``after`` without the surplus spaces that ``_spaced`` added; unchanged if nothing was replaced."""
    return after if after == before else _SPACES.sub(" ", after).strip(" ")


@lru_cache(maxsize=8)
def _punctuation_runs(marks: tuple[str, ...] | None = None) -> re.Pattern[str]:
    if marks is None:
        every = (chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("P"))
        marks = tuple(mark for mark in every if mark not in _DOUBLED)
    longest_first = sorted(marks, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})\\1+")


def clean_rows(rows: DataFrame, steps: Cleaning) -> DataFrame:
    """The rows with cleaned texts. Drops no row."""
    wanted, names = steps.model_dump(include={*CLEANED_BY}), text_columns(rows)
    if not any(wanted.values()):
        return rows
    return rows.assign(**cleaned({name: rows[name].tolist() for name in names}, wanted))


def cleaned(texts: Mapping[str, Sequence[str]], steps: Mapping[str, Any]) -> dict[str, list[str]]:
    """The ``text_columns`` of rows with cleaned texts.

    Args:
        steps: of ``CLEANED_BY``, as ``clean_text`` takes them.
    """
    if not any(steps.values()):
        return {name: list(own) for name, own in texts.items()}
    clean = partial(clean_text, **steps)
    return {
        name: as_json([list(map(clean, row)) for row in from_json(own)]) if name == "choices" else list(map(clean, own))
        for name, own in texts.items()
    }
