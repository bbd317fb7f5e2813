"""What a task's rows look like: how many, how long, in which language, what recurs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pandas import DataFrame, concat

from tutti.data.clean import row_texts
from tutti.data.prepared import Prepared
from tutti.tasks.task import Task

_SCRIPTS = {
    "Japanese": r"[\u3040-\u30ff]",
    "Korean": r"[\uac00-\ud7af]",
    "Chinese": r"[\u3400-\u4dbf\u4e00-\u9fff]",
    "Russian": r"[\u0400-\u04ff]",
    "Arabic": r"[\u0600-\u06ff]",
    "Devanagari": r"[\u0900-\u097f]",
    "Thai": r"[\u0e00-\u0e7f]",
    "Greek": r"[\u0370-\u03ff]",
    "Latin": r"[A-Za-z\u00c0-\u024f]",
}
_ENGLISH = {"the", "and", "of", "to", "a", "in", "is", "it", "that", "for", "you", "this", "was", "on", "with", "not"}
_PIECE = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]|[^\W\d_]+|\d|[^\w\s]")
_LOOKED_AT = 2000  # texts, for their language and lengths
_LETTERS_OF_A_TOKEN = 5  # of a word: longer ones are several
_SHOWN = 20


@dataclass(frozen=True)
class Seen:
    """What was seen of a task.

    Attributes:
        rows: by part, the number of rows.
        balance: by class, label, type of entity or number, what there is of it.
        language: ``English``, ``Chinese``, ... or ``Latin``, of several or other ones ``several``.
        tokens: about how many tokens the median row, one of twenty, one of a hundred, and the longest row have.
        odd: what recurs, is empty, or is in train and test alike, one sentence each.
    """

    task: Task
    rows: Mapping[str, int]
    balance: Mapping[str, str]
    language: str
    tokens: tuple[int, int, int, int]
    odd: tuple[str, ...] = field(default=())

    @property
    def max_length(self) -> int:
        """So that all but one row of a hundred are read whole: a multiple of 16, at most 512."""
        return int(min(max(-(-(self.tokens[2] + 4) // 16) * 16, 32), 512))


def seen(prepared: Prepared) -> dict[str, Seen]:
    """By task, what its rows look like."""
    return {task.name: _seen(prepared, task) for task in prepared.tasks}


def _seen(prepared: Prepared, task: Task) -> Seen:
    parts = {part: prepared.rows(task.name, part) for part in prepared.parts[task.name]}
    own = "validation" in prepared.origins[task.name]
    labelled = parts["train"] if own else concat([parts["train"], parts["validation"]], ignore_index=True)
    rows = {"train": len(labelled), **({"validation": len(parts["validation"])} if own else {})}
    rows |= {part: len(frame) for part, frame in parts.items() if part.startswith("report-")}
    tests = {part: frame for part, frame in parts.items() if part.startswith("test")}
    rows |= {part: len(frame) for part, frame in tests.items()}
    rows |= {part: len(parts[part]) for part in ("unlabeled",) if part in parts}
    sampled = [" ".join(texts) for texts in row_texts(labelled.sample(min(len(labelled), _LOOKED_AT), random_state=0))]
    lengths = np.array([tokens(text) for text in sampled])
    quantiles = (int(np.quantile(lengths, share)) for share in (0.5, 0.95, 0.99, 1.0))
    median, most, nearly, longest = quantiles
    odd = tuple(_odd(labelled, tests, parts["validation"] if own else None))
    return Seen(task, rows, _balance(task, labelled), language(sampled), (median, most, nearly, longest), odd)


def tokens(text: str) -> int:
    """About how many tokens a text has."""
    return sum(-(-len(piece) // _LETTERS_OF_A_TOKEN) for piece in _PIECE.findall(text))


def language(texts: Sequence[str]) -> str:
    """The language of texts by their letters, and English by its commonest words."""
    together = "\n".join(texts)[:500_000]
    counts = {name: len(re.findall(pattern, together)) for name, pattern in _SCRIPTS.items()}
    name = max(counts, key=counts.__getitem__)
    letters = sum(counts.values())
    if counts["Japanese"] * 10 > letters:
        return "Japanese"
    if not letters or counts[name] * 10 < letters * 6:
        return "several"
    if name != "Latin":
        return name
    words = Counter(re.findall(r"[a-z]+", together.casefold()))
    return "English" if sum(words[word] for word in _ENGLISH) * 10 > words.total() else "Latin"


def _balance(task: Task, labelled: DataFrame) -> dict[str, str]:
    kind = task.kind
    if kind.sequential:  # of which rows have as many as they have words
        labels = np.concatenate([np.asarray(own) for own in labelled["label"]])
    else:
        labels = np.stack(labelled["label"].tolist())
    if kind.generative:
        lengths = np.array([tokens(text) for text in labels.tolist()])
        return {"tokens of a text": f"{np.median(lengths):.0f}, at most {lengths.max():,}"}
    if kind.sequential:  # an entity is counted where it begins
        begins = [name.startswith("B-") for name in task.names]
        found = {name[2:]: int((labels == index).sum()) for index, name in enumerate(task.names) if begins[index]}
    elif kind.probabilistic:
        held = kind.held(labels if kind.exclusive else np.nan_to_num(labels), len(task.names))
        found = dict(zip(task.names, held.sum(axis=0).tolist(), strict=True))
    else:
        found = {}
    if found:
        independent = kind.probabilistic and not kind.exclusive and not kind.sequential  # a row may have several
        total = max(len(labels) if independent else sum(found.values()), 1)
        return {name: f"{count:,} ({count / total:.1%})" for name, count in found.items()}
    columns = labels.reshape(len(labels), -1)
    names = task.names or ("value",)
    return {
        name: f"{np.nanmin(own):g} to {np.nanmax(own):g}, mean {np.nanmean(own):.3g}"
        for name, own in zip(names, columns.T, strict=True)
    }


def _odd(labelled: DataFrame, tests: Mapping[str, DataFrame], validation: DataFrame | None) -> Iterator[str]:
    texts = row_texts(labelled)
    counts = Counter(texts)
    if again := len(texts) - len(counts):
        yield f"{again:,} training rows repeat the texts of another; `cleaning: {{duplicates: true}}` drops those alike"
        labels: dict[tuple[str, ...], set[str]] = {}
        for text, label in zip(texts, map(str, labelled["label"]), strict=True):
            labels.setdefault(text, set()).add(label)
        if several := sum(len(own) > 1 for own in labels.values()):
            yield f"{several:,} texts are labelled differently in several rows"
    if empty := sum(not "".join(row).strip() for row in texts):
        yield f"{empty:,} training rows have no text"
    for name, frame in {**tests, **({} if validation is None else {"validation": validation})}.items():
        theirs = row_texts(frame)
        if shared := sum(text in counts for text in theirs):
            yield f"{shared:,} of {len(theirs):,} rows of {name} are training rows too, by their texts"
        if empty := sum(not "".join(row).strip() for row in theirs):
            yield f"{empty:,} rows of {name} have no text"


PAGE_TITLE = "# What the files hold"


def page(found: Mapping[str, Seen], *, notices: Sequence[str], files: Mapping[str, Mapping[str, str]]) -> str:
    """What was seen, as a page of Markdown.

    Args:
        notices: of the preparation, one line each.
        files: by task and part, the file.
    """
    lines = [PAGE_TITLE, ""]
    for name, each in found.items():
        median, most, nearly, longest = each.tokens
        lines += [f"## {name}", "", f"{each.task.kind.describe(each.task.names)}, {each.language}.", ""]
        lines += ["| part | rows | file |", "| --- | ---: | --- |"]
        lines += [f"| {part} | {count:,} | {files[name].get(part, '')} |" for part, count in each.rows.items()]
        lines += ["", "| label | training rows |", "| --- | --- |"]
        shown = list(each.balance.items())
        lines += [f"| {label} | {count} |".replace("\n", " ") for label, count in shown[:_SHOWN]]
        lines += [f"| and {len(shown) - _SHOWN} more | |"] if len(shown) > _SHOWN else []
        lengths = f"About {median} tokens in the median row, {most} or more in one of twenty, {nearly} in one of a "
        lines += ["", f"{lengths}hundred, {longest} in the longest.", ""]
        lines += [f"* {sentence}." for sentence in each.odd] + [""] * bool(each.odd)
    if notices:
        lines += ["## What preparing them says", "", *(f"* {notice}" for notice in notices), ""]
    return "\n".join(lines)
