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
        ("backbone:", "bakbone:", "bakbone must be a known key; got an unknown one; did you mean 'backbone'? Correct"),
        (
            "backbone:",
            "3: x\nbackbone:",
            "3 must be a known key; got an unknown one; known here: study, backbone, tasks",
        ),
        (
            "backbone:",
            "Model-Name:",
            "Model-Name must be a known key; got an unknown one; did you mean 'backbone'? Correct",
        ),
        (
            "    test:",
            "    dev:",
            "tasks.topic.dev must be a known key; got an unknown one; did you mean 'validation'?",
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
        (
            "study: little",
            "study: a/b",
            "study must be a name of 1 to 80 letters, digits, dots, dashes and underscores",
        ),
        ("  topic:", "  new topic:", "tasks.new topic must be a name of 1 to 80 letters"),
        (
            "competition",
            "competitio",
            "tasks.topic.layout must be one of competition, glue, table, hub, instructions, tokens; got 'competitio'; ",
        ),
        ("    test:", "    tset:", "tasks.topic.tset must be a known key; got an unknown one; did you mean 'test'?"),
        ("data/topic_test.csv", "4", "tasks.topic.test must be a file, or a mapping of names to files; got 4; "),
        ("data/topic_test.csv", "{}", "tasks.topic.test must hold at least one entry; got an empty mapping; add one."),
        ("data/topic_test.csv", "{a b: 3}", "tasks.topic.test.a b must be a"),
        (
            "    train:",
            "    pair: maybe\n    train:",
            "tasks.topic.pair must be true or false; got 'maybe'; write true or",
        ),
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
        (
            "    train:",
            "    extra_train: [{path: data/topic_train.csv, wieght: 1}]\n    train:",
            "tasks.topic.extra_train.0.wieght must be a known key; got an unknown one; did you mean 'weight'?",
        ),
        ("training:\n", "training: [1]\nsplit:\n", "training must hold keys of its own; got a list; write its keys"),
        (
            "high: 1e-3",
            "high: 1e-6",
            "search_space.learning_rate must have low below high; got low 1e-05 and high 1e-06",
        ),
        (
            "high: 1e-3",
            "hgih: 1e-3",
            "search_space.learning_rate.hgih must be a known key; got an unknown one; did you",
        ),
        ("high: 1e-3", "high: much", "search_space.learning_rate.high must be a number; got 'much'; give a number"),
        (
            "high: 1e-3",
            "high: .inf",
            "search_space.learning_rate.high must be a finite number; got inf; give a number.",
        ),
        ("low: 1e-5", "low: 0", "search_space.learning_rate.low must be above 0; got 0; change the number."),
        (
            "log_uniform",
            "lognormal",
            "search_space.learning_rate.type must be one of uniform, log_uniform, int, categori",
        ),
        (
            "type: log_uniform, ",
            "",
            "search_space.learning_rate.type must be given: uniform, log_uniform, int or catego",
        ),
        (
            "num_train_epochs: 2",
            "day: 2020-01-01",
            "training.day must be a text, a number, true, false or null; got 2020",
        ),
    ],
)
def test_each_kind_of_fault_has_its_sentence(faults, changed, old, new, sentence):
    path = changed(old, new)
    assert any(messages.startswith(f"{path}: {sentence}") for messages in faults(path)), faults(path)


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        ("search: {trials: four}", "search.trials must be a whole number; got 'four'; give a whole number, such as 4."),
        ("search: {trials: 1.5}", "search.trials must be a whole number; got 1.5; give a whole number, such as 4."),
        ("search: {trials: true}", "search.trials must be a whole number; got true; give a whole number, such as 4."),
        ("search: {trials: '4'}", "search.trials must be a whole number; got '4'; give a whole number, such as 4."),
        ("search: {trials: '+3'}", "search.trials must be a whole number; got '+3'; give a whole number, such as 4."),
        ("search: {max_hours: true}", "search.max_hours must be a number; got true; give a number, such as 0.1."),
        ("search: {max_hours: '8'}", "search.max_hours must be a number; got '8'; give a number, such as 0.1."),
        ("search: {trials: 0}", "search.trials must be at least 1; got 0; change the number."),
        ("split: {validation: 1}", "split.validation must be below 1; got 1; change the number."),
        ("split: {validation: x}", "split.validation must be a number; got 'x'; give a number, such as 0.1."),
        (
            "search: {scheduler: asah}",
            "search.scheduler must be one of asha, hyperband, median, pbt, none; got 'asah'; did you mean 'asha'?",
        ),
        ("resources: {gpus_per_worker: 2}", "resources.gpus_per_worker must be at most 1; got 2; change the number."),
        (
            "resources: {gpus_per_worker: 0.5, workers: 2}",
            "resources.gpus_per_worker must be 0 or 1 where resources.workers is above 1; got 0.5 with 2 workers; "
            "correct it.",
        ),
        ("resources: 4", "resources must hold keys of its own; got 4; write its keys below it, indented."),
        ("storage: {path: 3}", "storage.path must be a path; got 3; give the path of a file or folder."),
        ("ensemble: {recipe: bsaeline}", "ensemble.recipe must be one of auto, baseline, "),
        ("ensemble: {recipe: my.yaml}", "ensemble.recipe must be an existing file; got "),
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
        ("{type: int, low: true, high: 4}", "search_space.x.low must be a whole number; got true; give a whole"),
        ("{type: uniform, low: 0, high: '4'}", "search_space.x.high must be a number; got '4'; give a number"),
        (
            "{type: categorical, choices: [[cls]]}",
            "search_space.x.choices.0 must be a text, a number, true, false or null; got a list; ",
        ),
        (
            "{type: categorical, choices: [{a: 1}]}",
            "search_space.x.choices.0 must be a text, a number, true, false or null; got a mapping with the keys a; ",
        ),
        (
            "{type: categorical, choices: [[1], 2]}",
            "search_space.x.choices.0 must be a text, a number, true, false or nu",
        ),
        ("{type: uniform, low: 0, high: 1, step: 0}", "search_space.x.step must be above 0; got 0; change the number."),
        (
            "{type: categorical, choices: [mean, cls, mean]}",
            "search_space.x.choices.2 must differ from the choices before it; got mean; take one of the two out.",
        ),
        (
            "{type: categorical, choices: [1, 1.0]}",
            "search_space.x.choices.1 must differ from the choices before it; got 1.0; take one of the two out.",
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
