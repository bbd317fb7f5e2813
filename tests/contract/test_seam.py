"""Nobody asks "classes or numbers?": what differs between kinds of tasks is in their kinds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutti.config.metric_facts import FACTS
from tutti.tasks.kinds.registry import KINDS

PACKAGE = Path(__file__).parents[2] / "platform" / "tutti"
# Where kinds are defined, chosen from the keys of a study file, told from names alone in files of earlier versions, and
# where metrics take labels of several kinds.
KNOWING = ("tasks/kinds", "modeling/kinds", "tasks/metrics", "config", "tasks/task.py", "bank/tables.py")
FILES = [file for file in PACKAGE.rglob("*.py") if not any(file.is_relative_to(PACKAGE / place) for place in KNOWING)]
OLD_NAMES = {"regression", "is_regression", "is_correlation", "VALUE_METRICS"}
PREDICTIONS = {"outputs", "votes", "probabilities", "predictions", "predicted", "values", "decided", "combined"}


def _name(node: ast.AST) -> str | None:
    """The last name of an expression such as ``member.probabilities``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _strings(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _asked(node: ast.Compare) -> Iterator[str]:
    sides = [node.left, *node.comparators]
    compared = set().union(*map(_strings, sides))
    names = {name for side in sides if (name := _name(side))}
    if any(
        isinstance(side, ast.Attribute) and side.attr == "ndim" and _name(side.value) in PREDICTIONS for side in sides
    ):
        yield "the number of dimensions"
    if names & {"metric", "name", "kind_name"} and compared & {*FACTS, *KINDS}:
        yield "the name of a metric or kind"
    if "probabilities" in names and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        yield "whether there are probabilities"


def questions(text: str) -> list[str]:
    """What a module asks in place of its kind, by line. Assertions, which narrow a type, are no questions."""
    tree = ast.parse(text)
    asserted = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Assert) for part in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if (isinstance(node, ast.Attribute | ast.Name) and _name(node) in OLD_NAMES) or (
            isinstance(node, ast.keyword | ast.arg) and node.arg in OLD_NAMES
        ):
            found.append(f"{node.lineno}: an old name")
        elif isinstance(node, ast.Compare) and id(node) not in asserted:
            found += [f"{node.lineno}: {asked}" for asked in _asked(node)]
    return found


def test_nobody_outside_the_kinds_asks_what_sort_of_labels_a_task_has() -> None:
    asked = {str(file): questions(file.read_text(encoding="utf8")) for file in FILES}
    assert not {file: found for file, found in asked.items() if found}


@pytest.mark.parametrize(
    "text",
    [
        "if head.regression: pass",
        "make(regression=True)",
        "if is_regression(metric): pass",
        "if votes.ndim == 3: pass",
        "classes = 2 if outputs.ndim != 1 else 1",
        "if task.metric == 'pearson': pass",
        "if metric in ('pearson', 'spearman'): pass",
        "if task.kind.name == 'classes': pass",
        "if task.kind_name in ('value', 'values'): pass",
        "if member.probabilities is None: pass",
        "x = 1 if probabilities is not None else 2",
    ],
)
def test_the_old_question_is_found_in_each_of_its_spellings(text: str) -> None:
    assert len(questions(text)) == 1
