"""The columns of tables and data sets that a task names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from tutti.config.strict import Strict, by_type

Labels = Annotated[
    Annotated[str, Tag("one")] | Annotated[tuple[str, ...], Field(min_length=2), Tag("several")],
    by_type((list, tuple), "several", "one"),
]


# What the labels of a task with candidates are: a candidate's letter, its place from 0 or from 1, or its text.
AnswerForm = Literal["letter", "index", "number", "text"]


class Columns(Strict):
    """Column names of a table or hub data set. Without ``id``, the id is the zero-based row number."""

    id: str | None = None
    text: str = "text"
    text_b: str | None = None
    label: Labels = "label"  # or 0/1 columns, of which each row has one 1: the classes
    labels: Labels | None = None  # any of these: 0/1 columns, or one column with lists of labels
    separator: str | None = None  # between the labels of a list; without one the list is one of JSON
    values: tuple[str, ...] | None = None  # columns of numbers
    choices: Labels | None = None  # a row's candidates: a column each, or one column of lists
    answers: AnswerForm | None = None  # what labels say of candidates; by default what all rows of a file fit
    better: str | None = None  # of two texts, with ``worse``; ``text`` is then the one of rows to predict with one
    worse: str | None = None
    prompt: str | None = None  # what stands before both texts of a pair

    @property
    def columns_of_labels(self) -> tuple[str, ...]:
        """The columns with one label or number each; empty where one column has all of a row."""
        return self.values or next((each for each in (self.labels, self.label) if isinstance(each, tuple)), ())

    @property
    def columns_of_choices(self) -> tuple[str, ...]:
        """The columns of candidates: one of lists, or several with one each; empty in tasks of another kind."""
        return (self.choices,) if isinstance(self.choices, str) else self.choices or ()

    @property
    def label_column(self) -> str:
        """The one column of labels, where there is one."""
        return next((each for each in (self.labels, self.label) if isinstance(each, str)), "label")
