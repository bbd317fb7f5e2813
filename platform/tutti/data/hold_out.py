"""What the tasks hold out, in one draw for all of them: no task trains on what another validates on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from pandas import DataFrame

from tutti.config.columns import AnswerForm
from tutti.config.study import Split
from tutti.data.clean import can_be_apart, text_groups_of
from tutti.data.deal import deal
from tutti.data.faults_of_all import for_all
from tutti.data.split import (
    check_folds,
    check_training_rows,
    fold_numbers,
    stream_seed,
    validation_rows,
    validation_values,
)
from tutti.errors import ConfigError, Fault, TaskFileError, counted
from tutti.tasks.kinds.classes import ordered_classes
from tutti.tasks.kinds.columns import of_frame
from tutti.tasks.kinds.protocol import Kind

_SHARED = (
    "most pairs are connected by texts that several have, so that texts of validation pairs are in training pairs too, "
    "which raises scores; name a column of groups as split.group, or a validation file"
)
_TRAIN_COLUMNS = ["weight", "probabilities", "extra", "only", "fold"]  # of training rows only


@dataclass(frozen=True, eq=False)
class TaskRows:
    """A task's labelled rows.

    Attributes:
        task: its name.
        kind: of its labels.
        names: of the kind's outputs.
        train: id, text, text_b (pairs), label (class index or value), weight, extra (bool: of ``extra_train``),
            only (the fold that alone trains on it, or -1),
            probabilities (soft labels), group and fold (both str) where the study names them. Other rows come first.
        validation: the rows of its own validation file, or the rows that were held out; None before that.
        answers: as of ``Task``.
    """

    task: str
    kind: Kind
    names: Sequence[str]
    train: DataFrame
    validation: DataFrame | None
    answers: AnswerForm | None = None

    @property
    def has_classes(self) -> bool:
        """Whether rows are spread by their classes, each of which needs rows on both sides."""
        return self.kind.exclusive and not self.kind.exchangeable

    @property
    def regular(self) -> DataFrame:
        """The training rows of the task's own file."""
        return self.train[~self.train["extra"]]

    def without(self, dropped: np.ndarray) -> TaskRows:
        """The rows without some of the training rows: ``(rows of train,)`` bool."""
        return replace(self, train=self.train[~dropped].reset_index(drop=True))


def hold_out(tasks: Mapping[str, TaskRows], rule: Split) -> tuple[dict[str, TaskRows], int | None, list[str]]:
    """Holds out rows of all tasks in one draw.

    Rows that share their texts or a group, in whatever task, are connected, also through others, and a connected set is
    held out, or in one fold, as a whole. Strata are balanced over all tasks at once. A task that shares no text with
    another and has no groups is drawn by itself. Rows of ``extra_train`` are dropped if any task validates on their
    texts or their group.

    Returns:
        The tasks with their validation rows; with folds these are all regular training rows, and train has a column
        fold (int32), -1 for rows of ``extra_train``. The number of folds, if any. Notices for the user, one line each.

    Raises:
        TaskFileError, ConfigError: where the rows cannot be held out so.
    """
    for_all(tasks, _check_groups)
    frames = {name: pd.concat([rows.regular, rows.validation]) for name, rows in tasks.items()}
    compared = {name: rows for name, rows in tasks.items() if rows.kind.comparative}
    sets = text_groups_of(frames, apart=[*compared])  # the connected set of each row, those of validation files last
    shared = [name for name, own in compared.items() if own.validation is None and not can_be_apart(own.regular)]
    notices = [f"{name}: {_SHARED}" for name in shared]
    given = {name: sets[name][len(rows.regular) :] for name, rows in tasks.items()}  # sets of validation files' rows
    left = {}
    for name, rows in tasks.items():
        others = np.concatenate([np.empty(0, int), *(given[other] for other in tasks if other != name)])
        left[name], sets[name] = _left_out(rows, sets[name][: len(rows.regular)], others, notices)
    drawn = {name: rows for name, rows in left.items() if rows.validation is None}
    folds = rule.folds
    if rule.fold_column is not None:
        parts, folds = _given_folds(drawn, sets, rule, notices)
    else:
        clusters = {
            names[0]: [drawn[name] for name in names] for names in _clusters({name: sets[name] for name in drawn})
        }
        parts = {}
        for of_cluster in for_all(clusters, partial(_draw, sets=sets, rule=rule)).values():
            parts |= of_cluster
    result = {}
    held_out = np.concatenate([np.empty(0, int), *(sets[name][parts[name] == 0] for name in drawn)])
    for name, rows in left.items():
        if name not in drawn:
            result[name], _ = _left_out(rows, sets[name], held_out, notices)
        elif folds is None:
            result[name] = _held_out(rows, parts[name] == 0)
        else:
            only = rows.train["only"].to_numpy(dtype=np.int32)
            numbers = np.where(only < 0, -1, -2 - only).astype(np.int32)
            numbers[~rows.train["extra"].to_numpy()] = parts[name]
            result[name] = replace(_held_out(rows, parts[name] >= 0), train=rows.train.assign(fold=numbers))
    return _without_validated_extra(result), folds, notices


def _check_groups(rows: TaskRows) -> None:
    if rows.validation is None or "group" not in rows.validation:
        return
    both = (set(rows.regular["group"]) & set(rows.validation["group"])) - {""}
    if both:
        first = sorted(both)[0]
        got = f"{first!r} in both" + (f", as {counted(len(both) - 1, 'other')}" if len(both) > 1 else "")
        rule = "have each group (split.group) in the training file or in the validation file"
        remedy = "take the rows out of one, or take `validation:` out, so that whole groups are held out"
        raise TaskFileError(Fault(f"task {rows.task}", rule, got, remedy))


def _left_out(
    rows: TaskRows, own: np.ndarray, validated: np.ndarray, notices: list[str]
) -> tuple[TaskRows, np.ndarray]:
    """The task without the regular rows of sets on which others validate, and the sets of the rows that remain."""
    dropped = np.isin(own, validated)
    if not dropped.any():
        return rows, own
    if dropped.all():
        rule, got = "have training rows whose texts and groups no other task validates on", "none"
        raise TaskFileError(Fault(f"task {rows.task}", rule, got, "take rows out of the other tasks' validation files"))
    shared = "texts or groups" if "group" in rows.train else "texts"
    number = counted(int(dropped.sum()), "training row")
    notices.append(f"{rows.task}: left out {number} whose {shared} other tasks validate on")
    of_train = np.zeros(len(rows.train), dtype=bool)
    of_train[~rows.train["extra"].to_numpy()] = dropped
    return rows.without(of_train), own[~dropped]


def _held_out(rows: TaskRows, chosen: np.ndarray) -> TaskRows:
    """The task with chosen regular rows, ``(regular rows,)`` bool, as validation rows in place of training rows."""
    of_train = np.zeros(len(rows.train), dtype=bool)
    of_train[~rows.train["extra"].to_numpy()] = chosen
    validation = rows.train[of_train].drop(columns=_TRAIN_COLUMNS, errors="ignore").reset_index(drop=True)
    return replace(rows.without(of_train), validation=validation)


def _without_validated_extra(tasks: Mapping[str, TaskRows]) -> dict[str, TaskRows]:
    """The tasks without the extra rows whose texts or groups are validated on: in the one fold that they train in, or
    in any.
    """
    folds: dict[object, set[int]] = {}
    for rows in tasks.values():
        validated = rows.validation if "fold" not in rows.train else rows.train[rows.train["fold"] >= 0]
        assert validated is not None
        numbers = validated["fold"] if "fold" in validated else [-1] * len(validated)
        for text, group, fold in zip(_texts(validated), _groups(validated), numbers, strict=True):
            for known in (text, *filter(None, [group])):
                folds.setdefault(known, set()).add(int(fold))

    def is_validated(rows: DataFrame) -> np.ndarray:
        found = zip(_texts(rows), _groups(rows), rows["only"], strict=True)
        known = ((folds.get(text, set()) | folds.get(group, set()), only) for text, group, only in found)
        return np.array([bool(own) and (only < 0 or only in own) for own, only in known], dtype=bool)

    return {
        name: rows.without(rows.train["extra"].to_numpy() & is_validated(rows.train)) for name, rows in tasks.items()
    }


def _texts(rows: DataFrame) -> Iterable[tuple[str, str]]:
    second = rows["text_b"].fillna("") if "text_b" in rows else [""] * len(rows)  # absent in rows of single texts
    return zip(rows["text"], second, strict=True)


def _groups(rows: DataFrame) -> Iterable[str]:
    return rows["group"].fillna("") if "group" in rows else [""] * len(rows)


def _clusters(sets: Mapping[str, np.ndarray]) -> list[list[str]]:
    """The tasks, those together that are connected by common sets."""
    clusters: list[list[str]] = []
    for name, own in sets.items():
        shares = [np.isin(own, np.concatenate([sets[other] for other in names])).any() for names in clusters]
        joined = [other for names, is_shared in zip(clusters, shares, strict=True) if is_shared for other in names]
        clusters = [names for names, is_shared in zip(clusters, shares, strict=True) if not is_shared]
        clusters.append([*joined, name])
    return clusters


def _draw(cluster: Sequence[TaskRows], *, sets: Mapping[str, np.ndarray], rule: Split) -> dict[str, np.ndarray]:
    """By task ``(regular rows,)``: the fold, or 0 for validation and 1 for training."""
    rows, labels = cluster[0], of_frame(cluster[0].regular)
    if len(cluster) > 1 or labels.ndim > 1 or any(group for rows in cluster for group in _groups(rows.regular)):
        return _draw_together(sorted(cluster, key=lambda rows: rows.task), sets, rule)
    texts = pd.factorize(sets[rows.task])[0]
    labels = labels if rows.has_classes else rows.kind.strata(labels)
    if rule.folds is not None:
        extra = rows.train["label"][rows.train["extra"]].to_numpy()
        numbers = fold_numbers(
            labels,
            texts,
            extra=extra,
            names=rows.names if rows.has_classes else (),
            folds=rule.folds,
            seed=rule.seed,
            task=rows.task,
        )
        return {rows.task: numbers}
    assert rule.validation is not None
    choose = validation_rows if rows.has_classes else validation_values
    parts = np.ones(len(labels), dtype=np.int32)
    parts[choose(labels, texts, share=rule.validation, seed=rule.seed, task=rows.task)] = 0
    return {rows.task: parts}


def _draw_together(cluster: Sequence[TaskRows], sets: Mapping[str, np.ndarray], rule: Split) -> dict[str, np.ndarray]:
    """``_draw`` for tasks that are connected, or with groups."""
    numbers = pd.factorize(np.concatenate([sets[rows.task] for rows in cluster]))[0]
    ends = np.cumsum([len(sets[rows.task]) for rows in cluster])
    own = dict(zip([rows.task for rows in cluster], np.split(numbers, ends[:-1]), strict=True))
    for_all({rows.task: rows for rows in cluster}, lambda rows: _check_sets(rows, own[rows.task], rule))
    amounts = np.hstack([_amounts(rows, own[rows.task], int(numbers.max()) + 1) for rows in cluster])
    shares = np.full(rule.folds, 1 / rule.folds) if rule.folds else np.array([share := rule.validation or 0, 1 - share])
    part_of = deal(amounts, shares, seed=stream_seed(rule.seed, "/".join(own))).astype(np.int32)
    if rule.validation:
        for rows in cluster:
            _hold_out_some(part_of, own[rows.task], amounts, need=1 if rows.kind.probabilistic else 2)
    parts = {name: part_of[numbers] for name, numbers in own.items()}
    for_all({rows.task: rows for rows in cluster}, lambda rows: _check_parts(rows, parts[rows.task], rule))
    return parts


def _amounts(rows: TaskRows, own: np.ndarray, count: int) -> np.ndarray:
    """``(sets, strata + 1)``: how many of a task's rows of each stratum, and of all, each set has."""
    strata = rows.kind.indicators(of_frame(rows.regular))
    amounts = np.zeros((count, strata.shape[1] + 1))
    np.add.at(amounts, own, np.hstack([strata, np.ones((len(strata), 1))]))
    return amounts


def _hold_out_some(part_of: np.ndarray, own: np.ndarray, amounts: np.ndarray, *, need: int) -> None:
    """Moves a task's smallest sets to the validation rows until it has as many of these as it needs, in place."""
    smallest = sorted(np.unique(own), key=lambda one: (amounts[one].sum(), one))
    for one in smallest:
        if (part_of[own] == 0).sum() >= need:
            return
        part_of[one] = 0


def _check_sets(rows: TaskRows, own: np.ndarray, rule: Split) -> None:
    what, count, needed = f"task {rows.task}", len(np.unique(own)), rule.folds or 2
    if count < needed:
        different = "groups (split.group) without common texts" if "group" in rows.train else "rows of different texts"
        purpose = f"for {rule.folds} folds" if rule.folds else "to split"
        remedy = "lower split.folds, or add rows" if rule.folds else "add rows, or name a validation file"
        rule_text = f"have at least {needed} {different} {purpose}"
        raise TaskFileError(Fault(what, rule_text, str(count), remedy))


def _check_parts(rows: TaskRows, parts: np.ndarray, rule: Split) -> None:
    """Checks that each fold of a task, or its training part, has all that it needs."""
    labels = of_frame(rows.regular)
    if rule.folds is None:
        assert rule.validation is not None
        if not parts.any():
            what, got = f"task {rows.task}", f"none with a validation share of {rule.validation}"
            raise TaskFileError(Fault(what, "keep training rows after the split", got, "add rows of other texts"))
        if rows.has_classes:
            check_training_rows(labels, labels[parts == 1], share=rule.validation, task=rows.task)
        return
    _check_each_fold(rows, parts, [str(fold) for fold in range(rule.folds)], "lower split.folds, or add rows")
    if not rows.has_classes:
        return
    extra = rows.train["label"][rows.train["extra"]].to_numpy()
    check_folds(labels, parts, extra=extra, names=rows.names, task=rows.task)


def _check_each_fold(rows: TaskRows, numbers: np.ndarray, folds: Sequence[str], remedy: str) -> None:
    lacking = np.flatnonzero(np.bincount(numbers, minlength=len(folds)) == 0)
    if len(lacking):
        got = f"none in {', '.join(repr(folds[int(fold)]) for fold in lacking)}"
        raise TaskFileError(Fault(f"task {rows.task}", f"have rows in each of the {len(folds)} folds", got, remedy))


def _given_folds(
    tasks: Mapping[str, TaskRows], sets: Mapping[str, np.ndarray], rule: Split, notices: list[str]
) -> tuple[dict[str, np.ndarray], int]:
    """By task ``(regular rows,)`` the number of each row's fold in the fold column, and the number of folds."""
    what = f"the column {rule.fold_column!r} (split.fold_column)"
    names = ordered_classes(pd.concat([rows.regular["fold"] for rows in tasks.values()]))
    if len(names) < 2:
        remedy = "name the column of the folds, or set split.folds in its place"
        raise TaskFileError(
            Fault(what, "have two values or more, each of which is a fold", f"only {names[0]!r}", remedy)
        )
    if rule.folds not in (None, len(names)):
        rule_text = f"be {len(names)}, the number of folds in {what}, or be left out"
        raise ConfigError(Fault("split.folds", rule_text, str(rule.folds), "take it out"))
    parts = {name: pd.Categorical(rows.regular["fold"], names).codes.astype(np.int32) for name, rows in tasks.items()}

    def check(rows: TaskRows) -> None:
        _check_each_fold(rows, parts[rows.task], names, "give rows of the task these folds")
        if not rows.has_classes:
            return
        extra = rows.train["label"][rows.train["extra"]].to_numpy()
        check_folds(rows.regular["label"].to_numpy(), parts[rows.task], extra=extra, names=rows.names, task=rows.task)

    for_all(tasks, check)
    rows_of = pd.DataFrame(
        {"set": np.concatenate([sets[name] for name in tasks]), "fold": np.concatenate([*parts.values()])}
    )
    apart = int((rows_of.groupby("set")["fold"].transform("nunique") > 1).sum())
    if apart:
        grouped = any("group" in rows.train for rows in tasks.values())
        shared = "texts or a group" if grouped else "texts"
        which = f"{counted(apart, 'row')} in {what} share {shared} with rows of another fold"
        notices.append(f"{which}, so that scores come out too high")
    return parts, len(names)


def fewer_validated(rows: TaskRows, most: int | None, seed: int) -> TaskRows:
    """A task's rows with at most so many validation rows, in their order; those left out are not trained on either."""
    if most is None or rows.validation is None or len(rows.validation) <= most:
        return rows
    drawn = np.sort(np.random.default_rng(seed).permutation(len(rows.validation))[:most])
    return replace(rows, validation=rows.validation.iloc[drawn].reset_index(drop=True))
