"""Guesses the keys of a task, as a study file has them, from the columns of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tutti.config.layouts import GLUE_NAMES
from tutti.config.metric_facts import FACTS, KIND_WORDS, KindName, default_metric, kind_of, kinds_of, names_for
from tutti.data.guess.cells import (
    Columns,
    are_numbers,
    are_texts,
    are_truths,
    columns_of,
    distinct,
    has_header,
    texts,
    without_header,
    words,
)
from tutti.data.guess.files import LINES, HandedOut, suffix_of
from tutti.data.guess.labels import Labels, labels_of
from tutti.errors import ConfigError, Fault, TaskFileError
from tutti.tasks.layouts.ids import is_id_name
from tutti.tasks.layouts.packed import declare_encoding, encoding_of
from tutti.tasks.layouts.tagged import LABELS as TAGS
from tutti.tasks.layouts.tagged import TEXTS as TOKENS

_LABEL = re.compile(
    r"labels?|targets?|class(es)?|category|sentiment|emotions?|scores?|ratings?|stars|grades?|answer(_?key)?|y|tags?|"
    r"intent|polarity|gold_label|is_duplicate|quality|generated|toxicity|标签|类别",
    re.IGNORECASE,
)
_GROUP = re.compile(
    r"(.*[_ ])?(prompt|author|user|speaker|topic|essay_?set|document|doc|subject|patient|writer|passage|story|article|"
    r"thread|set)([_ ]?(id|name|num|number))?",
    re.IGNORECASE,
)
_CHOICES = re.compile(r"choices|options|candidates|endings|answers", re.IGNORECASE)
_CHOICE = re.compile(r"(choice|option|answer|ending|candidate|sol)?[ _]?([A-F]|[0-5])", re.IGNORECASE)
_PROMPTS = {
    "chat": ({"messages"}, ""),
    "alpaca": ({"instruction", "input", "output"}, "output"),
    "input-output": ({"input", "output"}, "output"),
    "prompt-completion": ({"prompt", "completion"}, "completion"),
}
_USAGE = "usage"


@dataclass
class Guess:
    """What a task is taken for.

    Attributes:
        keys: of the task, as in a study file, without its files.
        why: by key, the reason, for a comment.
        metrics: that fit it, the likeliest first.
        group: the column whose values keep rows together; empty for none.
    """

    keys: dict[str, Any]
    why: dict[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    group: str = ""

    @property
    def kind(self) -> KindName:
        return kind_of(self.keys)


def guess(files: HandedOut, *, metric: str | None = None) -> Guess:
    """What a task's files are taken for.

    Args:
        metric: that decides, where it is known; it also tells numbers, classes and classes with an order apart.

    Raises:
        TaskFileError: if its file of labelled rows cannot be read, or has nothing that could be a label.
        ConfigError: if the metric does not fit its labels.
    """
    assert files.train is not None
    suffix = suffix_of(files.train)
    encoding = _encoding(files)
    glue = GLUE_NAMES.get(files.name.casefold())
    if glue and suffix == ".tsv":
        found = _of_glue(files, glue)
    elif suffix in LINES:
        found = Guess({"layout": "tokens"}, {"layout": "a word and its tag a line, an empty line after each row"})
    elif suffix in (".csv", ".tsv") and not has_header(files.train):
        found = _without_header(files)
    else:
        found = _of_table(files)
    if encoding:
        found.keys["encoding"], found.why["encoding"] = encoding, "its files are not UTF-8"
    return _with_metric(found, metric, files)


def _encoding(files: HandedOut) -> str | None:
    """The encoding of the task's text files that are not UTF-8."""
    given = [files.train, files.unlabeled, files.sample, *files.validations.values(), *files.tests.values()]
    names = [str(file) for file in given if file and suffix_of(file) not in (".parquet", ".xlsx")]
    found = [encoding for name in names if (encoding := encoding_of(name))]
    declare_encoding(names, found[0] if found else None)
    return found[0] if found else None


def _of_glue(files: HandedOut, glue: str) -> Guess:
    metric = {"CoLA": "matthews", "STS-B": "pearson_spearman", "MRPC": "f1", "QQP": "f1"}.get(glue, "accuracy")
    keys: dict[str, Any] = {"layout": "glue", "metric": metric}
    if files.name.casefold() not in GLUE_NAMES:
        keys["glue"] = glue
    return Guess(keys, {"layout": f"the files of GLUE's {glue}", "metric": "GLUE's own"}, (metric,))


def _without_header(files: HandedOut) -> Guess:
    """Files of Chinese competitions: tab-separated id, text, perhaps a second text, and label."""
    assert files.train is not None
    rows = without_header(files.train)
    width = max(map(len, rows))
    if width not in (3, 4):
        rule, got = "have a header, or the tab-separated columns id, text[, text_b], label", f"{width} columns and none"
        raise TaskFileError(Fault(str(files.train), rule, got, "write the names of the columns into its first line"))
    labels = labels_of("label", [row[-1] for row in rows if len(row) == width])
    keys: dict[str, Any] = {"layout": "competition", **labels.keys}
    if width == 4:
        keys["pair"] = True
    columns = "id, text, second text, label" if width == 4 else "id, text, label"
    why = {"layout": f"tab-separated, no header: {columns}", **labels.why}
    if any(len(row) != width for row in rows):
        keys["cleaning"] = {"broken_rows": True}
        why["cleaning"] = "some lines have other columns: texts with line feeds in them"
    return Guess(keys, why, labels.metrics)


def _of_table(files: HandedOut) -> Guess:
    assert files.train is not None
    train = columns_of(files.train)
    test = columns_of(next(iter(files.tests.values()))) if files.tests else None
    sample = columns_of(files.sample) if files.sample else {}
    sample = {name: cells for name, cells in sample.items() if name.casefold() != _USAGE}
    for found in (_of_tokens(train), _of_prompts(train), _of_choices(train, test, sample)):
        if found:
            return found
    ids = _ids(train, test, sample)
    targets = _targets(train, test, sample, ids)
    if not targets:
        rule, got = "have a column of labels", f"the columns {', '.join(train)}"
        raise TaskFileError(Fault(str(files.train), rule, got, "call it label, or write a study file: docs/tasks.md"))
    labels = labels_of(targets[0], train[targets[0]]) if len(targets) == 1 else _of_several(targets, train, sample)
    inputs = [name for name in train if name not in {*targets, *ids} and (test is None or name in test)]
    shown = [name for name in inputs if are_texts(name, train[name])]
    group = _group(train, [name for name in train if name not in {*targets, *ids, *shown}])
    if not shown:
        shown = sorted(inputs, key=lambda name: -sum(map(len, texts(train[name]))))[:1]
    if not shown:
        rule, got = "have a column of texts", f"the columns {', '.join(train)}"
        raise TaskFileError(Fault(str(files.train), rule, got, "call it text, or write a study file: docs/tasks.md"))
    columns = {**({"id": ids[0]} if ids and (test is None or ids[0] in test) else {}), **labels.columns}
    keys: dict[str, Any] = {"layout": "table", "columns": columns, **labels.keys}
    why = {"layout": "a table with a header", **labels.why}
    if len(shown) > 2:
        keys["template"] = " [SEP] ".join(f"{{{name}}}" for name in shown)
        why["template"] = "one text of several columns"
    else:
        keys["columns"] = columns = {**columns, **dict(zip(("text", "text_b"), shown, strict=False))}
    if set(sample) - {*ids} and files.sample:
        why["submission"] = "header, order and spelling of the sample"
    return Guess(keys, why, _by_sample(labels, sample), group)


def _ids(train: Columns, test: Columns | None, sample: Columns) -> list[str]:
    """The column of ids: the sample's first one, or one that is called as ids are and has another value in each row."""
    where = train if test is None else test
    named = [name for name in [*sample][:1] if name in where]
    found = [name for name in where if is_id_name(name) and len({*map(str, where[name])}) == len(where[name])]
    return named or sorted(found, key=lambda name: name.casefold() != "id")[:1]


def _targets(train: Columns, test: Columns | None, sample: Columns, ids: Sequence[str]) -> list[str]:
    """The columns of labels: of the sample, or those that test rows lack, or one that is called as labels are."""
    if named := [name for name in [*sample][1:] if name in train]:
        return named
    others = [name for name in train if name not in ids]
    lacking = others if test is None else [name for name in others if name not in test]
    lacking = [name for name in lacking if name.strip() and not (is_id_name(name) or are_texts(name, train[name]))]
    called = [name for name in lacking if _LABEL.fullmatch(name.strip())]
    numbers = [name for name in lacking if are_numbers(train[name])]
    if test is None:
        truths = [name for name in lacking if are_truths(train[name])]
        return called[:1] or max(truths, numbers if len(numbers) == len(lacking) else lacking[-1:], key=len)
    if len(lacking) < 2 or len(numbers) == len(lacking):
        return lacking
    return called[:1] or [min(lacking, key=lambda name: len(distinct(train[name])))]


def _of_several(targets: Sequence[str], train: Columns, sample: Columns) -> Labels:
    """Several columns of labels: 0 and 1 each, with one 1 in a row or any number of them, or numbers."""
    listed = [*targets]
    if all(are_truths(train[name]) for name in targets):
        one = all(sum(float(cell) for cell in row) == 1 for row in zip(*(train[name] for name in targets), strict=True))
        fractions = any(not are_truths(sample[name]) for name in targets if name in sample)
        if one:
            return Labels({"label": listed}, {}, {"columns": "label: 1 in the column of a row's class"}, ("log_loss",))
        metrics = ("roc_auc",) if fractions else ("macro_f1",)
        why = "any of them in a row, 0 or 1 each"
        return Labels({"labels": listed}, {}, {"columns": f"labels: {why}"}, metrics)
    return Labels({"values": listed}, {}, {"columns": "values: a number each"}, ("mcrmse",))


def _by_sample(labels: Labels, sample: Columns) -> tuple[str, ...]:
    """The likeliest metrics, by what a sample submission has: probabilities where there are fractions."""
    others = [*sample.values()][1:]
    fractions = bool(others) and all(
        are_numbers(cells) and any("." in text for text in texts(cells)) for cells in others
    )
    fractions = fractions and any(0 < float(text) < 1 for cells in others for text in texts(cells))
    if not fractions or {"labels", "values"} & labels.columns.keys() or labels.metrics[:1] == ("rmse",):
        return labels.metrics
    return (("roc_auc" if len(others) == 1 else "log_loss"), *labels.metrics)


def _group(train: Columns, others: Sequence[str]) -> str:
    """A column of prompts, authors and the like, whose values recur but are many."""
    for name in others:
        values, rows = {*texts([cell for cell in train[name] if not isinstance(cell, list | dict)])}, len(train[name])
        if _GROUP.fullmatch(name.strip()) and 3 <= len(values) < rows * 0.8:
            return name
    return ""


def _of_tokens(train: Columns) -> Guess | None:
    """Lists of words with tags, or texts with marked spans."""
    tags = next((name for name in TAGS if name in train and _is_nested(train[name])), None)
    text = next((name for name in TOKENS if name in train), None)
    if not (tags and text):
        return None
    listed = _is_nested(train[text])
    first: Any = next((cell for cell in map(_nested, train[tags]) if cell), [])
    inner = next(iter(first), None) if isinstance(first, list) else None
    if not listed and isinstance(inner, str | int):  # a list of labels of a text as a whole
        return None
    what = "words with a tag each" if listed else "texts with marked spans"
    return Guess({"layout": "tokens", "columns": {"text": text, "label": tags}}, {"layout": what})


def _of_prompts(train: Columns) -> Guess | None:
    """Prompts with texts to be written, where these differ from row to row."""
    for form, (needed, target) in _PROMPTS.items():
        if needed <= train.keys():
            found = texts(train[target]) if target else []
            if target and len({*found}) * 3 < len(found) and sum(len(words(text)) for text in found) < 3 * len(found):
                return None  # classes
            keys = {"layout": "instructions", "format": form}
            return Guess(keys, {"layout": "texts to be written after prompts"})
    return None


def _of_choices(train: Columns, test: Columns | None, sample: Columns) -> Guess | None:
    """Rows with candidates of their own."""
    lists = [name for name in train if _CHOICES.fullmatch(name.strip()) and _is_nested(train[name])]
    several = [name for name in train if _CHOICE.fullmatch(name.strip()) and (test is None or name in test)]
    if not lists and len(several) < 2:
        return None
    ids = _ids(train, test, sample)
    known = {*ids, *lists, *several}
    answers = [name for name in _targets(train, test, {}, ids) if name not in known]
    answer = next((name for name in answers if _LABEL.fullmatch(name.strip())), answers[0] if answers else None)
    shown = [name for name in train if name not in {*known, answer} and are_texts(name, train[name])][:2]
    if answer is None or not shown:
        return None
    columns: dict[str, Any] = {**({"id": ids[0]} if ids else {}), **dict(zip(("text", "text_b"), shown, strict=False))}
    columns |= {"choices": lists[0] if lists else several, "label": answer}
    ranked = any(len(text.split()) == 3 for cells in [*sample.values()][1:2] for text in texts(cells)[:1])
    group = _group(train, [name for name in train if name not in {*known, answer, *shown}])
    metrics = ("map_at_3", "accuracy") if ranked else ("accuracy",)
    return Guess({"layout": "table", "columns": columns}, {"columns": "choices: a row's own"}, metrics, group)


def _nested(cell: Any) -> Any:
    if isinstance(cell, str) and cell.lstrip().startswith(("[", "{")):
        try:
            return json.loads(cell)
        except ValueError:
            return cell
    return cell


def _is_nested(cells: Sequence[Any]) -> bool:
    found = [_nested(cell) for cell in cells[:50] if cell not in (None, "")]
    return bool(found) and all(isinstance(cell, list | dict) for cell in found)


def _with_metric(found: Guess, metric: str | None, files: HandedOut) -> Guess:
    """The guess with a metric: the one that is named, to which single labels are adapted, or the likeliest."""
    likely = found.metrics[0] if found.metrics else default_metric(found.keys)
    found.keys.setdefault("metric", likely)
    found.metrics = tuple(dict.fromkeys((*found.metrics, likely, *names_for(found.kind))))
    if metric is None:
        return found
    if metric not in FACTS:
        found.keys["metric"] = metric  # which the study file's own check will name
        return found
    for keys in _variants(found.keys):
        if kind_of({**keys, "metric": metric}) in kinds_of(metric):
            found.keys = {**keys, "metric": metric}
            return found
    rule, got = f"be a metric for {KIND_WORDS[found.kind]}, as {files.train} has them", repr(metric)
    raise ConfigError(Fault("--metric", rule, got, f"name one of {', '.join(names_for(found.kind))}"))


def _variants(keys: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The keys, and those of the same labels in another role: with an order or without, numbers or truths."""
    yield dict(keys)
    yield {key: value for key, value in keys.items() if key != "ordered"}
    yield {**keys, "ordered": True}
    columns = dict(keys.get("columns", {}))
    for one, other in (("labels", "values"), ("values", "labels")):
        if isinstance(columns.get(one), list):
            changed = {other if key == one else key: value for key, value in columns.items()}
            yield {**keys, "columns": changed}
