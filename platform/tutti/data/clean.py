"""Cleaning of texts as Chinese competitions do it, and removal of duplicate training rows."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache

import emoji as emoji_library
from pandas import DataFrame

# A name in brackets as microblogs write emoticons: no spaces, and at least one letter, so that [12] stays.
_EMOTICON = re.compile(r"\[(?=[^\]]*[^\W\d_])(\w{1,10})\]")
_SPACES = re.compile(r" {2,}")


def clean_text(text: str, *, emoji: str | None, emoticons: bool, repeated_punctuation: bool) -> str:
    """Cleans one text. Idempotent; a text that is not empty never becomes empty.

    Args:
        emoji: ``zh`` or ``en`` to put words of that language in place of emoji; none to leave them.
        emoticons: ``[生病]`` becomes ``生病``. Latin names get spaces around them, so that they stay words.
        repeated_punctuation: a run of the same punctuation mark (Unicode category P) becomes one.
    """
    while True:
        cleaned = text
        if emoji is not None and not cleaned.isascii():
            cleaned = _emoji_to_words(cleaned, emoji)
        if emoticons and "[" in cleaned:
            cleaned = _joined(cleaned, _EMOTICON.sub(lambda found: _word(found[1]), cleaned))
        if repeated_punctuation:
            cleaned = _punctuation_runs().sub(r"\1", cleaned)
        if cleaned == text:  # one step can make work for another: [😂] becomes an emoticon
            return cleaned
        text = cleaned


def drop_duplicates(rows: DataFrame) -> DataFrame:
    """Training rows without those whose texts and label stood before. Order is kept."""
    columns = [name for name in ("text", "text_b", "label") if name in rows]
    return rows.drop_duplicates(subset=columns, keep="first").reset_index(drop=True)


def row_texts(rows: DataFrame) -> list[tuple[str, ...]]:
    """The text of each row, or its two texts."""
    return list(rows[[name for name in ("text", "text_b") if name in rows]].itertuples(index=False, name=None))


def _emoji_to_words(text: str, language: str) -> str:
    def words(found: str, _data: dict[str, str]) -> str:
        name = emoji_library.demojize(found, delimiters=("", ""), language=language)
        return found if name == found else _word(name.replace("_", " "))

    replaced = _joined(text, emoji_library.replace_emoji(text, replace=words))
    return replaced if replaced.strip() else text  # a selector without its emoji goes, and may be all there is


def _word(word: str) -> str:
    """Chinese words need no spaces around them; Latin ones do."""
    return f" {word} " if word.isascii() else word


def _joined(before: str, after: str) -> str:
    """``after`` without the surplus spaces that ``_word`` left, if anything was replaced at all."""
    return after if after == before else _SPACES.sub(" ", after).strip(" ")


@lru_cache(maxsize=1)
def _punctuation_runs() -> re.Pattern[str]:
    marks = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("P")]
    return re.compile(f"([{re.escape(''.join(marks))}])\\1+")
