"""Preparation: from task files to cleaned and split parts on disk, once per study, for all of its trials."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from tutti.config.study import Split
from tutti.data.class_order import check_order
from tutti.data.clean import clean_rows, drop_duplicates
from tutti.data.faults_of_all import for_all
from tutti.data.hold_out import TaskRows, fewer_validated, hold_out
from tutti.data.leaks import leak_notices
from tutti.data.missed_group import missed_group
from tutti.data.odd_labels import odd_labels, unjudged_classes
from tutti.data.prepared import PREPARED_FILE, REPORTED, Prepared, load_prepared, write_prepared, write_rows
from tutti.data.row_weights import row_weights
from tutti.data.several_files import at_most, join_files
from tutti.data.several_labels import several_labels
from tutti.data.soft_targets import is_soft, soft_classes, with_targets
from tutti.errors import ConfigError, Fault, StudyError, TaskFileError
from tutti.files import sha256_of
from tutti.tasks.build import TaskSpec, numbering_note
from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.choice import letters
from tutti.tasks.kinds.columns import in_frame, of_frame
from tutti.tasks.layouts.candidates import form_notices, most_of
from tutti.tasks.layouts.protocol import FileLayout, Layout
from tutti.tasks.layouts.reading import own_ids
from tutti.tasks.layouts.table import ANSWERS, Table
from tutti.tasks.metrics import METRICS, check_fits, ship
from tutti.tasks.scorer import Scorer, metric_of
from tutti.tasks.task import Task

_SHOWN = 5  # labels in a message
_ALL = 2**40  # rows of one block
_MOST_ROWS_LOOKED_AT = 1_000_000  # in search of a column of groups


def prepare(
    specs: Sequence[TaskSpec],
    *,
    validation: float | None,
    seed: int,
    folder: Path,
    folds: int | None = None,
    fold_column: str | None = None,
    group: str | dict[str, str] | None = None,
) -> Prepared:
    """Reads, cleans, splits and writes the rows of all tasks, or loads them if ``folder`` is prepared already.

    Each part is written to ``folder/TASK/PART.parquet`` with columns id, text, text_b (pairs), label (int32 class
    index, or float32 value for a regression; absent without labels) and weight (float32, train only), and
    ``folder/prepared.json`` last. Training rows that share their texts or a group, in whatever task, stay on one side
    of the split, and in one fold: see ``hold_out``.

    Rows of ``extra_train`` go to train only, with ids prefixed by ``extraN/`` (N counted from 0). Extra rows whose
    texts some task validates on are dropped, since they would bias its validation score. If extra rows have
    soft labels, train has a column probabilities (list of float32 in class order; null for other rows), and their
    label is the most likely class; the column is left out if all of these rows are dropped. The class names are the
    labels of all other training rows before the split.

    With folds, train keeps all rows and has a column fold (int32): the fold, from 0, in which the row is validated, or
    -1 for a row of ``extra_train``, which trains in every fold, or ``-2 - fold`` for one that trains in that fold
    alone. The part ``validation`` then contains all rows with a
    fold, in the order of train: the rows that get out-of-fold predictions. Where a task has groups, its part
    ``validation`` has a column group.

    Args:
        validation: the share of training rows held out in tasks without a validation source; None with folds.
        folds: the number of folds, at least 2; no task may then have a validation source.
        seed: of the split.
        fold_column: what the layouts of the specs read folds from; ``folds`` may then be None.
        group: what the study names as groups, for the record.

    Raises:
        TaskFileError, ConfigError: with the faults of all tasks.
        StudyError: if the folder was prepared from other files or with other settings.
        StorageError: if the folder cannot be written, or is damaged.
    """
    by_name = {spec.name: spec for spec in specs}
    sources = for_all(by_name, lambda spec: for_all(_sources(spec), lambda source: _fingerprint(*source)))
    settings = {f"tasks.{spec.name}": json.loads(json.dumps(_settings(spec))) for spec in specs}
    rule = Split(validation=validation, folds=folds, seed=seed, fold_column=fold_column, group=group)
    settings["split"] = rule.model_dump()
    if fold_column is not None and folds is None:
        del settings["split"]["folds"]  # known once the rows are read
    if (folder / PREPARED_FILE).is_file():
        existing = load_prepared(folder)
        known = {
            task: {part: own[part] for part in own if part not in _added_tests(existing, task, sources)}
            for task, own in sources.items()
        }
        _check_unchanged(existing, sources=known, settings=settings)
        return _with_tests(existing, specs, sources)
    read = for_all(by_name, _read_task)
    held_out, settings["split"]["folds"], notices = hold_out({name: rows for name, (rows, *_) in read.items()}, rule)
    notices = [*(notice for spec in specs for notice in read[spec.name][2]), *notices]
    notices += [notice for rows in held_out.values() if (notice := _unjudged(rows))]
    tests = [(spec, source) for spec in specs for part, source in spec.sources.items() if part.startswith("test")]
    notices += [f"{spec.name}: {note}" for spec, source in tests if (note := numbering_note(spec.layout, source))]
    if not (group or fold_column):
        notices += [notice for spec in specs if (notice := _missed_group(spec, read[spec.name][0]))]
    if not settings["split"]["folds"]:  # of which each row has a part
        held_out = {spec.name: fewer_validated(held_out[spec.name], spec.max_eval_samples, seed) for spec in specs}
    results = for_all(by_name, lambda spec: _finished(spec, held_out[spec.name], read[spec.name][1], folder))
    parts = {
        spec.name: {part: write_rows(frame, folder, spec.name, part) for part, frame in results[spec.name][1].items()}
        for spec in specs
    }
    prepared = Prepared(
        folder=folder,
        tasks=tuple(results[spec.name][0] for spec in specs),
        parts=parts,
        origins=sources,
        settings=settings,
        notices=tuple(notices),
    )
    write_prepared(prepared)
    return prepared


def _with_tests(existing: Prepared, specs: Sequence[TaskSpec], sources: Mapping[str, Any]) -> Prepared:
    """The study's data with the test sets that were added since; what was prepared stays as it is."""
    parts, notices = {task: dict(own) for task, own in existing.parts.items()}, []
    added = [(spec, part) for spec in specs for part in _added_tests(existing, spec.name, sources)]
    frames = for_all(
        {f"{spec.name}/{part}": (spec, part) for spec, part in added},
        lambda each: _read(each[0], *_sources(each[0])[each[1]]),
    )
    for spec, part in added:
        parts[spec.name][part] = write_rows(frames[f"{spec.name}/{part}"], existing.folder, spec.name, part)
        if note := numbering_note(spec.layout, spec.sources[part]):
            notices.append(f"{spec.name}: {note}")
    if not added:
        return existing
    prepared = replace(existing, parts=parts, origins=sources, notices=(*existing.notices, *notices))
    write_prepared(prepared)
    return prepared


def _added_tests(existing: Prepared, task: str, sources: Mapping[str, Any]) -> list[str]:
    known = existing.origins.get(task, {})
    return [part for part in sources[task] if part.startswith("test") and part not in known]


def _sources(spec: TaskSpec) -> dict[str, tuple[str, Layout, str]]:
    """Part, or ``extraN``, to its name, the layout that reads it and its source."""
    sources = {part: (spec.layout, source) for part, source in spec.sources.items()}
    for part, source in spec.sources.items():
        if isinstance(spec.layout, Table) and part.startswith(
            ("validation", REPORTED)
        ):  # whose rows are not trained on
            sources[part] = replace(spec.layout, weight=None), source
    sources |= {REPORTED + name: (layout, source) for name, (source, layout) in spec.report_sets.items()}
    sources |= {f"extra{n}": (extra.layout, str(extra.path)) for n, extra in enumerate(spec.extra_train)}
    return {part: (part, *own) for part, own in sources.items()}


def _fingerprint(part: str, layout: Layout, source: str) -> dict[str, str]:
    return {"source": layout.origin(source), "sha256": layout.fingerprint(source)}


def _settings(spec: TaskSpec) -> dict[str, Any]:
    """All settings that determine the parts. Not the sources, whose paths may change as long as contents do not."""
    assert is_dataclass(spec.layout)
    assert not isinstance(spec.layout, type)
    layout = {key: value for key, value in asdict(spec.layout).items() if key != "dataset"}
    folds = [extra.fold for extra in spec.extra_train]
    for columns in (layout, layout.get("columns", {})):
        columns.pop("sample_ids", None)  # which is of the recipe, that may change
    return {
        "layout": {"type": type(spec.layout).__name__, **layout},
        "kind": spec.kind.name,
        "metric": spec.metric,
        "own metric": spec.own_metric and {**spec.own_metric.model_dump(), "file": sha256_of(spec.own_metric.file)},
        "submission": spec.submission,
        "extra_train weights": [extra.weight for extra in spec.extra_train],
        **({"extra_train folds": list(map(str, folds))} if any(fold is not None for fold in folds) else {}),
        "cleaning": spec.cleaning.model_dump(),
        **({"encoding": spec.encoding} if spec.encoding else {}),
        "generation": spec.generation and asdict(spec.generation),
        "samples": [spec.max_train_samples, spec.max_eval_samples, *filter(None, [spec.max_rows])],
    }


def _check_unchanged(existing: Prepared, *, sources: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    faults = []
    remedy = "give the study a new name, or put back what it was"
    for task in {**existing.origins, **sources}:
        old, new = existing.origins.get(task, {}), sources.get(task, {})
        for part in {**old, **new}:
            before, now = old.get(part), new.get(part)
            if before and now and before["sha256"] != now["sha256"]:
                rule = "be the file that the study was prepared from"
                faults.append(Fault(now["source"], rule, "another content", f"{remedy}: restore the file"))
            elif not (before and now):
                source = (before or now)["source"]
                got = f"{source} for {part}, which is {'gone' if before else 'new'}"
                faults.append(Fault(f"task {task}", "have the sources it was prepared from", got, remedy))
    for name in {**existing.settings, **settings}:
        old, new = existing.settings.get(name, {}), settings.get(name, {})
        for key in sorted(old.keys() & new.keys()):
            if old[key] != new[key]:
                rule, got = f"be {old[key]!r} as when the study was prepared", repr(new[key])
                faults.append(Fault(f"{name}: {key}", rule, got, remedy))
    if faults:
        raise StudyError(*faults)


def _read_task(spec: TaskSpec) -> tuple[TaskRows, dict[str, pd.DataFrame], list[str]]:
    """The task's labelled rows, cleaned, with labels of its kind, the parts without labels, and notices."""
    parts = for_all(_sources(spec), lambda source: _read(spec, *source))
    notices = [notice for _, layout, source in _sources(spec).values() for notice in layout.notices(source)]
    answers = parts["train"].attrs.get(ANSWERS)
    for part, layout, source in _sources(spec).values():
        notices += form_notices(layout.origin(source), parts[part].attrs.get(ANSWERS))
    join_files(parts)
    soft = {str(extra.path): soft_classes(parts[f"extra{n}"]) for n, extra in enumerate(spec.extra_train)}
    train = _join_train(spec, parts)
    if spec.cleaning.duplicates:
        train = drop_duplicates(train)
    kind, held_out = spec.kind, parts.pop("validation", None)
    cells = train["label"][~is_soft(train)]
    names = kind.names_of(cells, spec.order or spec.layout.class_order(spec.sources["train"]))
    if kind.exchangeable:  # as many as any row has
        names = letters(most_of(each["choices"] for each in (train, held_out, *parts.values()) if each is not None))
    check_order(spec, names)
    _check_labels(spec, _label_cells(spec, train, held_out), names, soft)
    if kind.exclusive and not kind.exchangeable:
        notices += odd_labels(cells, source=spec.layout.origin(spec.sources["train"]))
    whole = kind.probabilistic and not (kind.exchangeable or kind.sequential)
    if whole and (notice := several_labels(names, column=_label_column(spec))):
        notices.append(f"{spec.name}: {notice}")
    train = with_targets(train, names, exclusive=kind.exclusive)
    train = in_frame(train, kind.parse(train["label"].tolist(), names))
    for name in [name for name in parts if name.startswith(REPORTED)]:
        if name in spec.sources:  # further validation rows
            judged = spec.layout.origin(spec.sources[name]), parts[name]["label"].tolist()
            _check_labels(spec, replace(_label_cells(spec, train, None), validation=judged), names, {})
        labelled = in_frame(parts[name], kind.parse(parts[name]["label"].tolist(), names))
        parts[name] = labelled if "group" in labelled else labelled.assign(group="")
    if held_out is not None:
        held_out = in_frame(held_out, kind.parse(held_out["label"].tolist(), names))
        notices += leak_notices(spec, train[~train["extra"]], held_out)
    return TaskRows(spec.name, kind, names, train, held_out, answers), parts, notices


def _label_column(spec: TaskSpec) -> str:
    """The column of labels in the task's files, as a study file names it."""
    columns = getattr(spec.layout, "columns", spec.layout)
    return getattr(columns, "label", None) or "label"


def _unjudged(rows: TaskRows) -> str | None:
    assert rows.validation is not None
    if not rows.has_classes:
        return None
    train, validation = of_frame(rows.train), of_frame(rows.validation)
    return unjudged_classes(rows.names, train=train, validation=validation, task=rows.task)


def _missed_group(spec: TaskSpec, rows: TaskRows) -> str | None:
    """A notice of a column of groups that the study may have missed, where rows of the task's own file are held out."""
    if rows.validation is not None or len(rows.train) > _MOST_ROWS_LOOKED_AT:
        return None
    regular = rows.regular
    texts = {"text": "their first text", "text_b": "their second text"} if spec.pair else {}
    columns: dict[str, Sequence[object]] = {name: regular[name].tolist() for name in texts}
    further = spec.layout.further_columns(spec.sources["train"])
    if all(len(cells) == len(regular) for cells in further.values()):  # no row was left out as a duplicate
        columns |= {name: cells for name, cells in further.items() if name not in columns}
    notice = missed_group(spec.kind.indicators(of_frame(regular)), columns, texts=texts)
    return notice and f"{spec.name}: {notice}"


def _finished(
    spec: TaskSpec, rows: TaskRows, parts: Mapping[str, pd.DataFrame], folder: Path
) -> tuple[Task, dict[str, pd.DataFrame]]:
    """The task and all of its parts, after rows were held out."""
    train, names = rows.train.drop(columns=["extra", "only", "group"], errors="ignore"), tuple(rows.names)
    if untrained := rows.kind.untrained(of_frame(train), names):
        rule = "have a row of each class besides those of extra_train whose texts are validated on"
        got = f"none of {', '.join(map(repr, untrained))}"
        raise TaskFileError(Fault(f"task {spec.name}", rule, got, "add training rows of that class"))
    if "probabilities" in train and train["probabilities"].isna().all():  # every soft row was dropped
        train = train.drop(columns="probabilities")
    own = None if spec.own_metric is None else ship(spec.own_metric, folder)
    task = Task(
        spec.name,
        names,
        spec.pair,
        spec.metric,
        spec.submission,
        rows.kind.name,
        report=spec.report,
        own_metric=own,
        weight=spec.weight,
        generation=spec.generation,
        unit=spec.unit,
        answers=rows.answers,
        orders=spec.orders,
    )
    assert rows.validation is not None
    _check_metrics(task, of_frame(rows.validation))
    return task, {"train": train, "validation": rows.validation, **parts}


def _join_train(spec: TaskSpec, parts: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The rows of train and of all ``extraN``, removed from ``parts``, with columns weight and extra (bool)."""
    own = parts.pop("train").head(spec.max_train_samples or sys.maxsize).assign(extra=False, only=-1)
    frames = [
        own.assign(
            weight=row_weights(own, origin=spec.layout.origin(spec.sources["train"]))
            if "weight" in own
            else np.float32(1)
        )
    ]
    for n, extra in enumerate(spec.extra_train):
        rows = parts.pop(f"extra{n}")
        only = -1 if extra.fold is None else extra.fold
        rows = rows.assign(id=f"extra{n}/" + rows["id"], weight=np.float32(extra.weight), extra=True, only=only)
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)


def _read(spec: TaskSpec, part: str, layout: Layout, source: str) -> pd.DataFrame:
    """The cleaned rows of one source, with the source's labels, or with float32 labels for a regression."""
    labelled = part == "validation" or part.startswith(("train", "extra", REPORTED))
    if part.startswith("unlabeled") and spec.plain_files:  # whose ids need not be unique
        named = layout.with_ids(source) if isinstance(layout, Table) else layout
        rows = pd.concat(cast(FileLayout, named).blocks(source, rows=_ALL), ignore_index=True)
        rows = clean_rows(rows.assign(id=own_ids(rows["id"].tolist())), spec.cleaning)
    else:
        rows = clean_rows(layout.read(source, labelled=labelled, check=spec.kind.cell_fault), spec.cleaning)
    rows = at_most(rows, spec.max_rows)
    if labelled and spec.group and not part.startswith(REPORTED):
        rows = rows.assign(group=_text_of_group(spec, rows))
    if labelled:
        rows = rows.assign(label=list(map(spec.kind.plain, rows["label"])))
    return rows


def _text_of_group(spec: TaskSpec, rows: pd.DataFrame) -> pd.Series:
    if spec.group not in rows:
        rule, remedy = "name text_b only for tasks of pairs", "name `text`, or a column, or other groups for each task"
        raise ConfigError(Fault("split.group", rule, f"the single texts of task {spec.name}", remedy))
    return rows[spec.group]


def _label_cells(spec: TaskSpec, train: pd.DataFrame, held_out: pd.DataFrame | None) -> LabelCells:
    extra = {}
    for n, source in enumerate(spec.extra_train):
        rows = train[train["id"].str.startswith(f"extra{n}/") & train["extra"] & ~is_soft(train)]
        extra[str(source.path)] = rows["label"].tolist()
    validation = None
    if held_out is not None:
        validation = spec.layout.origin(spec.sources["validation"]), held_out["label"].tolist()
    own = train["label"][~train["extra"]].tolist()
    return LabelCells(spec.layout.origin(spec.sources["train"]), own, validation, extra)


def _check_labels(spec: TaskSpec, cells: LabelCells, names: Sequence[str], soft: Mapping[str, Sequence[str]]) -> None:
    faults = list(spec.kind.label_faults(cells, names))
    for file, known in soft.items():
        if unknown := [name for name in known if name not in names]:
            rule, got = f"have probabilities of {', '.join(names)} alone", f"also of {', '.join(unknown)}"
            faults.append(Fault(file, rule, got, "add training rows of that class, or leave it out of the file"))
    if faults:
        raise TaskFileError(*faults)


def _check_metrics(task: Task, labels: np.ndarray) -> None:
    """Checks that the metrics fit the task; a user's own is tried on outputs that say nothing of the labels."""
    metric, where = metric_of(task), f"tasks.{task.name}"
    check_fits(metric, task.kind_name, outputs=len(task.names), what=f"{where}.metric")
    for name in task.report:
        check_fits(METRICS[name], task.kind_name, outputs=len(task.names), what=f"{where}.report")
    if task.own_metric is not None:
        Scorer.of(task, metric).score(labels, task.kind.guess(labels, task.outputs))
