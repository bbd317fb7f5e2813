"""Every metric against scikit-learn and scipy, on random rows; those of entities are in test_entities.py."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from tutti.tasks.metrics import METRICS

Reference = Callable[[np.ndarray, np.ndarray], Any]
CASES = 60

F_SCORES = {
    f"{average}_{name}".removeprefix("binary_"): (average, beta)
    for name, beta in {"f0.5": 0.5, "f1": 1, "f2": 2}.items()
    for average in ("macro", "micro", "weighted", "samples", "binary")
}


def f_score(metric: str) -> Reference:
    average, beta = F_SCORES[metric]
    return lambda labels, decided: sk.fbeta_score(labels, decided, beta=beta, average=average, zero_division=0)


def map_at(k: int) -> Reference:
    """MAP@k by its definition, row by row."""

    def reference(labels: np.ndarray, likely: np.ndarray) -> float:
        scores = []
        for row, order in zip(labels, np.argsort(-likely, axis=1), strict=True):
            true = {int(row)} if labels.ndim == 1 else {*np.flatnonzero(row).tolist()}
            hits = [column in true for column in order[:k]]
            if true:
                precisions = [sum(hits[: n + 1]) / (n + 1) for n, hit in enumerate(hits) if hit]
                scores.append(sum(precisions) / min(len(true), k))
        return float(np.mean(scores)) if scores else np.nan

    return reference


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=int)[labels]


def columns_of(labels: np.ndarray, likely: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Classes as 0/1 columns; of two classes only the second one's."""
    if labels.ndim == 2:
        return labels, likely
    first = 1 if likely.shape[1] == 2 else 0
    return one_hot(labels, likely.shape[1])[:, first:], likely[:, first:]


def of_curves(function: Callable[..., Any]) -> Reference:
    """The mean of a metric of binary columns over those with both a 0 and a 1."""

    def reference(labels: np.ndarray, likely: np.ndarray) -> float:
        labels, likely = columns_of(labels, likely)
        scores = [function(labels[:, n], likely[:, n]) for n in range(labels.shape[1]) if len({*labels[:, n]}) == 2]
        return float(np.mean(scores)) if scores else np.nan

    return reference


def micro_roc_auc(labels: np.ndarray, likely: np.ndarray) -> float:
    labels, likely = columns_of(labels, likely)
    both = len({*labels.ravel()}) == 2
    return float(sk.roc_auc_score(labels.ravel(), likely.ravel())) if both else np.nan


def by_column(function: Reference) -> Reference:
    """The mean of a metric over the columns; the metric itself without columns."""

    def reference(labels: np.ndarray, predicted: np.ndarray) -> float:
        if labels.ndim == 1:
            return float(function(labels, predicted))
        return float(np.mean([function(labels[:, n], predicted[:, n]) for n in range(labels.shape[1])]))

    return reference


def log_loss(labels: np.ndarray, likely: np.ndarray) -> float:
    if labels.ndim == 1:
        return float(sk.log_loss(labels, likely, labels=range(likely.shape[1])))
    return float(np.mean([sk.log_loss(labels[:, n], likely[:, n], labels=[0, 1]) for n in range(labels.shape[1])]))


def brier(labels: np.ndarray, likely: np.ndarray) -> float:
    if labels.ndim == 2:
        return float(np.square(labels - likely).mean())
    return float(sk.brier_score_loss(labels, likely, labels=range(likely.shape[1])))


def kappa(weights: str) -> Reference:
    """With all classes: without ``labels`` scikit-learn counts distances among those that occur."""

    def reference(labels: np.ndarray, decided: np.ndarray) -> Any:
        classes = range(max(*labels, *decided) + 1)
        return sk.cohen_kappa_score(labels, decided, labels=classes, weights=weights)

    return reference


def top_k(k: int) -> Reference:
    return lambda labels, likely: sk.top_k_accuracy_score(labels, likely, k=k, labels=range(likely.shape[1]))


DECISIONS: dict[str, Reference] = {
    **{name: f_score(name) for name in F_SCORES},
    "accuracy": sk.accuracy_score,
    "balanced_accuracy": sk.balanced_accuracy_score,
    "matthews": sk.matthews_corrcoef,
    "cohen_kappa": sk.cohen_kappa_score,
    "linear_kappa": kappa("linear"),
    "quadratic_kappa": kappa("quadratic"),
    "subset_accuracy": sk.accuracy_score,
    "hamming_loss": sk.hamming_loss,
}
PROBABILITIES: dict[str, Reference] = {
    "log_loss": log_loss,
    "brier": brier,
    "roc_auc": of_curves(sk.roc_auc_score),
    "micro_roc_auc": micro_roc_auc,
    "average_precision": of_curves(sk.average_precision_score),
    **{f"map_at_{k}": map_at(k) for k in (3, 5, 10)},
    "mrr": lambda labels, likely: sk.label_ranking_average_precision_score(one_hot(labels, likely.shape[1]), likely),
    **{f"top_{k}_accuracy": top_k(k) for k in (3, 5)},
}
VALUES: dict[str, Reference] = {
    "pearson": lambda labels, values: stats.pearsonr(labels, values).statistic,
    "spearman": lambda labels, values: stats.spearmanr(labels, values).statistic,
    "kendall": lambda labels, values: stats.kendalltau(labels, values).statistic,
    "pearson_spearman": lambda labels, values: (
        (stats.pearsonr(labels, values).statistic + stats.spearmanr(labels, values).statistic) / 2
    ),
    "rmse": sk.root_mean_squared_error,
    "mae": sk.mean_absolute_error,
    "r2": sk.r2_score,
    "neg_mse": lambda labels, values: -sk.mean_squared_error(labels, values),
    "mcrmse": sk.root_mean_squared_error,
}


def random_rows(metric: str, kind: str) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Labels, predictions of all sorts (good, poor, with ties), and the number of outputs."""
    facts = METRICS[metric]
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        rows, outputs = int(rng.integers(5, 60)), int(rng.integers(facts.fewest_classes, 9))
        outputs = facts.most_classes or outputs
        if kind in ("value", "values"):
            shape = (rows, outputs) if kind == "values" else (rows,)
            labels = rng.normal(size=shape).round(1)
            yield labels, (labels * rng.choice([0, 1]) + rng.normal(size=shape)).round(2), outputs
        elif kind == "labels":
            labels = (rng.random((rows, outputs)) < rng.uniform(0.05, 0.9)).astype(np.float32)
            likely = (0.5 * labels + rng.random((rows, outputs))) / 1.5
            likely = likely.round(1) if seed % 2 and not metric.startswith("map") else likely
            yield labels, (likely > 0.5).astype(np.int8) if facts.needs == "decisions" else likely, outputs
        else:
            labels = rng.integers(outputs, size=rows)
            likely = one_hot(labels, outputs) * rng.choice([0, 1]) + rng.random((rows, outputs))
            likely /= likely.sum(axis=1, keepdims=True)
            yield labels, likely.argmax(axis=1) if facts.needs == "decisions" else likely, outputs


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        (name, kind)
        for name, metric in METRICS.items()
        for kind in metric.kinds
        if kind not in ("preference", "text", "tokens", "overlapping", "span", "tags")
        and (kind != "ordered" or "kappa" in name)
    ],
)
def test_a_metric_is_what_the_libraries_compute(metric: str, kind: str) -> None:
    reference = (DECISIONS | PROBABILITIES | VALUES)[metric]
    if kind in ("value", "values"):
        reference = by_column(reference)
    for labels, predicted, outputs in random_rows(metric, kind):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns of classes that do not occur
            expected = reference(labels, predicted)
        got = METRICS[metric].raw(METRICS[metric].score(labels, predicted, outputs=outputs))
        assert got == pytest.approx(expected, abs=1e-9, nan_ok=True)
