"""Checks of the older studies that a study file names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study, load_study
from tutti.errors import ConfigError

Changed = Callable[..., Path]
INLINE = "search_space:\n  learning_rate: {type: log_uniform, low: 1e-5, high: 1e-3}\n"


def faults(path: Path, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load_study(path, **options)
    return [str(fault).removeprefix(f"{path}: ") for fault in raised.value.faults]


@pytest.fixture
def older(study: Path, tmp_path: Path) -> Path:
    """An earlier study of the same task, in the study file's folder of studies."""
    folder = tmp_path / "runs" / "older"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(dump_study(load_study(study)), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["older", "runs/older", "./runs/older"])
def test_an_older_study_is_found_by_name_beside_this_one_or_by_folder(changed: Changed, older: Path, name: str) -> None:
    path = changed(add=f"storage: {{path: runs}}\nsearch: {{warm_start: [{name}]}}\n")
    assert load_study(path).search.warm_start == (str(older),)


def test_an_older_study_that_is_not_there_is_told(changed: Changed, older: Path) -> None:
    path = changed(add="storage: {path: runs}\nsearch: {warm_start: [oldr, 3]}\n")
    assert faults(path) == [
        f"search.warm_start.0 must be the folder of a study, or the name of one in {older.parent}; got an unknown "
        "name (studies there: older); did you mean 'older'? Correct the name.",
        "search.warm_start.1 must be a text; got 3; put it in quotes if it is meant as a text.",
    ]


def test_an_older_study_that_is_gone_is_not_missed_once_the_study_has_begun(changed: Changed, older: Path) -> None:
    path = changed(add="storage: {path: runs}\nsearch: {warm_start: [gone]}\n")
    own = StudyFolder(older.parent / load_study(path, overrides=["search.warm_start=[older]"]).study)
    own.path.mkdir()
    own.study_file.write_text("{}")
    assert len(faults(path)) == 1
    own.optuna_file.touch()
    assert load_study(path).search.warm_start == ("gone",)


@pytest.mark.parametrize("content", ["{}", "of other tasks"])
def test_an_older_study_that_is_another_now_is_not_looked_at_once_the_study_has_begun(changed, older, content):
    path = changed(add="storage: {path: runs}\nsearch: {warm_start: [older]}\n")
    own = StudyFolder(older.parent / load_study(path).study)
    text = (older / "study.json").read_text(encoding="utf-8")
    (older / "study.json").write_text(content if content == "{}" else text.replace("macro_f1", "accuracy"))
    assert faults(path)
    own.path.mkdir()
    own.study_file.write_text("{}")
    own.optuna_file.touch()
    assert faults(path)  # a start that was killed may have copied no trial
    own.trials.joinpath("t0000").mkdir(parents=True)
    assert load_study(path).search.warm_start == (str(older),)


def test_an_older_study_of_other_tasks_or_metrics_is_told(changed: Changed, older: Path) -> None:
    add = "storage: {path: runs}\nsearch: {warm_start: [older]}\n"
    path = changed("layout: competition", "layout: competition\n    metric: accuracy", add=add)
    assert faults(path) == [
        "search.warm_start.0 must have this study's tasks and metrics, topic (accuracy); got topic (macro_f1); name a "
        "study that has them, or take it out."
    ]


def test_an_older_study_that_weighs_the_tasks_otherwise_is_told(changed: Changed, older: Path) -> None:
    """The scores of its trials are others then; the sum of all weights does not matter."""
    two = "  topic:\n    layout: competition\n    train: data/topic_train.csv\n"
    text = (older / "study.json").read_text(encoding="utf-8")
    both = json.loads(text)
    both["tasks"]["tone"] = both["tasks"]["topic"]
    (older / "study.json").write_text(json.dumps(both), encoding="utf-8")
    add = "storage: {path: runs}\nsearch: {warm_start: [older]}\nobjective_weights: {topic: 2}\n"
    path = changed("tasks:\n", f"tasks:\n{two.replace('topic:', 'tone:')}", add=add)
    assert faults(path) == [
        "search.warm_start.0 must have this study's objective_weights, tone 1, topic 2; got topic 1, tone 1; "
        "name a study that has them, or take it out."
    ]
    assert load_study(path, overrides=["objective_weights.tone=2"]).weights == {"tone": 2.0, "topic": 2.0}


def test_an_older_study_serves_only_objectives_that_it_has_measured(changed: Changed, older: Path) -> None:
    add = "storage: {path: runs}\nsearch: {warm_start: [older], objectives: [score, gain, disk]}\n"
    assert faults(changed(add=add)) == [
        "search.warm_start must be left out with the objective gain: what a trial added to another study's ensemble "
        "says nothing here; got an older study; take it out, or the objective gain.",
        "search.warm_start.0 must have measured this study's objectives, score, gain, disk; got score; take it out, or "
        "the objectives that it has not.",
    ]
