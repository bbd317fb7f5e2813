"""Mistakes in tasks whose words or characters have tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from bad_input_changes import Case, Change, both, task, training, write

_WORDS = [{"tokens": ["w1", "is", "here"], "tags": ["B-PER", "O", "O"]} for _ in range(20)]
_MARKED = [{"text": f"w1 is here {number}", "label": [[0, 2, "PER"]]} for number in range(20)]


def _names(rows: Sequence[Mapping[str, object]] = _WORDS, keys: str = "") -> Change:
    """The study's task is one of tags, with these training rows and keys."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    more = f"\n    {keys}" if keys else ""
    return both(task(f"names:\n    layout: tokens\n    train: rows.jsonl{more}"), write("rows.jsonl", lines))


def _lines(content: str) -> Change:
    return both(task("names:\n    layout: tokens\n    train: rows.conll"), write("rows.conll", content))


TOKENS: Mapping[str, Sequence[Case]] = {
    "Words with tags": (
        Case("a row has a tag too few", _names([*_WORDS, {"tokens": ["a", "b"], "tags": ["O"]}])),
        Case("a line has no tag", _lines("w1 B-PER\nw2\n\nw3 O\n")),
        Case("no word has a tag but O", _names([{"tokens": ["a"], "tags": ["O"]}] * 20)),
        Case("the file has words alone", _lines("w1\nw2\n\nw3\n")),
        Case("tags are numbers without names", _names([{"tokens": ["a"], "tags": [3]}] * 20)),
        Case("a span ends outside of its text", _names([*_MARKED, {"text": "w1", "label": [[0, 9, "PER"]]}])),
        Case("a span has no type", _names([*_MARKED, {"text": "w1", "label": [[0, 2]]}])),
        Case("an answer is no piece of its text", _names([*_MARKED, {"text": "w1 is here", "label": "was there"}])),
        Case("the column of questions is not there", _names(keys="columns: {text_b: question}")),
        Case("no column has texts or words", _names([{"title": "w1", "tags": ["O"]}] * 20)),
        Case("a metric of classes for tags", _names(keys="metric: macro_f1")),
        Case("cleaning would change words", _names(keys="cleaning: {emoji: en}")),
        Case("words where single characters are named", _names(keys="unit: character")),
        Case("spans where tags mark none", _names(_MARKED, keys="spans: none")),
        Case("a single tag where tags mark no spans", _names([{"tokens": ["a"], "tags": ["X"]}] * 20, "spans: none")),
        Case("soft labels of tags", _names(keys="extra_train: [{path: a.parquet, labels: soft}]")),
        Case("a chain of tags with its weights shared out", both(_names(), training("tag_head: crf\n  fsdp: true"))),
    )
}
