"""Writes the demo's data: three generated tasks in the competition layout, true test labels, study file and recipe."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tutti.demo.texts import Row, emotion_row, inference_row, topic_row
from tutti.files import whole_folder

SEED_FILE = "seed.txt"  # stores the seed beside the data


# By task: what draws a row, and the number of training rows.
_TASKS: dict[str, tuple[Callable[[random.Random], Row], int]] = {
    "inference": (inference_row, 1_900),
    "emotion": (emotion_row, 1_100),
    "topic": (topic_row, 1_000),
}
_TEST = _UNLABELED = 800  # rows of each task

_STUDY = """\
# Made by `tutti demo`: three small tasks, generated, on a tiny encoder with random weights.
study: demo
backbone: backbone/

tasks:
  inference:
    layout: competition  # tab-separated, no header: id, text[, text_b][, label]
    pair: true
    train: inference_train.csv
    test: inference_test.csv
    unlabeled: inference_unlabeled.csv
  emotion:
    layout: competition
    train: emotion_train.csv
    test: emotion_test.csv
    unlabeled: emotion_unlabeled.csv
  topic:
    layout: competition
    train: topic_train.csv
    test: topic_test.csv
    unlabeled: topic_unlabeled.csv

training:
  num_train_epochs: 6
  per_device_eval_batch_size: 64
  max_length: 48

search_space: minute

search:
  trials: 8
  scheduler: asha
  grace_epochs: 3  # a tiny encoder's earlier scores say little

resources:
  workers: 1
  cpus_per_worker: 1
  concurrent_trials: 2

ensemble:
  recipe: recipe.yaml
"""

_RECIPE = """\
# The demo's recipe: members and method are those of the recipe `auto`. A tiny encoder's probabilities rarely reach
# 0.99, the usual threshold, so pseudo-labels go to the most confident rows of each class, with the class shares of
# the training rows where possible.
members: {top: 5, by: task, diversity: 0.002}
method: auto
decision: offsets
pseudo_labels: {select: prior, share: 0.3, max_drift: null}
"""


def write_demo_data(folder: Path, *, seed: int = 0) -> Path:
    """Writes the demo's task files to ``folder``, replacing its content, and returns the path of the study file.

    For each task: ``<task>_train.csv``, ``<task>_test.csv`` without labels, ``<task>_unlabeled.csv``, and
    ``truth/<task>.csv``, the test rows with their labels. ``seed.txt`` stores the seed. The texts of a task's rows are
    all different. The study's backbone, ``backbone/``, is not made here.

    Args:
        seed: the same seed gives the same bytes.

    Raises:
        StorageError: if the folder cannot be written.
    """
    with whole_folder(folder) as new_folder:
        for task, (draw, count) in _TASKS.items():
            rng = random.Random(f"{task}-{seed}")
            rows = _distinct_rows(draw, rng, count=count + _TEST + _UNLABELED)
            train, test, unlabeled = rows[:count], rows[count : count + _TEST], rows[count + _TEST :]
            _write(new_folder / f"{task}_train.csv", train)
            _write(new_folder / f"{task}_test.csv", [row[:-1] for row in test])
            _write(new_folder / f"{task}_unlabeled.csv", [row[:-1] for row in unlabeled])
            _write(new_folder / "truth" / f"{task}.csv", test)
        (new_folder / SEED_FILE).write_text(f"{seed}\n", encoding="utf-8")
        (new_folder / "study.yaml").write_text(_STUDY, encoding="utf-8")
        (new_folder / "recipe.yaml").write_text(_RECIPE, encoding="utf-8")
    return folder / "study.yaml"


def _distinct_rows(draw: Callable[[random.Random], Row], rng: random.Random, *, count: int) -> list[Row]:
    """Rows with different texts, so that no test row occurs in the training rows."""
    rows: dict[Row, Row] = {}
    while len(rows) < count:
        row = draw(rng)
        rows.setdefault(row[:-1], row)
    return list(rows.values())


def _write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = ("\t".join((str(number), *row)) for number, row in enumerate(rows))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
