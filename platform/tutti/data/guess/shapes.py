"""The shapes of known solutions, to start from: what they trained, on which folds, with which tricks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tutti.config.yaml_file import read_mapping

ShapeName = Literal["feedback3", "aes2", "jigsaw", "lmsys", "ner", "tianchi"]


@dataclass(frozen=True)
class Shape:
    """A known solution.

    Attributes:
        of: what it solved, for a comment.
        metric: the competition's.
        backbone: by language, or ``""`` for any.
        longest: most tokens; the rows' own length where they are shorter.
        split, training, search_space, task: keys of the study file.
        words: what it did besides, one sentence each.
    """

    of: str
    metric: str
    backbone: str
    longest: int
    split: Mapping[str, Any]
    training: Mapping[str, Any]
    search_space: Mapping[str, Any]
    task: Mapping[str, Any] = field(default_factory=dict)
    words: Sequence[str] = ()


@cache
def shapes() -> Mapping[str, Shape]:
    """The shapes in shapes.yaml, by their names."""
    read = read_mapping(Path(__file__).with_name("shapes.yaml"), kind="list of shapes")
    return {name: Shape(**keys) for name, keys in read.items()}
