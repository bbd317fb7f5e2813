"""A task has the keys of its own layout, and those that the layout needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.config.load import dump_study, load_study

Changed = Callable[..., Path]
Faults = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "layout: competition",
            "layout: competition\n    columns: {text: sentence}",
            "tasks.topic.columns must be used with the layout table or hub or instructions or tokens only",
        ),
        (
            "layout: competition",
            "layout: competition\n    template: '{a} {b}'",
            "tasks.topic.template must be used with the layout table or hub only; got '{a} {b}' with the layout",
        ),
        (
            "layout: competition",
            "layout: table\n    columns: {text_b: a}\n    template_b: '{b}'",
            "tasks.topic.columns.text_b must be left out beside `template_b`, which says what the text is; got 'a'",
        ),
        ("layout: competition", "layout: glue\n    subset: a", "tasks.topic.subset must be used with the layout"),
    ],
)
def test_a_key_of_another_layout_and_one_that_the_layout_needs_are_told(faults, changed, old, new, sentence):
    path = changed(old, new, add="search: {trials: four}\n")
    messages = faults(path)
    assert any(text.startswith(f"{path}: {sentence}") for text in messages), messages
    assert any(text.startswith(f"{path}: search.trials") for text in messages), messages


@pytest.mark.parametrize(
    "lines",
    [
        "layout: glue\n    glue: CoLA\n    pair: false",
        "layout: glue\n    glue: STS-B\n    metric: pearson_spearman",
        "layout: glue\n    glue: QQP\n    cleaning: {broken_rows: true}",
        "layout: table\n    columns: {text: a}\n    dataset: null",
        "layout: table\n    columns: {id: key, label: y}\n    template: '{a} [SEP] {b}'\n    template_b: '{c}'",
        "layout: table\n    columns: {text: a}\n    template_b: '{b} {c}'",
        "layout: table\n    columns: {text: a, text_b: b}\n    template: '{a} {c} {b}'",
    ],
)
def test_keys_of_the_layout_and_defaults_of_others_are_taken(changed: Changed, lines: str) -> None:
    config = load_study(changed("layout: competition", lines))
    written = changed()
    written.write_text(dump_study(config), encoding="utf-8")
    assert load_study(written) == config  # with every default of every layout written out
