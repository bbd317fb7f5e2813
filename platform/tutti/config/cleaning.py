"""How a study file says what is cleaned of texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Tag

from tutti.config.strict import Strict, by_type

Marks = Annotated[
    Annotated[bool, Tag("all")] | Annotated[tuple[str, ...], Field(min_length=1), Tag("marks")],
    by_type((list, tuple), "marks", "all"),
]


class Cleaning(Strict):
    """Cleaning of texts. Every step is off by default; rows to predict are never dropped."""

    emoji: str | None = None  # replace emoji by words: of zh or en, or of one's own, a JSON file of emoji to words
    emoticons: bool = False  # replace [生病] by 生病
    brackets: bool = False  # take out [ and ]
    repeated_punctuation: Marks = False  # replace runs of the same punctuation mark by one; of these marks alone
    broken_rows: bool = False  # repair rows broken by line feeds inside a text; see the layout
    duplicates: bool = False  # drop training rows whose texts and label occurred before
