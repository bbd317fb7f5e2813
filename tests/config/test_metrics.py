"""The metrics of a study file: by name, or of one's own; and those that are reported beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tutti.config.cross_checks import report_faults
from tutti.config.load import dump_study, load_study, parse_study
from tutti.config.metric_facts import FACTS, needs_values
from tutti.config.paths import map_task_paths
from tutti.config.study import OwnMetric, TaskConfig

OWN = {"file": "own/metric.py", "function": "weighted_auc", "needs": "probabilities", "higher_is_better": True}
STUDY = """\
study: moods
backbone: .
tasks:
  mood:
    layout: table
    train: train.csv
    metric: {metric}
    report: {report}
search: {trials: 1}
"""
OWN_TEXT = "{file: own/metric.py, function: weighted_auc, needs: probabilities, higher_is_better: true}"


@pytest.fixture
def load(tmp_path: Path) -> Any:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "metric.py").write_text("")
    (tmp_path / "train.csv").write_text("")

    def loaded(metric: str, report: str = "[]") -> TaskConfig:
        (tmp_path / "study.yaml").write_text(STUDY.replace("{metric}", metric).replace("{report}", report))
        study = load_study(tmp_path / "study.yaml")
        assert parse_study(dump_study(study)) == study
        return study.tasks["mood"]

    return loaded


@pytest.mark.parametrize("name", FACTS)
def test_each_metric_of_the_registry_may_decide_and_be_reported(name: str) -> None:
    task = TaskConfig.model_validate({"layout": "table", "train": "a", "metric": name, "report": [name]})
    assert (task.metric, task.metric_name, task.report) == (name, name, (name,))


def test_an_own_metric_is_found_beside_the_study_file_and_called_by_its_function(load: Any, tmp_path: Path) -> None:
    task = load(OWN_TEXT, "[log_loss]")
    assert task.metric == OwnMetric.model_validate(OWN | {"file": tmp_path / "own" / "metric.py"})
    assert task.metric_name == "weighted_auc"
    assert task.report == ("log_loss",)


def test_the_file_of_an_own_metric_is_one_of_the_task_s_files() -> None:
    seen = {}
    map_task_paths({"layout": "hub", "metric": OWN}, lambda key, path: seen.setdefault(key, path))
    assert seen == {"metric.file": "own/metric.py"}


def test_the_sample_submission_is_one_of_the_task_s_files() -> None:
    seen = {}
    map_task_paths(
        {"layout": "hub", "submission": {"like": "sample.csv"}}, lambda key, path: seen.setdefault(key, path)
    )
    assert seen == {"submission.like": "sample.csv"}


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("auc", "tasks.mood.metric must be the name of a metric, or a mapping .*; got 'auc'; did you mean 'roc_auc'?"),
        (
            "meteor",
            "got 'meteor'; choose one of macro_f1, micro_f1, .*, tag_macro_f1, or name a file with one of your own",
        ),
        ("3", "tasks.mood.metric must be a text; got 3"),
        (
            OWN_TEXT.replace("metric.py", "metrics.py"),
            "mood.metric.file must be an existing file; .* 'metric.py'",
        ),
        (
            OWN_TEXT.replace("probabilities", "logits"),
            "metric.needs must be one of decisions, probabilities, values, texts, ",
        ),
        (OWN_TEXT.replace(", higher_is_better: true", ""), "metric.higher_is_better must be given; got nothing; add"),
        (
            OWN_TEXT.replace("weighted_auc", "roc_auc"),
            "metric.function must have a name that no metric of Tutti",
        ),
        (OWN_TEXT.replace("function", "name"), "tasks.mood.metric.name must be a known key; got an unknown one"),
    ],
)
def test_a_wrong_metric_is_told_with_what_is_meant(load: Any, metric: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        load(metric)


def test_an_unknown_metric_is_none_to_report() -> None:
    with pytest.raises(ValidationError, match="name of a metric"):
        TaskConfig.model_validate({"layout": "table", "train": "a", "report": ["qwk"]})


def test_what_no_kind_of_task_has_together_with_the_metric_is_not_reported() -> None:
    raw = {
        "tasks": {"a": {"metric": "macro_f1", "report": ["log_loss", "rmse"]}, "b": {"metric": OWN, "report": ["mae"]}}
    }
    first, second = (str(fault) for fault in report_faults(raw, what=str))
    assert first.startswith("tasks.a.report.1 must be a metric for the kind of task that the metric of the task is for")
    assert "got 'rmse', which is for one number per row or several numbers per row; take it out" in first
    assert second.startswith("tasks.b.report.0 must")


def test_of_an_own_metric_what_it_needs_tells_whether_its_task_has_numbers() -> None:
    assert needs_values(OWN | {"needs": "values"})
    assert needs_values("mcrmse")
    assert not any(map(needs_values, [OWN, "accuracy", "no_metric", None, 3, ["macro_f1"]]))
