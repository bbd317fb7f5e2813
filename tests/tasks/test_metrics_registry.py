"""The facts of metrics, which tasks they fit, and missing labels."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tutti.config.metric_facts import nearest_metric
from tutti.errors import ConfigError
from tutti.tasks.kinds.entities import repaired
from tutti.tasks.metrics import METRICS, Metric, check_fits, fits, metrics_to_log

DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
LABELS = np.array([[1, 0, 1], [0, 1, np.nan], [1, 1, np.nan], [0, 0, np.nan]], dtype=np.float32)
LIKELY = np.array([[0.9, 0.2, 0.4], [0.3, 0.6, 0.9], [0.2, 0.7, 0.1], [0.1, 0.8, 0.5]], dtype=np.float32)
KNOWN = (LABELS[:, :2], LIKELY[:, :2])


def predicted(metric: Metric, likely: np.ndarray) -> np.ndarray:
    return (likely > 0.5).astype(np.int8) if metric.needs == "decisions" else likely


def of_kind(kind: str) -> list[str]:
    return [name for name, metric in METRICS.items() if kind in metric.kinds]


def test_metrics_travel_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(dict(METRICS))).keys() == METRICS.keys()


@pytest.mark.parametrize(
    "name", [name for name, own in METRICS.items() if own.needs != "texts" and "text" not in own.kinds]
)
def test_the_best_and_the_worst_score_are_those_of_the_facts(name: str) -> None:
    metric = METRICS[name]
    count, rows = metric.most_classes or max(4, metric.fewest_classes), 12
    kind = "classes" if fits(metric, "classes") else metric.kinds[0]
    if kind in ("value", "values"):
        labels = np.arange(rows * 2.0).reshape(rows, 2) if kind == "values" else np.arange(rows * 1.0)
        worst = -labels
    elif kind == "preference":
        labels, worst = np.zeros(rows, dtype=np.int64), np.tile([0.0, 1.0], (rows, 1))
    elif kind == "tokens":
        count, labels = 5, repaired(np.arange(rows * 7).reshape(rows, 7) % 5)
        worst = np.where(labels > 0, 0, 1)
    else:
        labels = np.arange(rows) % count if kind != "labels" else (np.arange(rows * 3).reshape(rows, 3) % 2) * 1.0
        worst = (labels + 1) % count if kind != "labels" else 1 - labels
    perfect = labels if kind != "preference" else -worst
    if metric.needs == "probabilities" and kind == "classes":
        perfect, worst = np.eye(count)[labels], np.eye(count)[worst]
    best = metric.score(labels, perfect, outputs=count)
    assert best == pytest.approx(metric.best if metric.best is not None else metric.highest)
    low = metric.raw(metric.score(labels, worst, outputs=count))
    assert low >= (-np.inf if metric.lowest is None else metric.lowest)
    assert low <= (np.inf if metric.highest is None else metric.highest)
    assert metric.score(labels, worst, outputs=count) < best


@pytest.mark.parametrize("metric", of_kind("labels"))
def test_missing_labels_are_no_rows_of_their_column(metric: str) -> None:
    entry = METRICS[metric]
    with_missing = entry.score(LABELS[:, 1:], predicted(entry, LIKELY[:, 1:]), outputs=2)
    assert np.isfinite(with_missing)
    other = LIKELY.copy()
    other[1:, 2] = 0.99  # only where labels are missing
    assert entry.score(LABELS[:, 1:], predicted(entry, other[:, 1:]), outputs=2) == with_missing
    unlabelled = np.concatenate([KNOWN[0], np.full((4, 1), np.nan, dtype=np.float32)], axis=1)
    assert entry.score(unlabelled, predicted(entry, LIKELY), outputs=3) == pytest.approx(
        entry.score(KNOWN[0], predicted(entry, KNOWN[1]), outputs=2)
    )


@pytest.mark.parametrize("metric", of_kind("values"))
def test_a_metric_of_several_values_is_the_mean_over_their_columns(metric: str) -> None:
    rng = np.random.default_rng(0)
    labels, values = rng.normal(size=(2, 20, 3))
    labels[:12, 1] = np.nan
    labels[:, 2] = np.nan
    single = METRICS["rmse" if metric == "mcrmse" else metric]
    expected = [
        single.score(labels[:, 0], values[:, 0], outputs=1),
        single.score(labels[12:, 1], values[12:, 1], outputs=1),
    ]
    assert METRICS[metric].score(labels, values, outputs=3) == pytest.approx(np.mean(expected))
    assert np.isnan(METRICS[metric].score(np.full((20, 3), np.nan), values, outputs=3))


@pytest.mark.parametrize("metric", ["roc_auc", "average_precision"])
def test_columns_without_both_a_zero_and_a_one_are_left_out_of_curves(metric: str) -> None:
    labels, likely = LABELS.copy(), LIKELY
    labels[:, 1] = 1
    only_first = METRICS[metric].score(labels[:, :1], likely[:, :1], outputs=1)
    assert METRICS[metric].score(labels, likely, outputs=3) == only_first
    assert np.isnan(METRICS[metric].score(np.ones_like(likely), likely, outputs=3))


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if metric.scale_free])
def test_a_scale_free_metric_stays_the_same_if_all_predictions_are_rescaled(metric: str) -> None:
    entry, rng = METRICS[metric], np.random.default_rng(1)
    if entry.needs == "values":
        labels, numbers = rng.normal(size=(2, 30))
        outputs = 1
    else:
        labels, numbers, outputs = rng.integers(7, size=30), rng.dirichlet(np.ones(7), size=30), 7
    before = entry.score(labels, numbers, outputs=outputs)
    assert entry.score(labels, numbers / 2 + 0.1, outputs=outputs) == pytest.approx(before)


@pytest.mark.parametrize("metric", [name for name, metric in METRICS.items() if not metric.higher_is_better])
def test_what_is_better_lower_is_negated_and_can_be_turned_back(metric: str) -> None:
    entry = METRICS[metric]
    assert entry.raw(-0.25) == 0.25
    assert entry.raw(0.25) == -0.25
    assert METRICS["accuracy"].raw(0.25) == 0.25


@pytest.mark.parametrize(
    ("metric", "kind", "outputs", "message"),
    [
        ("f2", "ordered", 4, "metric for 4 classes; got 'f2', which is for two; use macro_f2 instead."),
        ("top_3_accuracy", "classes", 3, "for 3 classes; got 'top_3_accuracy', which is for 4 or more; use accuracy"),
        (
            "accuracy",
            "labels",
            3,
            "several labels per row; got 'accuracy', which is for classes or ordered classes or a row's",
        ),
        (
            "quadratic_kappa",
            "classes",
            3,
            "set `ordered: true` where the classes have an order, or use one of macro",
        ),
        ("mcrmse", "value", 1, "for one number per row; .* use one of pearson, spearman, kendall"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_with_those_that_do(metric, kind, outputs, message):
    with pytest.raises(ConfigError, match=f"^tasks.a.metric must be a .*{message}"):
        check_fits(METRICS[metric], kind, outputs=outputs, what="tasks.a.metric")


def test_what_is_logged_beside_the_deciding_metric_fits_its_kind() -> None:
    for kind in ("classes", "ordered", "labels", "value", "values"):
        assert metrics_to_log(kind)
        for name in metrics_to_log(kind):
            check_fits(METRICS[name], kind, outputs=2, what="it")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("auc", "roc_auc"),
        ("ROC-AUC", "roc_auc"),
        ("micro-f1", "micro_f1"),
        ("f1_macro", "macro_f1"),
        ("map@5", "map_at_5"),
        ("accurracy", "accuracy"),
    ],
)
def test_an_unknown_metric_gets_the_one_that_is_meant(written: str, meant: str) -> None:
    assert nearest_metric(written) == f"did you mean {meant!r}? Correct the name"


def test_a_name_like_no_other_gets_all_metrics() -> None:
    assert nearest_metric("meteor") == f"choose one of {', '.join(METRICS)}, or name a file with one of your own"


def test_the_table_in_the_documentation_is_the_registry() -> None:
    rows = []
    for metric in METRICS.values():
        low, high = metric.lowest, metric.highest
        span = f"at most {high:g}" if low is None else f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
        better = "higher" if metric.higher_is_better else "lower"
        rows.append(f"| `{metric.name}` | {metric.needs} | {', '.join(metric.kinds)} | {span} | {better} |")
    table = "\n".join(rows)
    assert table in DOCS.read_text(encoding="utf8"), f"docs/tasks.md lacks this table:\n{table}"
