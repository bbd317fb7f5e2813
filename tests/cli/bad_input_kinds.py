"""Mistakes in tasks of several labels or numbers, of ordered classes, and in metrics of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bad_input_changes import Case, Change, both, training, write, yaml

_TEXTS = [f"text {number}" for number in range(12)]
_LABELS = "columns: {text: text, labels: [toxic, insult]}\n    metric: macro_f1"
_NUMBERS = "columns: {text: text, values: [joy, fear]}\n    metric: mcrmse"
_CHOICES = "columns: {text: text, choices: [one, two], label: answer}"
_OWN = "metric: {file: metric.py, function: score, needs: decisions, higher_is_better: true}"


def _table(columns: Mapping[str, Sequence[object]]) -> str:
    rows = [("text", *columns), *zip(_TEXTS, *columns.values(), strict=True)]
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def _task(keys: str, **columns: Sequence[object]) -> Change:
    """A second task, of a table with a text and these columns."""
    task = f"tasks:\n  more:\n    layout: table\n    train: more.csv\n    {keys}\n"
    return both(yaml("tasks:\n", task), write("more.csv", _table(columns)))


def _own_metric(code: str) -> Change:
    return both(yaml("metric: macro_f1", _OWN), write("metric.py", code))


KINDS: Mapping[str, Sequence[Case]] = {
    "Several labels, several numbers, own metrics": (
        Case(
            "a label is neither 0 nor 1",
            _task(_LABELS, toxic=[0, 1] * 6, insult=[1, 0, 2] * 4),
        ),
        Case(
            "a column of labels is missing",
            _task(_LABELS, toxic=[0, 1] * 6, insults=[1, 0] * 6),
        ),
        Case(
            "all labels of a column are equal",
            _task(_LABELS, toxic=[0, 1] * 6, insult=[0] * 12),
        ),
        Case(
            "a metric of probabilities for numbers, which have none",
            _task(_NUMBERS.replace("mcrmse", "roc_auc"), joy=range(12), fear=range(12)),
        ),
        Case(
            "a number is a word",
            _task(_NUMBERS, joy=range(12), fear=[1, "high", *range(10)]),
        ),
        Case(
            "an answer is no candidate",
            _task(_CHOICES, one=["yes"] * 12, two=["no"] * 12, answer=[*"AB" * 5, "A", "C"]),
        ),
        Case(
            "labels are places that count from 0 or from 1",
            _task(
                _CHOICES.replace("two", "two, three"),
                one=["a"] * 12,
                two=["b"] * 12,
                three=["c"] * 12,
                answer=[1, 2] * 6,
            ),
        ),
        Case(
            "a candidate is longer than max_length",
            _task(_CHOICES, one=["yes"] * 12, two=["no " * 700, *["no"] * 11], answer=[*"AB" * 6]),
        ),
        Case(
            "rows with candidates are packed",
            both(
                _task(_CHOICES, one=["yes"] * 12, two=["no"] * 12, answer=[*"AB" * 6]),
                training("batching: packed"),
            ),
        ),
        Case("a better text without a worse one", _task("columns: {better: text}", other=["no"] * 12)),
        Case(
            "pairs that are composed by a template",
            _task('columns: {better: text, worse: other}\n    template: "{text}"', other=["no"] * 12),
        ),
        Case(
            "a better text beside candidates",
            _task("columns: {better: text, worse: other, choices: list}", other=["no"] * 12, list=["[]"] * 12),
        ),
        Case(
            "an own metric raises",
            _own_metric("def score(labels, predictions):\n    return {}['weights']\n"),
        ),
        Case(
            "an own metric returns no number",
            _own_metric("def score(labels, predictions):\n    return 'good'\n"),
        ),
        Case(
            "an own metric's file has no such function",
            _own_metric("def scores(labels, predictions):\n    return 1.0\n"),
        ),
    )
}
