"""The two studies of a round: one with pseudo-labels, and a control without them that takes as many steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.config.folder import StudyFolder
from tutti.config.recipe import Recipe
from tutti.config.space import Categorical, SearchSpace
from tutti.config.stages import STAGES, overlay, staged
from tutti.config.study import ExtraTrain, Search, StudyConfig
from tutti.data.clean import text_groups_of
from tutti.data.prepared import Prepared
from tutti.ensembling.nested import MIN_TEXTS_NESTED
from tutti.errors import Fault, StudyError, counted
from tutti.orchestration.before.kept_backbone import keep_backbone
from tutti.orchestration.before.rows import prepare_rows
from tutti.orchestration.worker.folds import trained_in
from tutti.records import Scalar, TextLimit, TrialRecord, TrialState
from tutti.search.limits import is_over

if TYPE_CHECKING:
    from tutti.config.training import TrainingOptions

Point = dict[str, Scalar]
Lengths = Callable[
    ["TrainingOptions"], Sequence[np.ndarray]
]  # of each task's training rows, in tokens, by a stage's keys

_STEPS = "max_steps"
_COUNTING_EPOCHS = ("swa_epochs", "adversarial_start")
_MAX_EVALUATION_FACTOR = 3  # how many times the study's evaluations per epoch are enough to match both studies
_TOLERANCE = 0.1  # relative difference in evaluation counts that is not worth the cost of further evaluations


def check_rounds(
    study: StudyConfig,
    folder: StudyFolder,
    prepared: Prepared,
    records: Sequence[TrialRecord],
    *,
    seconds: float,
    recipe: Recipe,
    recipe_name: str,
) -> None:
    """Checks early what would otherwise fail only after hours, or judge a round by rows that its teachers know.

    Args:
        records: every trial of the study.
        seconds: total duration of the study's runs.

    Raises:
        StudyError: if the study or the recipe allows no rounds, or the task files have changed.
    """
    name = study.study
    if not is_over(study.search, records, seconds=seconds):
        ended = sum(record.state is not TrialState.RUNNING for record in records)
        got = f"{counted(ended, 'trial')} that ended, of {study.search.trials}"
        remedy = "run `tutti tune STUDY.yaml --resume` first"
        raise StudyError(Fault(f"the study {name}", "have all its trials before a round", got, remedy))
    if recipe.members.filter is not None:
        rule, remedy = "let every trial vote in a round, whose own have no tags yet", "take members.filter out"
        raise StudyError(Fault(f"the recipe {recipe_name}", rule, repr(recipe.members.filter), remedy))
    if not any("unlabeled" in parts for parts in prepared.parts.values()):
        remedy = "name a file of unlabelled rows as `unlabeled:` of a task and run a new study"
        raise StudyError(Fault(f"the study {name}", "have a task with unlabelled rows", "none", remedy))
    apart = [task.name for task in prepared.tasks if task.kind.comparative]
    groups = text_groups_of(prepared.validation_rows(), apart=apart)
    for task, own in groups.items():
        if (texts := len(np.unique(own))) < MIN_TEXTS_NESTED:
            rule = f"have {MIN_TEXTS_NESTED} validation rows of different texts or more, to tell whether a round gains"
            remedy = "raise split.validation in a new study"
            raise StudyError(Fault(f"task {task} of the study {name}", rule, str(texts), remedy))
    if len(f"{name}-round-999-control") > 80:
        rule, remedy = "leave room for -round-N-control in 80 characters", "give the study a shorter name"
        raise StudyError(Fault(f"the name of the study {name}", rule, f"{len(name)} characters", remedy))
    prepare_rows(study, folder)
    keep_backbone(study, folder)  # the round and its control begin with it on different days


def best_points(records: Sequence[TrialRecord], *, count: int) -> list[Point]:
    """The parameters of the best finished trials, the best first, each point once."""
    finished = [record for record in records if record.state is TrialState.FINISHED and record.score is not None]
    points: list[Point] = []
    for record in sorted(finished, key=lambda record: -(record.score or 0.0)):
        if (point := dict(record.best_parameters)) not in points:
            points.append(point)
    return points[:count]


def epoch_steps(study: StudyConfig, point: Mapping[str, Scalar], lengths: Lengths) -> list[int]:
    """Number of optimizer steps per epoch in each stage of a trial at ``point``."""
    from tutti.data.batches import WIDTHS, BatchPlan

    counts = []
    for options, arguments in _stages(study, point):
        plan = BatchPlan(
            arguments["per_device_train_batch_size"],
            options.group_by_length,
            options.max_tokens_per_batch,
            options.batching == "packed",
            multiple=WIDTHS["cuda" if study.resources.gpus_per_worker else "cpu"],
        )
        batches = sum(plan.batches(own, study.resources.workers) for own in lengths(options))
        counts.append(math.ceil(batches / int(arguments.get("gradient_accumulation_steps", 1))))
    return counts


def steps_of(study: StudyConfig, point: Mapping[str, Scalar], lengths: Lengths) -> tuple[int, ...]:
    """Number of optimizer steps of each stage of a trial at ``point``: as ``max_steps`` says, or of all its epochs."""
    counts = []
    for (_, arguments), steps in zip(_stages(study, point), epoch_steps(study, point, lengths), strict=True):
        most = int(arguments.get(_STEPS, -1))
        counts.append(most if most > 0 else math.ceil(float(arguments["num_train_epochs"]) * steps))
    return tuple(counts)


def studies_with_labels(
    study: StudyConfig,
    folder: StudyFolder,
    *,
    name: str,
    latest: StudyConfig,
    prepared: Prepared,
    labels: Mapping[str, Sequence[ExtraTrain]],
    counts: Mapping[str, int],
    points: Sequence[Point],
) -> tuple[StudyConfig, StudyConfig]:
    """The study of a round and its control as ``round_studies`` makes them, with the steps that the rows require.

    Args:
        study, folder: of the study before the first round. The two get their folders beside its own.
        latest, prepared: the study and the data of the latest teacher, whose training rows both studies have.
        labels: the round's files by task: one, or with folds one for each.
        counts: number of rows by task that ``labels`` add to a training, with folds their mean. They are taken to be as
            long as the task's unlabelled rows.
    """
    from tutti.data.encode import load_parts

    @cache
    def parts(limit: TextLimit) -> Any:
        return load_parts(prepared, tokenizer=study.backbone, limit=limit, cache=folder.encoded)

    # With folds a training has the rows of all but one.
    trained = {task.name: trained_in(prepared.folds(task.name), 0) for task in prepared.tasks if study.split.folds}

    def lengths(options: TrainingOptions, *, labelled: bool) -> list[np.ndarray]:
        found = []
        if options.max_tokens_per_batch is None and options.batching == "padded":  # the numbers of rows alone count
            added = [counts.get(task.name, 0) if labelled else 0 for task in prepared.tasks]
            rows = [int(own.sum()) for own in trained.values()]
            rows = rows or [prepared.parts[task.name]["train"].rows for task in prepared.tasks]
            return [np.ones(sum(both)) for both in zip(rows, added, strict=True)]
        for task in prepared.tasks:
            own, apart = parts(options.limit)[task.name], options.pooling == "bi_encoder" and task.pair
            lengths_of_rows = own["train"].batch_lengths(apart=apart)
            found.append(lengths_of_rows[trained[task.name]] if trained else lengths_of_rows)
            if labelled and (count := counts.get(task.name, 0)):
                unlabelled = np.sort(own["unlabeled"].batch_lengths(apart=apart))
                evenly = unlabelled[np.arange(count) * len(unlabelled) // count]
                found[-1] = np.concatenate([found[-1], evenly])
        return found

    storage = study.storage.model_copy(update={"path": folder.path.parent})
    with_labels, without = partial(lengths, labelled=True), partial(lengths, labelled=False)
    per_epoch = [sum(sum(epoch_steps(study, point, own)) for point in points) for own in (with_labels, without)]
    return round_studies(
        study.model_copy(update={"storage": storage}),
        name=name,
        known={task: config.extra_train for task, config in latest.tasks.items()},
        labels=labels,
        points=points,
        steps=[steps_of(study, point, with_labels) for point in points],
        longer=per_epoch[0] / per_epoch[1],
    )


def round_studies(
    study: StudyConfig,
    *,
    name: str,
    known: Mapping[str, Sequence[ExtraTrain]],
    labels: Mapping[str, Sequence[ExtraTrain]],
    points: Sequence[Point],
    steps: Sequence[Sequence[int]],
    longer: float,
) -> tuple[StudyConfig, StudyConfig]:
    """The study of a round and its control. They differ in the round's pseudo-labels and what counts epochs.

    Both have a trial for each point. No trial is stopped early, since only finished trials vote. In both studies a
    trial takes as many steps as it would with pseudo-labels. It is also evaluated about as often in all, because the
    best of more evaluations looks better. Epochs of the control have fewer steps, so ``swa_epochs`` and
    ``adversarial_start`` are larger there.

    Args:
        study: the study before the first round.
        name: of the round's study; the control's is ``NAME-control``.
        known: files of additional training rows by task, including those of earlier rounds.
        labels: the round's pseudo-label files by task.
        points: parameters of the trials, at least one.
        steps: for each point, the steps of its stages.
        longer: ratio of the steps per epoch with and without the round's pseudo-labels, at least 1.
    """
    training, space, trial_points = _with_steps(study, points, steps)
    search = Search(
        trials=len(points),
        seed=study.search.seed,
        sampler="random",  # never used: all trials are enqueued
        scheduler="none",
        retries=study.search.retries,
    )

    def with_rows(
        name: str, labels: Mapping[str, Sequence[ExtraTrain]], evals_per_epoch: int, factor: float
    ) -> StudyConfig:
        tasks = {
            task: config.model_copy(update={"extra_train": (*known[task], *labels.get(task, ()))})
            for task, config in study.tasks.items()
        }
        keys, own_space, own_points = _with_epochs(training, space, trial_points, factor)
        keys = keys if evals_per_epoch == 1 else overlay(keys, {"evals_per_epoch": evals_per_epoch})
        own_search = search.model_copy(update={"enqueue": tuple(point for point in own_points if point)})
        own = {"search_space": own_space, "search": own_search, "training": keys, "study": name, "tasks": tasks}
        return study.model_copy(update=own)

    epochs = [[float(keys["num_train_epochs"]) for _, keys in _stages(study, point)] for point in points]
    evals, control_evals = _evaluations_per_epoch(study.evals_per_epoch, epochs=epochs, longer=longer)
    return with_rows(name, labels, evals, 1.0), with_rows(f"{name}-control", {}, control_evals, longer)


def _with_epochs(
    training: Mapping[str, Any], space: SearchSpace, points: Sequence[Point], factor: float
) -> tuple[Mapping[str, Any], SearchSpace, list[Point]]:
    """Training keys, search space and points with what counts epochs multiplied, so that it takes as many steps."""
    if factor == 1:
        return training, space, [*points]

    def scaled(keys: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _scaled(key, value, factor) for key, value in keys.items()}

    keys, distributions = scaled(training), dict(space.root)
    if isinstance(keys.get(STAGES), list):
        keys[STAGES] = [scaled(stage or {}) for stage in keys[STAGES]]
    own_points = [scaled(point) for point in points]
    for key, distribution in distributions.items():
        when = {name: tuple(_scaled(name, value, factor) for value in own) for name, own in distribution.when.items()}
        values = {point[key] for point in own_points if key in point}
        if values and key.rpartition(".")[2] in _COUNTING_EPOCHS:
            choices = tuple(sorted(values, key=str))
            distributions[key] = Categorical(type="categorical", choices=choices, when=when)
        else:
            distributions[key] = distribution.model_copy(update={"when": when})
    return keys, SearchSpace(distributions), own_points


def _scaled(key: str, value: Any, factor: float) -> Any:
    name = key.rpartition(".")[2]
    if name not in _COUNTING_EPOCHS or not value:
        return value
    return round(value * factor) if name == "swa_epochs" else value * factor


def _with_steps(
    study: StudyConfig, points: Sequence[Point], steps: Sequence[Sequence[int]]
) -> tuple[Mapping[str, Any], SearchSpace, list[Point]]:
    """Training keys, search space and points with the steps of each stage: as a key if all points have the same."""
    training, space = dict(study.training), dict(study.search_space.root)
    trial_points = [dict(point) for point in points]
    for index, counts in enumerate(zip(*steps, strict=True)):
        key = f"{STAGES}.{index}.{_STEPS}" if study.training.get(STAGES) else _STEPS
        if len(set(counts)) == 1 and key not in space:
            training = overlay(training, {key: counts[0]})
        else:
            space[key] = Categorical(type="categorical", choices=tuple(sorted(set(counts))))
            for point, count in zip(trial_points, counts, strict=True):
                point[key] = count
    return training, SearchSpace(space), trial_points


def _stages(study: StudyConfig, point: Mapping[str, Scalar]) -> list[tuple[TrainingOptions, dict[str, Any]]]:
    """The options and the arguments of each stage of a trial at ``point``, as ``split_training`` gives them."""
    from tutti.training.keys.options import split_training

    return [split_training(keys) for keys in staged(overlay(study.training, point))]


def _evaluations_per_epoch(least: int, *, epochs: Sequence[Sequence[float]], longer: float) -> tuple[int, int]:
    """Evaluations per epoch in the round and in its control, such that both have about the same number in all.

    For example, if the round's epochs have half as many steps more, its epochs get three evaluations and the control's
    two. Since evaluations take time, the control gets as few as possible, and at most ``_MAX_EVALUATION_FACTOR`` times
    the study's.

    Args:
        least: evaluations per epoch of the study.
        epochs: for each trial, the epochs of its stages in the round.
        longer: ratio of the steps per epoch in the round and in the control, so of the epochs in the control and in it.
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
