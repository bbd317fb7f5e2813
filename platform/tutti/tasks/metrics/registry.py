"""The registry of metrics: each with its facts and its function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol, get_args

import numpy as np

from tutti.config.metric_facts import FACTS, Facts, classes_fault, kind_fault
from tutti.errors import ConfigError
from tutti.tasks.metrics import decisions, probabilities, values

_BETAS = {"f0.5": 0.5, "f1": 1.0, "f2": 2.0}


class Function(Protocol):
    """What computes a metric: the number that users know by its name."""

    def __call__(self, labels: np.ndarray, predicted: np.ndarray, /, *, outputs: int) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Metric(Facts):
    """A metric: its facts, and the function that computes it."""

    function: Function

    def score(self, labels: np.ndarray, predicted: np.ndarray, *, outputs: int) -> float:
        """The score, of which higher is always better: the metric, negated where lower is better.

        It is NaN where no row can be scored.

        Args:
            labels: ``(rows,)`` class indices or values, or ``(rows, k)`` with NaN for missing labels.
            predicted: what the metric ``needs``: decisions like the labels, probabilities ``(rows, outputs)``, or
                values like the labels.
            outputs: number of classes, labels or values per row.

        Raises:
            ConfigError: where a metric of the user's own fails.
        """
        return self.raw(self.function(labels, predicted, outputs=outputs))

    def raw(self, score: float) -> float:
        """The number that users know by the metric's name, from a score (or the other way round)."""
        return score if self.higher_is_better else 0.0 - score  # not -0.0 for 0


def _functions() -> Iterator[tuple[str, Function]]:
    yield "accuracy", decisions.accuracy
    yield "balanced_accuracy", decisions.balanced_accuracy
    yield "matthews", decisions.matthews
    for power, kappa in enumerate(("cohen_kappa", "linear_kappa", "quadratic_kappa")):
        yield kappa, partial(decisions.kappa, power=power)
    for name, beta in _BETAS.items():
        yield name, partial(decisions.f_score, beta=beta, average="binary")
        for average in get_args(decisions.Average):
            if average != "binary":
                yield f"{average}_{name}", partial(decisions.f_score, beta=beta, average=average)
    yield "subset_accuracy", decisions.subset_accuracy
    yield "hamming_loss", decisions.hamming_loss
    yield "log_loss", probabilities.log_loss
    yield "brier", probabilities.brier
    yield "roc_auc", probabilities.roc_auc
    yield "micro_roc_auc", probabilities.micro_roc_auc
    yield "average_precision", probabilities.average_precision
    for k in (3, 5, 10):
        yield f"map_at_{k}", partial(probabilities.mean_average_precision_at, k=k)
    for k in (3, 5):
        yield f"top_{k}_accuracy", partial(probabilities.top_k_accuracy, k=k)
    columns = {
        "pearson": values.pearson,
        "spearman": values.spearman,
        "kendall": values.kendall,
        "pearson_spearman": values.pearson_spearman,
        "rmse": values.rmse,
        "mae": values.mae,
        "r2": values.r2,
        "neg_mse": values.neg_mse,
        "mcrmse": values.rmse,  # of several columns their mean, as of all metrics of values
    }
    for name, column in columns.items():
        yield name, partial(values.mean_over_columns, column=column)


def _registry() -> dict[str, Metric]:
    functions = dict(_functions())
    return {name: Metric(**vars(facts), function=functions[name]) for name, facts in FACTS.items()}


METRICS: Mapping[str, Metric] = MappingProxyType(_registry())
"""Every metric by name, in the order in which documentation and messages list them."""

_LOGGED: Mapping[str, tuple[str, ...]] = {
    "classes": ("macro_f1", "accuracy"),
    "ordered": ("quadratic_kappa", "accuracy"),
    "labels": ("macro_f1", "roc_auc"),
    "value": ("pearson", "spearman"),
    "values": ("rmse", "pearson"),
}


def fits(metric: Facts, kind: str) -> bool:
    """Whether tasks of this kind can have the metric."""
    return kind in metric.kinds


def check_fits(metric: Facts, kind: str, *, outputs: int, what: str) -> None:
    """Refuses a metric that does not fit the kind of a task or its number of classes.

    Args:
        outputs: number of classes; ignored for other kinds.
        what: the place that a fault names.

    Raises:
        ConfigError: naming metrics that fit.
    """
    fault = kind_fault(metric, kind, what=what)
    if fault is None and kind in ("classes", "ordered"):
        fault = classes_fault(metric, outputs, what=what)
    if fault:
        raise ConfigError(fault)


def metrics_to_log(kind: str) -> tuple[str, ...]:
    """The metrics that are logged beside the one that decides."""
    return _LOGGED[kind]
