"""The registry of metrics: each with its facts and its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

import numpy as np

from tutti.config.metric_facts import FACTS, Facts, classes_fault, kind_fault
from tutti.errors import ConfigError
from tutti.tasks.metrics import answers, decisions, pairs, probabilities, tags, texts, values


class Function(Protocol):
    """What computes a metric: the number that users know by its name."""

    def __call__(self, labels: np.ndarray, predicted: np.ndarray, /, *, outputs: int) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Metric(Facts):
    """A metric: its facts, and the function that computes it.

    Attributes:
        of_row, of_sums: where sums over rows determine it: takes what ``compute`` takes, and returns for each row what
            is summed; and takes the sum. None for other metrics.
    """

    compute: Function
    of_row: Callable[..., np.ndarray] | None = None
    of_sums: Callable[..., float] | None = None

    def score(self, labels: np.ndarray, predicted: np.ndarray, *, outputs: int) -> float:
        """The score, of which higher is always better: the metric, negated where lower is better.

        It is NaN where no row can be scored.

        Args:
            labels: ``(rows,)`` class indices or values, or ``(rows, k)`` with NaN for missing labels.
            predicted: what the metric ``needs``: decisions, values or texts like the labels, probabilities
                ``(rows, outputs)``, or likelihoods ``(rows, 2)``.
            outputs: number of classes, labels or values per row.

        Raises:
            ConfigError: where a metric of the user's own fails.
        """
        return self.raw(self.compute(labels, predicted, outputs=outputs))

    def raw(self, score: float) -> float:
        """The number that users know by the metric's name, from a score (or the other way round)."""
        return score if self.higher_is_better else 0.0 - score  # not -0.0 for 0


def _with_function(facts: Facts) -> Metric:
    modules = {"decisions": decisions, "probabilities": probabilities, "values": values, "texts": texts}
    of_kind = {"tokens": tags, "tags": tags, "preference": pairs, "span": answers}
    module = of_kind.get(facts.kinds[0], modules["texts" if facts.needs == "likelihood" else facts.needs])
    function = getattr(module, facts.function or facts.name)
    compute = partial(values.mean_over_columns, column=function) if module is values else function
    of_row, of_sums = tags.OF_ROWS.get(facts.function, (None, None)) if module is tags else (None, None)
    return Metric(
        **vars(facts),
        compute=partial(compute, **facts.options),
        of_row=of_row,
        of_sums=of_sums and partial(of_sums, **facts.options),
    )


METRICS: Mapping[str, Metric] = MappingProxyType({name: _with_function(facts) for name, facts in FACTS.items()})
"""Every metric by name, in the order in which documentation and messages list them."""

_LOGGED: Mapping[str, tuple[str, ...]] = {
    "classes": ("macro_f1", "accuracy"),
    "ordered": ("quadratic_kappa", "accuracy"),
    "choice": ("accuracy", "log_loss"),
    "labels": ("macro_f1", "roc_auc"),
    "value": ("pearson", "spearman"),
    "values": ("rmse", "pearson"),
    "preference": ("pairwise_accuracy",),
    "text": ("perplexity",),
    "tokens": ("entity_f1", "tag_accuracy"),
    "overlapping": ("entity_f1", "entity_macro_f1"),
    "span": ("token_row_f1", "entity_exact_match"),
    "tags": ("tag_accuracy", "tag_macro_f1"),
}


def fits(metric: Facts, kind: str) -> bool:
    """Whether tasks of this kind can have the metric."""
    return kind in metric.kinds


def check_fits(metric: Facts, kind: str, *, outputs: int, what: str) -> None:
    """Refuses a metric that does not fit the kind of a task or its number of classes, or whose package is missing.

    Args:
        outputs: number of classes; ignored for other kinds.
        what: the place that a fault names.

    Raises:
        ConfigError: naming metrics that fit, or the package.
    """
    fault = kind_fault(metric, kind, what=what)
    if fault is None and kind in ("classes", "ordered"):
        fault = classes_fault(metric, outputs, what=what)
    if fault:
        raise ConfigError(fault)
    if metric.needs == "texts" and metric.name in METRICS:  # its library is imported once a text is scored
        one = np.array(["a"], dtype=object)
        METRICS[metric.name].score(one, one, outputs=1)


def metrics_to_log(kind: str) -> tuple[str, ...]:
    """The metrics that are logged beside the one that decides."""
    return _LOGGED[kind]
