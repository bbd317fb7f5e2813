"""Each fault of a study file gets one sentence, and all are told at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.config.load import load_study

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("backbone: backbone/\n", "", "backbone must be given; got nothing; add `backbone:`."),
        (
            "backbone:",
            "Model-Name:",
            "Model-Name must be a known key; got an unknown one; did you mean 'backbone'? Correct",
        ),
        (
            "    test:",
            "    labels:",
            "tasks.topic.labels must be a known key; got an unknown one; remove it: the classes",
        ),
        (
            "data/topic_train.csv",
            "{a: a.csv}",
            "tasks.topic.train must be a file, or a list of files; got a mapping",
        ),
        ("study: little", "study: 5", "study must be a text; got 5; put it in quotes if it is meant as a text."),
        ("data/topic_test.csv", "{}", "tasks.topic.test must hold at least one entry; got an empty mapping; add one."),
        ("data/topic_test.csv", "{a b: 3}", "tasks.topic.test.a b must be a"),
        (
            "    train:",
            "    cleaning: 3\n    train:",
            "tasks.topic.cleaning must hold keys of its own; got 3; write its",
        ),
        (
            "    train:",
            "    extra_train: x\n    train:",
            "tasks.topic.extra_train must be a list; got 'x'; write it as [",
        ),
        ("training:\n", "training: [1]\nsplit:\n", "training must hold keys of its own; got a list; write its keys"),
    ],
)
def test_each_kind_of_fault_has_its_sentence(faults, changed, old, new, sentence):
    path = changed(old, new)
    assert any(messages.startswith(f"{path}: {sentence}") for messages in faults(path)), faults(path)


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        ("search: {max_hours: true}", "search.max_hours must be a number; got true; give a number, such as 0.1."),
        (
            "resources: {gpus_per_worker: 0.5, workers: 2}",
            "resources.gpus_per_worker must be 0 or 1 where resources.workers is above 1; got 0.5 with 2 workers; "
            "correct it.",
        ),
        ("resources: 4", "resources must hold keys of its own; got 4; write its keys below it, indented."),
        ("storage: {path: 3}", "storage.path must be a path; got 3; give the path of a file or folder."),
    ],
)
def test_each_kind_of_fault_below_the_tasks_has_its_sentence(faults, changed, added, sentence):
    path = changed(add=f"{added}\n")
    assert [messages[: len(f"{path}: {sentence}")] for messages in faults(path)] == [f"{path}: {sentence}"]


@pytest.mark.parametrize(
    ("distribution", "sentence"),
    [
        ("3", "search_space.x must hold keys of its own; got 3; write its keys below it, indented."),
        (
            "{type: int, low: 0, high: 4, log: true}",
            "search_space.x must have step 1 and low at least 1 where log is true",
        ),
        (
            "{type: categorical, choices: []}",
            "search_space.x.choices must hold at least one entry; got an empty list; ",
        ),
        (
            "{type: categorical, choices: [false, a, 0]}",
            "search_space.x.choices.2 must differ from the choices before it; got 0, which Optuna takes for false; ",
        ),
    ],
)
def test_each_kind_of_fault_of_a_distribution_has_its_sentence(faults, changed, distribution, sentence):
    path = changed(add=f"  x: {distribution}\n")
    assert [messages[: len(f"{path}: {sentence}")] for messages in faults(path)] == [f"{path}: {sentence}"]


@pytest.mark.parametrize(
    "distribution",
    [
        "{type: uniform, low: 0.2, high: 0.3, step: 0.1}",  # 0.09999999999999998 of floats
        "{type: int, low: 1, high: 4, step: 3}",
        "{type: categorical, choices: [1, '1', 0, null]}",
    ],
)
def test_a_step_of_the_whole_range_and_choices_of_different_kinds_are_taken(changed, distribution):
    assert "x" in load_study(changed(add=f"  x: {distribution}\n")).search_space.root


def test_every_fault_is_told_at_once(faults: Faults, changed: Changed) -> None:
    path = changed("data/topic_train.csv", "data/topic_trian.csv", add="search: {trials: four}\nsplit: {sead: 1}\n")
    messages = faults(path)
    assert len(messages) == 3
    assert "did you mean 'topic_train.csv'?" in messages[0]
