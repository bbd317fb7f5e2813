"""Loss and metrics of tasks on their validation rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from tutti.config.metric_facts import OF_WORDS
from tutti.data.encode import EncodedPart
from tutti.tasks.layouts.tags import piece_of
from tutti.tasks.metrics import METRICS, Metric, metrics_to_log
from tutti.tasks.objective import study_score
from tutti.tasks.scorer import Scorer, metric_of
from tutti.tasks.task import Task

_UNNAMED = re.compile(r"[^\w.: -]")  # what MLflow does not take in the name of a metric, and slashes


def study_loss(
    tasks: Sequence[Task],
    parts: Mapping[str, EncodedPart],
    outputs: Mapping[str, np.ndarray],
    *,
    scales: Mapping[str, np.ndarray],
) -> float:
    """The mean of the tasks' losses, weighted as their scores are.

    Args:
        parts: the validation rows of each task.
        outputs: the predictions for them, of texts the likelihoods of their labels.
        scales: units in which errors of numbers count, the spread of the training labels, so that these compare with
            other tasks.
    """
    losses = {}
    for task in tasks:
        predicted, labels = outputs[task.name], parts[task.name].labels
        assert labels is not None
        if task.kind.generative:
            losses[task.name] = token_loss(predicted)
            continue
        if not task.kind.probabilistic:
            predicted, labels = predicted / scales[task.name], labels / scales[task.name]
        losses[task.name] = task.kind.loss(predicted, labels)
    return study_score(losses, tasks)


def token_loss(likelihoods: np.ndarray) -> float:
    """The mean negative log-likelihood of a token, of ``(rows, 2)`` as of ``tutti.training.predict.likelihoods``."""
    total, tokens = likelihoods.sum(axis=0, dtype=np.float64)
    return float(-total / max(tokens, 1))


def measure_texts(
    task: Task, part: EncodedPart, likelihoods: np.ndarray, texts: np.ndarray | None
) -> tuple[float, dict[str, float]]:
    """As ``measure``, of a task of texts.

    Args:
        likelihoods: ``(rows, 2)``, of the labels.
        texts: ``(rows,)``, what the model wrote; None where it wrote nothing.
    """
    labels, score = part.labels, float("nan")
    assert labels is not None
    values = {f"{task.name}/loss": token_loss(likelihoods)}
    for metric in [metric_of(task), *(METRICS[name] for name in {*metrics_to_log(task.kind_name), *task.report})]:
        given = likelihoods if metric.needs == "likelihood" else texts
        if given is None or f"{task.name}/{metric.name}" in values:
            continue
        own = metric.score(labels, given, outputs=task.outputs)
        score = own if metric.name == task.metric else score
        values[f"{task.name}/{metric.name}"] = metric.raw(own)
    return score, values


def measure_answers(part: EncodedPart, answered: np.ndarray) -> tuple[float, dict[str, float]]:
    """The accuracy of answers to questions, the mean over groups of rows, and that of each group.

    Args:
        part: with the group of each row.
        answered: ``(rows,)``, what ``tutti.training.predict.answers`` returns.
    """
    assert part.groups is not None
    right: dict[str, list[bool]] = {}
    for group, is_right in zip(part.groups.tolist(), answered.tolist(), strict=True):
        right.setdefault(_UNNAMED.sub("_", group) or "none", []).append(is_right)
    by_group = {group: float(np.mean(of_group)) for group, of_group in sorted(right.items())}
    return float(np.mean(list(by_group.values()))), by_group if len(by_group) > 1 else {}


def measure(task: Task, part: EncodedPart, outputs: np.ndarray) -> tuple[float, dict[str, float]]:
    """The task's score, of which higher is better, and by name what is logged: its loss and its metrics as users know
    them.

    Args:
        outputs: of the task's kind.

    Raises:
        ConfigError: where a metric of the user's own fails.
    """
    labels = part.labels
    assert labels is not None
    values = {f"{task.name}/loss": task.kind.loss(outputs, labels)}
    score = float("nan")
    for name in [*sorted({*metrics_to_log(task.kind_name), *task.report} - {task.metric}), task.metric]:
        metric = METRICS[name] if name != task.metric else metric_of(task)
        scores = _score_of_pieces if metric in map(METRICS.get, OF_WORDS) else _score_of_rows
        score = scores(task, metric, part, outputs)
        values[f"{task.name}/{name}"] = metric.raw(score)
    return score, values


def _score_of_rows(task: Task, metric: Metric, part: EncodedPart, outputs: np.ndarray) -> float:
    assert part.labels is not None
    return Scorer.of(task, metric).score(part.labels, outputs)


def _score_of_pieces(task: Task, metric: Metric, part: EncodedPart, outputs: np.ndarray) -> float:
    """Of pieces of the rows' texts, at the decisions that are best for a metric of words like it."""
    assert part.labels is not None
    assert part.answers is not None
    decision = Scorer.of(task, METRICS[OF_WORDS[metric.name]]).alone(part.labels, outputs)
    given, right = (np.empty(len(outputs), dtype=object) for _ in range(2))
    cells = task.kind.cells(task.kind.decide(outputs, decision), task.names)
    for row, ((text, answers), cell) in enumerate(zip(part.answers, cells, strict=True)):
        given[row], right[row] = piece_of(text, task.unit, cell), answers
    return metric.score(right, given, outputs=task.outputs)
