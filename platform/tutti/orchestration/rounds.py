"""The two studies of a round: one that trains on pseudo-labels too, and its control, which takes as many steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tutti.config.space import Categorical, SearchSpace
from tutti.config.stages import STAGES, overlay, staged
from tutti.config.study import ExtraTrain, Search, StudyConfig
from tutti.records import Scalar, TrialRecord, TrialState

Point = dict[str, Scalar]

_STEPS = "max_steps"
_MORE = 3  # with three evaluations where the study has one, what is over of an epoch can be shared out well enough
_ALIKE = 0.1  # counts that differ by no larger share are as good as equal: more evaluations would cost more than help


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
    """How many optimizer steps each stage of a trial at ``point`` takes; none where the study itself says how many.

    Args:
        rows: training rows of each task.
        tokens: those of a row in the mean, asked for where a batch has so many tokens and not so many rows.
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
        an_epoch = math.ceil(batches / int(arguments.get("gradient_accumulation_steps", 1)))
        counts.append(math.ceil(float(arguments["num_train_epochs"]) * an_epoch))
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
    """The study of a round and its control, which differ in the round's pseudo-labels and the evaluations of an epoch.

    Both have a trial for each point. None is stopped early, since only whole trials vote, and each takes as many steps
    as it would with pseudo-labels, and is evaluated about as often in all: who may choose the best of more evaluations
    looks better.

    Args:
        study: the one that the first round began from.
        name: of the round's study; the control's is ``NAME-control``.
        known: files of further training rows of each task, those of earlier rounds too.
        labels: the round's files of pseudo-labels.
        points: at least one.
        steps: of each point, the steps of its stages; none where the study says how many.
        longer: how many times as many rows an epoch has with the round's pseudo-labels, 1 or more.
    """
    training, space = dict(study.training), dict(study.search_space.root)
    laid = [dict(point) for point in points]
    for index, counts in enumerate(zip(*steps, strict=True)):
        given = [count for count in counts if count is not None]
        if len(given) < len(counts):
            continue
        key = f"{STAGES}.{index}.{_STEPS}" if study.training.get(STAGES) else _STEPS
        if len(set(given)) == 1:
            training = overlay(training, {key: given[0]})
        else:
            space[key] = Categorical(type="categorical", choices=tuple(sorted(set(given))))
            for point, count in zip(laid, given, strict=True):
                point[key] = count
    search = Search(
        trials=len(points),
        seed=study.search.seed,
        sampler="random",  # no trial is left to draw
        enqueue=tuple(point for point in laid if point),
        scheduler="none",
        retries=study.search.retries,
    )
    shared = {"search_space": SearchSpace(space), "search": search}

    def with_rows(name: str, more: Mapping[str, ExtraTrain], evals_per_epoch: int) -> StudyConfig:
        tasks = {
            task: config.model_copy(update={"extra_train": (*known[task], *([more[task]] if task in more else []))})
            for task, config in study.tasks.items()
        }
        keys = training if evals_per_epoch == 1 else overlay(training, {"evals_per_epoch": evals_per_epoch})
        return study.model_copy(update={**shared, "training": keys, "study": name, "tasks": tasks})

    epochs = [_epochs(study, point) for point in points]
    evals, of_control = _evaluations(study.evals_per_epoch, epochs=epochs, longer=longer)
    return with_rows(name, labels, evals), with_rows(f"{name}-control", {}, of_control)


def _epochs(study: StudyConfig, point: Mapping[str, Scalar]) -> list[float]:
    """How many epochs each stage of a trial at ``point`` has."""
    from tutti.training.options import split_training

    return [float(split_training(keys)[1]["num_train_epochs"]) for keys in staged(overlay(study.training, point))]


def _evaluations(least: int, *, epochs: Sequence[Sequence[float]], longer: float) -> tuple[int, int]:
    """How often an epoch of the round and one of its control are evaluated, so that both are about as often in all.

    An epoch of half as many rows more is evaluated three times, and one of the control twice. Since evaluations take
    time, the control's has at most ``_MORE`` times as many as the study's, and no more than it takes.

    Args:
        least: what the study says.
        epochs: of each trial, those of its stages in the round.
        longer: how many times as many rows an epoch has there, and so how many times as many epochs the control has.
    """

    def unlike(pair: tuple[int, int]) -> float:
        """The largest share by which a trial's counts differ. What is left of a stage's last epoch has one too."""
        shares = []
        for stages in epochs:
            ours, control = (sum(math.ceil(each * times) for each in stages) for times in (pair[0], pair[1] * longer))
            shares.append(abs(control / ours - 1))
        return max(_ALIKE, *shares)

    rates = range(least, _MORE * least + 1)
    return min(((near(longer * rate), rate) for rate in rates for near in (math.floor, math.ceil)), key=unlike)
