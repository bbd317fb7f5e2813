"""Predicts new rows with a study's models."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyarrow import ArrowException

from tutti.bank.electorate import located
from tutti.errors import Fault, StudyError, TaskFileError, counted, first_line, nearest
from tutti.files import sha256_of
from tutti.workflows.base import StudyBase
from tutti.workflows.electorate import chosen_recipe, election_of, election_of_trials, voting_studies

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.config.recipe import Recipe
    from tutti.config.study import StudyConfig
    from tutti.ensembling.task_vote import TaskVote
    from tutti.orchestration.after.encodings import Checkpoint
    from tutti.orchestration.after.inference import Slots
    from tutti.outputs.election.members import Elected
    from tutti.outputs.submission.predictions import Shards
    from tutti.tasks.build import TaskSpec
    from tutti.tasks.layouts.protocol import FileLayout
    from tutti.tasks.task import Task


@dataclass(frozen=True)
class Predictors:
    """The checkpoints that predict, and how their predictions are combined.

    Attributes:
        description: in words, for the console.
        manifest: what the result depends on besides the checkpoints and the rows, for the shards' manifest.
        training: training keys, in which a study with a member rules out a precision.
        elected: the ensemble; None of a single checkpoint.
    """

    description: str
    checkpoints: Sequence[Checkpoint]
    vote: TaskVote
    manifest: dict[str, Any]
    training: Mapping[str, Any]
    elected: Elected | None = None


@dataclass(frozen=True)
class Input:
    """A file of new rows: its layout, its task and its number of rows."""

    file: Path
    layout: FileLayout
    spec: TaskSpec
    rows: int

    def shards(self, size: int, *, skip: set[int]) -> Iterator[tuple[int, DataFrame]]:
        """Yields the number and the cleaned rows of each shard that is not in ``skip``."""
        from tutti.data.clean import clean_rows

        for number, rows in enumerate(_of_size(self.layout.blocks(str(self.file), rows=size), size)):
            if number not in skip:
                yield number, clean_rows(rows, self.spec.cleaning)


def _of_size(blocks: Iterator[DataFrame], size: int) -> Iterator[DataFrame]:
    """Regroups blocks of at most ``size`` rows into blocks of exactly as many; the last one may have fewer."""
    from pandas import concat

    pending: list[DataFrame] = []
    count = 0
    for block in blocks:
        pending.append(block)
        count += len(block)
        if count >= size:
            rows = concat(pending, ignore_index=True)
            yield rows[:size]
            pending, count = [rows[size:]], count - size
    if count:
        yield concat(pending, ignore_index=True)


def predict(
    study: StudyBase,
    rows: Path | str,
    out: Path | str,
    *,
    task: str | None = None,
    recipe: str | None = None,
    others: Sequence[str] = (),
    checkpoint: Path | str | None = None,
    refit: bool = False,
) -> Path:
    """Predicts a file of new rows with the members of an ensemble, on Ray; a data frame is for ``Vote.predict``.

    What was cut off goes on where it was when it is called again.

    Args:
        rows: CSV, TSV, JSON, Parquet or Excel.
        out: what is written: .csv, .jsonl, .json or .parquet.
        task: which task, where the study has several.
        recipe, others: as in ``ensemble``.
        checkpoint: one checkpoint alone, such as a soup, instead of an ensemble.
        refit: whether the members are those that ``refit`` trained on all rows.

    Returns:
        ``out``: id, label, confidence and each class's probability, in the order of the rows.

    Raises:
        StudyError: if a member's weights are missing, or ``out`` cannot be written.
        TaskFileError: if the rows cannot be read.

    Example:
        >>> study.predict("new.tsv", "predictions.csv", task="CoLA", recipe="baseline")
    """
    from tutti.data.flat_rows import SHARD
    from tutti.outputs.submission.predictions import Shards, check_out
    from tutti.tasks.build import numbering_note

    began, study, file, out = time.monotonic(), study.stored, Path(rows), Path(out)
    console, own = study.console, task_named(study, task)
    check_out(out, file)
    new_rows = read_input(study.config, own, file)
    if note := numbering_note(new_rows.layout, str(file)):
        console.print(note)
    if checkpoint:
        predictors = single_checkpoint(study, own, Path(checkpoint))
    else:
        name, chosen = chosen_recipe(study, recipe)
        studies = voting_studies(study, members=chosen.members, others=others)
        predictors = chosen_members(studies, own, name, chosen, refit=refit)
    described = f"{counted(new_rows.rows, 'row')} of {file}"
    console.print(f"Study {study.name}, task {own.name}: {described} by {predictors.description}")
    for notice in new_rows.layout.notices(str(file)):
        console.print(notice)
    manifest: dict[str, Any] = {"input": sha256_of(file), "layout": repr(new_rows.layout)}
    manifest["task"] = own.to_dict(study.folder.data)
    manifest |= {"cleaning": new_rows.spec.cleaning.model_dump(), "checkpoints": _fingerprints(predictors.checkpoints)}
    manifest |= predictors.manifest
    shards = Shards(out, rows=new_rows.rows, size=SHARD, manifest=manifest)
    with shards.locked():
        done = shards.done() if shards.precision else set()
        if done:
            console.print(f"Continuing: {len(done)} of {counted(shards.count, 'shard')} are done")
        if len(done) < shards.count:
            _run(study, new_rows, predictors, shards, done)
        shards.finish()
    console.print(f"wrote {out} in {time.monotonic() - began:.0f} s")
    return out


def _run(study: StudyBase, new_rows: Input, predictors: Predictors, shards: Shards, done: set[int]) -> None:
    """Predicts all shards but those that are done."""
    from rich.progress import Progress

    from tutti.data.flat_rows import SHARD
    from tutti.orchestration.after.inference import predict_shards

    jobs = (shards.count - len(done)) * len(predictors.checkpoints)
    with (
        connected_slots(study, most=jobs) as slots,
        Progress(console=study.console, transient=True, disable=not study.console.is_terminal) as progress,
    ):
        bar = progress.add_task("rows", total=new_rows.rows, completed=len(done) * SHARD)

        def on_start(precision: str) -> None:
            shards.begin(precision)
            loaded = counted(len(predictors.checkpoints), "checkpoint")
            progress.console.print(f"{counted(slots.workers, 'worker')} with {loaded}, in {precision}")

        def on_shard(number: int, rows: DataFrame, predictions: list[Any]) -> None:
            table = predictors.vote.table(rows["id"].tolist(), predictions, rows.get("choices"), rows["text"].tolist())
            shards.write(number, table)
            progress.advance(bar, len(rows))

        predict_shards(
            new_rows.shards(SHARD, skip=done),
            checkpoints=predictors.checkpoints,
            task=predictors.vote.task,
            slots=slots,
            training=predictors.training,
            precision=shards.precision,
            started=on_start,
            done=on_shard,
        )


@contextmanager
def connected_slots(study: StudyBase, *, most: int) -> Iterator[Slots]:
    """Connects to Ray for workers that predict, as many as the trials of a study may have, but ``most`` at the most."""
    from tutti.cluster.connect import connected
    from tutti.config.study import Resources
    from tutti.orchestration.after.inference import Slots, slot_size

    resources = study.config.resources
    cpus, gpus = slot_size(resources)
    trials = resources.concurrent_trials
    autoscaled_to = None if trials is None else trials * resources.workers
    slot = Resources(cpus_per_worker=cpus, gpus_per_worker=gpus)
    with connected(slot, autoscaled_to=autoscaled_to, tell=study.console.print) as concurrent:
        yield Slots(min(concurrent, most), cpus, gpus)


def task_named(study: StudyBase, name: str | None) -> Task:
    """The study's task of this name, or its only one; raises StudyError if there is none."""
    tasks = {task.name: task for task in study.prepared.tasks}
    if name is None and len(tasks) == 1:
        return next(iter(tasks.values()))
    if name not in tasks:
        listed = ", ".join(tasks)
        got = "none" if name is None else repr(name)
        otherwise = f"add --task {next(iter(tasks))}" if name is None else "name one of them"
        remedy = nearest(name or "", tasks, otherwise=otherwise)
        raise StudyError(Fault("--task", f"be one of the tasks of {study.name}: {listed}", got, remedy))
    return tasks[name]


def read_input(config: StudyConfig, task: Task, file: Path) -> Input:
    """Reads the whole input once, so that a fault in its last row is found before the first row is predicted.

    Raises:
        TaskFileError: if the file cannot be read in its layout.
    """
    from tutti.data.flat_rows import SHARD
    from tutti.tasks.build import new_rows_layout, sample_ids_of, task_spec
    from tutti.tasks.layouts.candidates import from_json

    spec = task_spec(task.name, config.tasks[task.name], sample_ids_of(config).get(task.name, ()))
    layout = new_rows_layout(spec, file)
    rows = 0
    for block in layout.blocks(str(file), rows=SHARD):
        rows += len(block)
        for own in from_json(block["choices"]) if "choices" in block else ():
            if len(own) > len(task.names):
                rule, remedy = f"have at most {len(task.names)} candidates, as the study's rows", "take the others out"
                raise TaskFileError(Fault(str(file), rule, f"a row with {len(own)}", remedy))
    return Input(file, layout, spec, rows)


def chosen_members(
    studies: Mapping[str, StudyBase],
    task: Task,
    name: str,
    recipe: Recipe,
    only: tuple[str, Collection[str]] | None = None,
    *,
    among: Mapping[str, Collection[str]] | None = None,
    refit: bool = False,
) -> Predictors:
    """The checkpoints of the ensemble's members, except members whose vote has no weight. Guests are left out, but not
    those whose texts a trial writes.

    Args:
        only: a study and the keys of its trials, which alone are taken if they are members, of whatever weight.
        among: the trials that may be members, as ``only`` of ``electorate_of``.
        refit: whether members are those that ``refit`` trained on all rows.

    Raises:
        StudyError: if the banks lack what the election needs, or a member's weights are missing.
    """
    from tutti.data.clean import CLEANED_BY
    from tutti.ensembling.task_vote import TaskVote
    from tutti.modeling.checkpoint import read_metadata
    from tutti.orchestration.after.encodings import Checkpoint
    from tutti.orchestration.after.weights import refit_weights, weights_of
    from tutti.training.machine.precision import ruled_out

    first = next(iter(studies.values()))
    chosen = election_of if only else partial(election_of_trials, writers=not refit)
    poll, election, *_ = chosen(studies, recipe, wanted={task.name}, only=among)
    rule, elected = poll.rule, election.tasks[task.name]
    groups: dict[int, list[int]] = {}
    checkpoints: list[Checkpoint] = []
    training: dict[str, Any] = {}
    voting = elected.ensemble.needed
    records = {record.key: record for record in poll.bank.records()}
    if only:
        all_located = [located(member.key, studies) for member in elected.members]
        voting = [place for place, (owner, key) in enumerate(all_located) if owner == only[0] and key in only[1]]
    able = {study_name: study for study_name, study in studies.items() if task.name in study.config.tasks}
    places = {located(elected.members[place].key, studies): place for place in voting}
    for study_name, study in able.items():
        own = {key: place for (owner, key), place in places.items() if owner == study_name}
        cleanings = [each.config.tasks[task.name].cleaning for each in (study, first)]
        if own and any(getattr(cleanings[0], key) != getattr(cleanings[1], key) for key in CLEANED_BY):
            needed = f"clean the texts of {task.name} as {first.config.study} does, to predict new rows with it"
            raise StudyError(Fault(f"the study {study_name}", needed, "other steps", "leave one of the two out"))
        training |= ruled_out(study.config.training) if own else {}
        voters = {key: records[elected.members[place].key] for key, place in own.items()}
        if refit:
            found = {key: refit_weights(study.folder, name, key) for key in own}
        else:
            writers = {key: voters[key].writer or key for key in own}
            keys = [*dict.fromkeys(writers.values())]
            trained = weights_of(study.folder, keys, folds=study.config.split.folds, tasks=[task])
            found = {key: trained[writer] for key, writer in writers.items()}
        generation = task_named(study, task.name).generation
        for key, weights in found.items():
            own_settings = voters[key].settings
            settings = {**generation.settings, **own_settings} if generation and own_settings else {}
            groups[own[key]] = list(range(len(checkpoints), len(checkpoints) + len(weights)))
            checkpoints += [Checkpoint(path, read_metadata(path).limit, settings) for path in weights]
    vote = TaskVote(task, groups, elected.ensemble, calibrated=rule.calibration == "temperature")
    # The ensemble depends on these alone, so they identify it in the manifest: further trials may finish meanwhile.
    votes = elected.ballot.votes[elected.ensemble.voters]
    ballot = hashlib.sha256(votes.tobytes() + elected.ballot.labels.tobytes()).hexdigest()
    manifest = {"rule": rule.model_dump(), "ballot": ballot, "members": [member.key for member in elected.members]}
    listed = ", ".join(elected.members[place].key for place in voting)
    description = f"recipe {name}: {counted(len(groups), 'trial')} ({listed})"
    return Predictors(description, checkpoints, vote, manifest, training, elected)


def single_checkpoint(study: StudyBase, task: Task, checkpoint: Path) -> Predictors:
    """One checkpoint alone; raises StudyError if it does not exist, or does not predict the task."""
    import numpy as np

    from tutti.ensembling.task_vote import TaskVote
    from tutti.modeling.checkpoint import METADATA, read_metadata
    from tutti.orchestration.after.encodings import Checkpoint
    from tutti.orchestration.after.weights import check_predicts
    from tutti.training.machine.precision import ruled_out

    checkpoint, config, folder = checkpoint.absolute(), study.config, study.folder
    example = folder.trial("t0000").fold(0) if config.split.folds else folder.trial("t0000")
    remedy = f"name the folder of a checkpoint, such as {example.best}"
    # A soup of trials with folds has a model for each fold, of which the mean predicts.
    folders = sorted(path for path in checkpoint.glob("fold-*") if (path / METADATA).is_file()) or [checkpoint]
    for each in folders:
        check_predicts(each, [task], what="--checkpoint", remedy=remedy)
    metadata = read_metadata(folders[0])
    fitted = metadata.decisions.get(task.name)
    vote = TaskVote(task, {0: range(len(folders))}, decision=None if fitted is None else np.array(fitted))
    checkpoints = [Checkpoint(each, metadata.limit) for each in folders]
    return Predictors(f"the checkpoint {checkpoint}", checkpoints, vote, {}, ruled_out(config.training))


def _fingerprints(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """Values that change with the checkpoints' weights: each metadata file contains the hashes of all other files."""
    from tutti.modeling.checkpoint import METADATA

    return [
        {"sha256": sha256_of(each.folder / METADATA), "max_length": each.limit.max_length, **each.settings}
        for each in checkpoints
    ]


class FramePredictor:
    """Predicts data frames in this process, with the checkpoints loaded once."""

    def __init__(self, study: StudyBase, task: Task, predictors: Predictors) -> None:
        from tutti.orchestration.after.inference import LocalPredictor

        self._study, self._task, self._vote = study, task, predictors.vote
        self._local = LocalPredictor(predictors.checkpoints, task, training=predictors.training)

    def __call__(self, rows: DataFrame) -> DataFrame:
        """``Vote.predict``. The rows are read like those of a Parquet file, so that its layout applies to them."""
        from pandas import concat

        from tutti.data.flat_rows import SHARD

        with TemporaryDirectory() as folder:
            file = Path(folder, "rows.parquet")
            try:
                rows.to_parquet(file, index=False)
            except (ValueError, TypeError, ArrowException) as error:  # a column of several types
                rule, remedy = "have columns of one type each", "convert the column to texts"
                raise TaskFileError(Fault("the rows", rule, first_line(error), remedy)) from error
            try:
                new_rows = read_input(self._study.config, self._task, file)
            except TaskFileError as error:  # which names a file that the caller does not know
                faults = (replace(fault, what=fault.what.replace(str(file), "the rows")) for fault in error.faults)
                raise TaskFileError(*faults) from None
            tables = []
            for _, shard in new_rows.shards(SHARD, skip=set()):
                predicted = self._local.predict(shard)
                given = (shard["id"].tolist(), predicted, shard.get("choices"), shard["text"].tolist())
                tables.append(self._vote.table(*given).to_pandas())
        return concat(tables).set_index(rows.index)
