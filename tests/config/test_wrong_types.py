"""Whatever stands at a key of a study file, the file is loaded or each fault in it is told."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tutti.config.folder import StudyFolder
from tutti.config.load import dump_study, load_study
from tutti.errors import ConfigError

Place = tuple[str | int, ...]

STUDY: dict[str, Any] = {
    "study": "little",
    "backbone": "backbone/",
    "tasks": {
        "topic": {
            "layout": "competition",
            "train": "data/topic_train.csv",
            "test": {"first": "data/topic_test.csv"},
            "extra_train": [{"path": "data/topic_train.csv", "weight": 0.5, "labels": "hard"}],
            "pair": False,
            "metric": "macro_f1",
            "cleaning": {"emoji": "zh"},
        },
        "names": {"layout": "hub", "dataset": "data", "subset": "all", "train": "train", "columns": {"text": "a"}},
        "CoLA": {"layout": "glue", "glue": "CoLA", "train": "data/topic_train.csv"},
    },
    "split": {"validation": 0.25, "seed": 1},
    "training": {
        "num_train_epochs": 2,
        "task_sampling": "weights",
        "sampling_weights": {"topic": 2},
        "stages": [{"learning_rate": 1e-4}, {"label_smoothing_factor": 0.1}],
    },
    "search_space": {
        "adapter": {"type": "categorical", "choices": [None, "lora"]},
        "lora_r": {"type": "int", "low": 4, "high": 16, "step": 4, "when": {"adapter": "lora"}},
        "stages.0.learning_rate": {"type": "log_uniform", "low": 1e-5, "high": 1e-3},
    },
    "search": {
        "trials": 4,
        "objectives": ["score"],
        "sampler": "tpe",
        "enqueue": [{"adapter": "lora", "lora_r": 8}],
        "warm_start": ["older"],
        "scheduler": "asha",
        "target_score": 0.9,
        "patience": 3,
        "max_hours": 1,
    },
    "resources": {"workers": 1, "gpus_per_worker": 0, "isolation": "auto"},
    "storage": {"path": "studies", "database": "postgresql://me@host/optuna", "max_gigabytes": 1},
    "tracking": {"uri": "http://host:5000"},
    "ensemble": {"recipe": "auto"},
}


def _places(node: Any, place: Place = ()) -> Iterator[Place]:
    """The place of every value below the root, of mappings and lists too."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*place, key)
        yield from _places(value, (*place, key))


def _load(path: Path, study: dict[str, Any]) -> list[str]:
    """The faults of a study file with this content."""
    path.write_text(json.dumps(study), encoding="utf-8")  # is YAML too
    try:
        load_study(path)
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


@pytest.mark.parametrize("value", [5, True, [], {}], ids=str)
def test_a_value_of_any_type_at_any_key_is_loaded_or_told(study: Path, value: Any) -> None:
    older = StudyFolder(study.parent / "older")
    older.path.mkdir()
    study.write_text(json.dumps({**STUDY, "search": {}}), encoding="utf-8")
    older.study_file.write_text(dump_study(load_study(study)), encoding="utf-8")
    assert _load(study, STUDY) == []
    for *outer, key in _places(STUDY):
        changed = copy.deepcopy(STUDY)
        node: Any = changed
        for name in outer:
            node = node[name]
        node[key] = copy.deepcopy(value)
        try:
            _load(study, changed)
        except Exception as error:
            raise AssertionError(f"{value} at {'.'.join(map(str, [*outer, key]))}") from error
