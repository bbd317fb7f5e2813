"""Second-stage models, which vote as guests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tutti.errors import Fault, StudyError, TaskFileError, counted, nearest
from tutti.outputs.election.member_checks import SECOND_STAGE
from tutti.workflows.base import StudyBase
from tutti.workflows.guests import put_guest, sources_of

if TYPE_CHECKING:
    from tutti.records import CheckpointRecord
    from tutti.tasks.build import TaskSpec
    from tutti.tasks.layouts.table import Table


def second(
    study: StudyBase,
    *,
    task: str | None = None,
    model: str = "linear",
    columns: Sequence[str] = (),
    name: str = "second",
    seed: int = 0,
) -> CheckpointRecord:
    """Fits a model to the predictions of all trials and guests, and lets it vote as one more guest.

    Its predictions of the validation rows are out of fold: of each fifth of them, texts and groups kept together, by a
    model fitted to the others. Test and unlabelled rows are predicted by one that is fitted to all.

    Args:
        task: which task, where the study has several.
        model: ``linear`` (logistic or ridge regression), ``boosting`` (of histograms) or ``lightgbm``.
        columns: further columns of the task's table, of numbers, which it also learns from.
        name: of the guest.
        seed: of folds and model.

    Returns:
        Its record in the bank, with its score.

    Raises:
        StudyError: if rows have no fixed number of outputs, there is no member, or the model is unknown.
        TaskFileError: if a column is missing or has other cells than numbers.

    Example:
        >>> study.second(columns=["words", "upvotes"]).score
    """
    from tutti.bank.exchange import output_columns
    from tutti.data.clean import text_groups_of
    from tutti.ensembling.second import MODELS, SecondStage, features_of
    from tutti.tasks.build import sample_ids_of, task_spec
    from tutti.workflows.predict import task_named

    study = study.stored
    own = task_named(study, task)
    output_columns(own)
    if own.kind.exchangeable or own.kind.comparative:
        rule, got = "have outputs that mean the same in every row", own.kind.describe(own.names)
        raise StudyError(Fault(f"the task {own.name}", rule, got, "let its trials vote: `tutti ensemble`"))
    if model not in MODELS:
        remedy = nearest(model, MODELS, otherwise="name one of them")
        raise StudyError(Fault("--model", f"be one of {', '.join(MODELS)}", repr(model), remedy))
    bank, prepared = study.bank, study.prepared
    imported = [
        record.key
        for record in bank.records()
        if not sources_of(record).get(own.name, SECOND_STAGE).startswith(SECOND_STAGE)
    ]
    if name in imported:
        raise StudyError(Fault("--name", "be no imported guest's", repr(name), "name the second stage otherwise"))
    parts = [
        part for part in prepared.parts[own.name] if part in ("validation", "unlabeled") or part.startswith("test")
    ]
    records = [
        record
        for record in bank.records()
        if own.name in record.task_scores
        and not sources_of(record).get(own.name, "").startswith(SECOND_STAGE)
        and record.key != name
    ]
    if not records:
        rule, remedy = "have a trial or guest whose predictions it learns from", "wait until one has finished"
        raise StudyError(Fault(f"the study {study.name}", rule, "none", remedy))
    held = {record.key: bank.parts(record.key).get(own.name, []) for record in records}
    parts = [part for part in parts if all(part in of_member for of_member in held.values())]
    spec = task_spec(own.name, study.config.tasks[own.name], sample_ids_of(study.config).get(own.name, ()))
    features = {}
    for part in parts:
        votes = np.stack([bank.predictions(record.key, own.name, part).outputs for record in records])
        further = _numbers(spec, part, prepared.ids(own.name, part).tolist(), columns)
        features[part] = features_of(own.kind, votes, further)
    stage = SecondStage(own.kind, model, own.outputs, seed)  # type: ignore[arg-type]
    labels = prepared.labels(own.name, "validation")
    groups = text_groups_of({own.name: prepared.rows(own.name, "validation")})[own.name]
    learnt = features["validation"]
    outputs = {part: stage.fitted(learnt, labels, features[part]) for part in parts if part != "validation"}
    outputs["validation"] = stage.out_of_fold(learnt, labels, groups)
    members = ", ".join(record.key for record in records)
    source = f"{SECOND_STAGE}, {model}, of {members}" + f", and the columns {', '.join(columns)}" * bool(columns)
    parameters = {"model": model, "members": members, "columns": ", ".join(columns), "seed": str(seed)}
    return put_guest(study, name, own, outputs, source=source, parameters=parameters)


def _numbers(spec: TaskSpec, part: str, ids: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """``(rows, columns)`` float64 of columns of a part's tables, for the rows with these ids; NaN where empty."""
    from tutti.tasks.layouts.reading import own_ids
    from tutti.tasks.layouts.table import Table

    if not names:
        return np.empty((len(ids), 0))
    if not isinstance(spec.layout, Table):
        got, remedy = "another", "leave --columns out"
        raise StudyError(Fault(f"the task {spec.name}", "have the layout table, whose columns are named", got, remedy))
    first = part if part in spec.sources else "train"  # of which rows were held out
    several = [f"{first}-{place}" for place in range(1, len(spec.sources))]
    files = [spec.sources[each] for each in (first, *several) if each in spec.sources]
    tables = [_of_file(spec.layout, file, names, labelled=first in ("train", "validation")) for file in files]
    theirs, values = own_ids([name for own, _ in tables for name in own]), np.concatenate([each for _, each in tables])
    index = {name: row for row, name in enumerate(theirs)}
    if lost := [name for name in ids if name not in index]:
        got = f"none for {counted(len(lost), 'row')}, such as {lost[0]!r}"
        raise TaskFileError(Fault(files[0], "have the rows that the study was prepared from", got, "restore the file"))
    return values[[index[name] for name in ids]]


def _of_file(layout: Table, file: str, names: Sequence[str], *, labelled: bool) -> tuple[list[str], np.ndarray]:
    """The ids of a table, and columns of numbers ``(rows, columns)``."""
    from tutti.tasks.layouts.cells import cell_text, id_text
    from tutti.tasks.layouts.reading import own_ids
    from tutti.tasks.layouts.table import table_blocks
    from tutti.tasks.number_text import parse_number

    layout = layout if labelled else layout.with_ids(file)
    known = layout.wanted(layout.names(labelled=labelled))
    table, places, place = next(table_blocks(file, None, wanted={*known, *names}))
    if missing := [name for name in names if name not in table]:
        remedy = nearest(missing[0], table, otherwise="name one of them")
        raise TaskFileError(Fault(file, f"have the column {missing[0]!r}", f"the columns {', '.join(table)}", remedy))
    ids = list(map(str, range(len(places))))
    if layout.id is not None and layout.id in table:
        ids = [id_text(cell) for cell in table[layout.id]]
    cells = [[cell_text(cell).strip() for cell in table[name]] for name in names]
    values = np.array([[parse_number(cell) for cell in column] for column in cells], dtype=np.float64).T
    filled = np.array([[cell != "" for cell in column] for column in cells]).T
    if (odd := filled & ~np.isfinite(values)).any():
        row, column = np.argwhere(odd)[0]
        where, got = f"{file}, {place} {places[row]}", repr(cells[column][row])
        raise TaskFileError(Fault(where, f"have a number or nothing in {names[column]!r}", got, "name another column"))
    return own_ids(ids), np.where(filled, values, np.nan)
