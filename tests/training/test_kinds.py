"""fine_tune learns each kind of task, with every part of the loss, and a checkpoint says what the run said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import Tune

from tutti.data.encode import EncodedPart
from tutti.modeling.checkpoint import load_checkpoint
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task
from tutti.training.predict import predict
from tutti.training.tricks.soup import greedy_soup

NAMES, CLASSES = ("a", "b", "c"), 3
Parts = Mapping[str, Mapping[str, EncodedPart]]
TASKS = {
    "labels": Task("some", NAMES, False, "macro_f1", "csv", "labels"),
    "values": Task("some", NAMES, False, "pearson", "csv", "values"),
    "ordered": Task("some", NAMES, False, "quadratic_kappa", "csv", "ordered"),
}
CHANCE = {"labels": 0.6, "values": 0.0, "ordered": 0.0}
LEARN = {"num_train_epochs": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-2}


def labels_of(kind: str, classes: np.ndarray, *, missing: bool) -> np.ndarray:
    """Labels of a kind that the class of a row's first word determines; a fifth of them missing where that may be."""
    if kind == "ordered":
        return classes
    table = {"labels": [[1, 0, 1], [0, 1, 1], [0, 0, 0]], "values": [[1, 30, -1], [2, 10, -1], [3, 20, -2]]}[kind]
    labels = np.array(table, dtype=np.float32)[classes]
    if missing:
        labels[np.random.default_rng(0).random(labels.shape) < 0.2] = np.nan
    return labels


@pytest.fixture(scope="session")
def parts_of(make_part: Callable[..., EncodedPart]) -> Callable[[str], Parts]:
    def make(kind: str) -> Parts:
        train, validation = make_part(96, classes=CLASSES, seed=1), make_part(45, classes=CLASSES, seed=2)
        return {
            "some": {
                "train": replace(train, labels=labels_of(kind, train.labels, missing=True)),
                "validation": replace(validation, labels=labels_of(kind, validation.labels, missing=True)),
                "test": make_part(11, classes=CLASSES, seed=3, labelled=False),
            }
        }

    return make


@pytest.fixture(scope="module")
def tune_kind(tune: Tune, parts_of: Callable[[str], Parts]) -> Callable[..., Any]:
    def run(kind: str, folder: Path, **training: Any) -> Any:
        given = {"parts": parts_of(kind), **LEARN, **training}
        return tune(folder, tasks=(TASKS[kind],), **given)

    return run


@pytest.mark.parametrize(
    ("kind", "training"),
    [
        ("labels", {"class_weights": "balanced", "focal_gamma": 1.0, "adversarial": "fgm", "ema_decay": 0.8}),
        ("labels", {"rdrop_alpha": 1.0, "label_smoothing_factor": 0.1, "head_dropout_samples": 2}),
        ("values", {"rdrop_alpha": 0.5, "adversarial": "awp", "loss_balancing": "uncertainty", "swa_epochs": 2}),
        ("ordered", {"ordered_head": "softmax", "class_weights": "balanced", "ema_decay": 0.8}),
        ("ordered", {"ordered_head": "regression", "rdrop_alpha": 1.0, "loss_balancing": "uncertainty"}),
        ("ordered", {"ordered_head": "corn", "rdrop_alpha": 1.0, "focal_gamma": 1.0, "class_weights": "balanced"}),
    ],
    ids=str,
)
def test_each_kind_is_learnt_and_its_checkpoint_says_the_same(tune_kind, parts_of, tmp_path, kind, training):
    done, reports = tune_kind(kind, tmp_path, **training)
    task, parts = TASKS[kind], parts_of(kind)["some"]
    assert done.checkpoint.score == max(report.score for report in reports) > CHANCE[kind] + 0.3
    assert reports[-1].metrics["train_loss"] < reports[0].metrics["train_loss"]
    model, metadata = load_checkpoint(tmp_path / "best")
    assert metadata.tasks == (task,)
    for name in ("validation", "test"):
        predictions = done.predictions["some"][name]
        assert predictions.outputs.shape == (len(parts[name].ids), 3)
        assert predictions.kind_name == kind
        outputs = predict(model, parts[name], task="some", batch_size=8, device=torch.device("cpu"))
        np.testing.assert_allclose(predictions.outputs, outputs, atol=1e-5 * max(1, np.abs(outputs).max()))
    validation = done.predictions["some"]["validation"]
    assert Scorer.of(task).score(validation.labels, validation.outputs) == done.checkpoint.score


def test_probabilities_train_as_labels_and_those_between_make_a_student_less_sure(tune_kind, parts_of, tmp_path):
    parts = parts_of("labels")["some"]
    labels = parts["train"].labels
    sure = []
    for name, targets in {"hard": None, "certain": labels, "unsure": labels * 0.6 + 0.2}.items():
        given = {"some": {**parts, "train": replace(parts["train"], targets=targets)}}
        done, _ = tune_kind("labels", tmp_path / name, parts=given, class_weights="balanced", num_train_epochs=3)
        sure.append(done.predictions["some"]["test"].outputs)
    np.testing.assert_array_equal(sure[0], sure[1])
    assert np.abs(sure[2] - 0.5).mean() < np.abs(sure[0] - 0.5).mean()


def test_rows_of_which_no_label_is_known_teach_nothing(tune_kind, parts_of, tmp_path):
    for kind in ("labels", "values"):
        parts = parts_of(kind)["some"]
        unknown = replace(parts["train"], labels=parts["train"].labels.copy())
        unknown.labels[8:] = np.nan
        given = {"some": {**parts, "train": unknown}}
        done, reports = tune_kind(kind, tmp_path / kind, parts=given, num_train_epochs=1)
        assert np.isfinite(reports[-1].metrics["train_loss"])
        assert np.isfinite(done.predictions["some"]["test"].outputs).all()


def test_a_soup_of_checkpoints_of_several_labels_scores_as_it_says(tune_kind, parts_of, tmp_path):
    weights = {}
    for seed in (0, 1):
        tune_kind("labels", tmp_path / str(seed), seed=seed, num_train_epochs=3)
        weights[str(seed)] = tmp_path / str(seed) / "best"
    part, soup = parts_of("labels")["some"]["validation"], tmp_path / "soup"
    made = greedy_soup(
        [*weights],
        weights=weights,
        parts=lambda limit: {"some": part},
        folder=soup,
        threads=1,
        folds=None,
        training={},
    )
    model, metadata = load_checkpoint(soup)
    outputs = predict(model, part, task="some", batch_size=16, device=torch.device("cpu"))
    assert metadata.score == pytest.approx(Scorer.of(TASKS["labels"]).score(part.labels, outputs))
    assert metadata.score == [each.score for each in made.ingredients if each.kept][-1]
    scorer = Scorer.of(TASKS["labels"])
    for folder in (soup, weights["0"]):  # each decides alone as it was scored
        model, metadata = load_checkpoint(folder)
        outputs = predict(model, part, task="some", batch_size=16, device=torch.device("cpu"))
        decided = scorer.judged(outputs, np.array(metadata.decisions["some"]))
        assert metadata.score == pytest.approx(scorer(part.labels, decided))
