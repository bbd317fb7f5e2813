"""The two studies of a round: one with pseudo-labels, and a control without them that takes as many steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tutti.config.space import Categorical, SearchSpace
from tutti.config.stages import STAGES, overlay, staged
from tutti.config.study import ExtraTrain, Search, StudyConfig
from tutti.records import Scalar, TrialRecord, TrialState

Point = dict[str, Scalar]

_STEPS = "max_steps"
_MAX_EVALUATION_FACTOR = 3  # how many times the study's evaluations per epoch are enough to match both studies
_TOLERANCE = 0.1  # relative difference in evaluation counts that is not worth the cost of further evaluations


def best_points(records: Sequence[TrialRecord], *, count: int) -> list[Point]:
    """The parameters of the best finished trials, the best first, each point once."""
    finished = [record for record in records if record.state is TrialState.FINISHED and record.score is not None]
    points: list[Point] = []
    for record in sorted(finished, key=lambda record: -(record.score or 0.0)):
        if (point := dict(record.best_parameters)) not in points:
            points.append(point)
    return points[:count]


def steps_of(
    study: StudyConfig, point: Mapping[str, Scalar], *, rows: Sequence[int], tokens: Callable[[], float]
) -> tuple[int | None, ...]:
    """Number of optimizer steps of each stage of a trial at ``point``; none if the study sets ``max_steps``.

    Args:
        rows: training rows of each task.
        tokens: computes the mean tokens per row; called only if batches are limited by tokens instead of rows.
    """
    from tutti.training.options import split_training

    counts: list[int | None] = []
    for keys in staged(overlay(study.training, point)):
        options, arguments = split_training(keys)
        if int(arguments.get(_STEPS, -1)) > 0:
            counts.append(None)
            continue
        limit = options.max_tokens_per_batch
        batch = arguments["per_device_train_batch_size"] if limit is None else max(1, int(limit / tokens()))
        batches = sum(math.ceil(count / (batch * study.resources.workers)) for count in rows)
        steps_per_epoch = math.ceil(batches / int(arguments.get("gradient_accumulation_steps", 1)))
        counts.append(math.ceil(float(arguments["num_train_epochs"]) * steps_per_epoch))
    return tuple(counts)


def round_studies(
    study: StudyConfig,
    *,
    name: str,
    known: Mapping[str, Sequence[ExtraTrain]],
    labels: Mapping[str, ExtraTrain],
    points: Sequence[Point],
    steps: Sequence[Sequence[int | None]],
    longer: float,
) -> tuple[StudyConfig, StudyConfig]:
    """The study of a round and its control. They differ in the round's pseudo-labels and the evaluations per epoch.

    Both have a trial for each point. No trial is stopped early, since only finished trials vote. In both studies a
    trial takes as many steps as it would with pseudo-labels. It is also evaluated about as often in all, because the
    best of more evaluations looks better.

    Args:
        study: the study before the first round.
        name: of the round's study; the control's is ``NAME-control``.
        known: files of additional training rows by task, including those of earlier rounds.
        labels: the round's pseudo-label file by task.
        points: parameters of the trials, at least one.
        steps: for each point, the steps of its stages; none if the study sets ``max_steps``.
        longer: ratio of the rows per epoch with and without the round's pseudo-labels, at least 1.
    """
    training, space = dict(study.training), dict(study.search_space.root)
    trial_points = [dict(point) for point in points]
    for index, counts in enumerate(zip(*steps, strict=True)):
        known_counts = [count for count in counts if count is not None]
        if len(known_counts) < len(counts):
            continue
        key = f"{STAGES}.{index}.{_STEPS}" if study.training.get(STAGES) else _STEPS
        if len(set(known_counts)) == 1:
            training = overlay(training, {key: known_counts[0]})
        else:
            space[key] = Categorical(type="categorical", choices=tuple(sorted(set(known_counts))))
            for point, count in zip(trial_points, known_counts, strict=True):
                point[key] = count
    search = Search(
        trials=len(points),
        seed=study.search.seed,
        sampler="random",  # never used: all trials are enqueued
        enqueue=tuple(point for point in trial_points if point),
        scheduler="none",
        retries=study.search.retries,
    )
    shared = {"search_space": SearchSpace(space), "search": search}

    def with_rows(name: str, labels: Mapping[str, ExtraTrain], evals_per_epoch: int) -> StudyConfig:
        tasks = {
            task: config.model_copy(update={"extra_train": (*known[task], *([labels[task]] if task in labels else []))})
            for task, config in study.tasks.items()
        }
        keys = training if evals_per_epoch == 1 else overlay(training, {"evals_per_epoch": evals_per_epoch})
        return study.model_copy(update={**shared, "training": keys, "study": name, "tasks": tasks})

    epochs = [_epochs(study, point) for point in points]
    evals, control_evals = _evaluations_per_epoch(study.evals_per_epoch, epochs=epochs, longer=longer)
    return with_rows(name, labels, evals), with_rows(f"{name}-control", {}, control_evals)


def _epochs(study: StudyConfig, point: Mapping[str, Scalar]) -> list[float]:
    """Number of epochs of each stage of a trial at ``point``."""
    from tutti.training.options import split_training

    return [float(split_training(keys)[1]["num_train_epochs"]) for keys in staged(overlay(study.training, point))]


def _evaluations_per_epoch(least: int, *, epochs: Sequence[Sequence[float]], longer: float) -> tuple[int, int]:
    """Evaluations per epoch in the round and in its control, such that both have about the same number in all.

    For example, if the round's epochs have half as many rows more, its epochs get three evaluations and the control's
    two. Since evaluations take time, the control gets as few as possible, and at most ``_MAX_EVALUATION_FACTOR`` times
    the study's.

    Args:
        least: evaluations per epoch of the study.
        epochs: for each trial, the epochs of its stages in the round.
        longer: ratio of the rows per epoch in the round and in the control, so of the control's epochs and the round's.
    """

    def difference(pair: tuple[int, int]) -> float:
        """The largest relative difference of a trial's evaluation counts. An incomplete last epoch counts too."""
        differences = []
        for stages in epochs:
            round_count, control_count = (
                sum(math.ceil(each * times) for each in stages) for times in (pair[0], pair[1] * longer)
            )
            differences.append(abs(control_count / round_count - 1))
        return max(_TOLERANCE, *differences)

    rates = range(least, _MAX_EVALUATION_FACTOR * least + 1)
    pairs = ((nearest(longer * rate), rate) for rate in rates for nearest in (math.floor, math.ceil))
    return min(pairs, key=difference)
