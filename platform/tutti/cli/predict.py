"""``tutti predict``: what a study's models say about new rows."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutti.cli import stores
from tutti.cli.browse import Study
from tutti.cli.console import console
from tutti.cli.electorate import Kept, With, electorate_of, voting_studies
from tutti.cli.vote import RecipeName, rule_of
from tutti.cluster.ending import EXIT_CODE
from tutti.errors import Fault, StudyError, counted, nearest
from tutti.files import sha256_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from tutti.config.folder import StudyFolder
    from tutti.config.recipe import Recipe
    from tutti.config.study import StudyConfig
    from tutti.data.prepare import Prepared
    from tutti.orchestration.inference import Checkpoint
    from tutti.outputs.predictions import Shards, TaskVote
    from tutti.tasks.build import TaskSpec
    from tutti.tasks.layouts.protocol import FileLayout
    from tutti.tasks.task import Task


@dataclass(frozen=True)
class Chosen:
    """What predicts: in words, as checkpoints, and how they become one answer.

    Attributes:
        told: what decides the answer beside the checkpoints and the rows, for the shards' manifest.
    """

    words: str
    checkpoints: Sequence[Checkpoint]
    vote: TaskVote
    told: dict[str, Any]


@dataclass(frozen=True)
class Input:
    """A file of new rows, how it is read, and how many rows it has."""

    file: Path
    layout: FileLayout
    spec: TaskSpec
    rows: int

    def shards(self, size: int, *, without: set[int]) -> Iterator[tuple[int, DataFrame]]:
        from tutti.data.prepare import clean_rows

        for number, rows in enumerate(self.layout.blocks(str(self.file), rows=size)):
            if number not in without:
                yield number, clean_rows(rows, self.spec.cleaning)


def predict(
    study: Study,
    file: Annotated[Path, typer.Option("--input", metavar="FILE", help="New rows: CSV, TSV, JSON Lines or Parquet.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="What is written: .csv, .jsonl or .parquet.")],
    recipe: RecipeName = None,
    others: With = None,
    task: Annotated[str | None, typer.Option("--task", help="Which task, where the study has several.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="DIR", help="One checkpoint alone, such as a soup.")
    ] = None,
) -> None:
    """Predicts new rows with the members of an ensemble: id, label, confidence and each class's probability, in order.

    Runs on the cluster that RAY_ADDRESS names, otherwise on a Ray of its own on this machine. Needs the members'
    weights. What was cut off goes on where it was when the command is run again.

    Example: `tutti predict glue_trio --task CoLA --recipe baseline --input new.tsv --out predictions.csv`
    """
    from tutti.config.load import load_recipe
    from tutti.orchestration.inference import SHARD
    from tutti.outputs.predictions import Shards, check_out

    began = time.monotonic()
    config, folder, prepared = stores.open_folder(study)
    own = _task(config, prepared, task)
    check_out(out, file)
    given = read_input(config, own, file)
    if checkpoint:
        chosen = _alone(config, folder, own, checkpoint)
    else:
        name, wanted = load_recipe(recipe or config.ensemble.recipe)
        studies = voting_studies(config, folder, prepared, members=wanted.members, others=others or ())
        chosen = chosen_members(studies, own, name, wanted)
    console.print(f"Study {config.study}, task {own.name}: {counted(given.rows, 'row')} of {file} by {chosen.words}")
    manifest: dict[str, Any] = {"input": sha256_of(file), "layout": repr(given.layout), "task": own.to_dict()}
    manifest |= {"cleaning": asdict(given.spec.cleaning), "checkpoints": _fingerprints(chosen.checkpoints)}
    manifest |= chosen.told
    shards = Shards(out, rows=given.rows, size=SHARD, manifest=manifest)
    with shards.held():
        there = shards.done() if shards.precision else set()
        if there:
            console.print(f"Going on: {len(there)} of {counted(shards.count, 'shard')} are there")
        try:
            if len(there) < shards.count:
                _run(config, given, chosen, shards, there)
            shards.finish()
        except KeyboardInterrupt:
            console.print("Interrupted; the same command goes on with the rows that are left.", soft_wrap=True)
            sys.exit(EXIT_CODE)
    console.print(f"wrote {out} in {time.monotonic() - began:.0f} s", soft_wrap=True)


def _run(config: StudyConfig, given: Input, chosen: Chosen, shards: Shards, there: set[int]) -> None:
    """Predicts the shards that are not there yet."""
    from rich.progress import Progress

    from tutti.cluster.connect import connected
    from tutti.orchestration.inference import SHARD, Slots, predict_shards, slot_size

    cpus, gpus = slot_size(config.resources)
    jobs = (shards.count - len(there)) * len(chosen.checkpoints)
    console.print("Starting Ray")
    with (
        connected(workers=1, cpus_per_worker=cpus, gpus_per_worker=gpus, concurrent_trials=None) as fits,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("rows", total=given.rows, completed=len(there) * SHARD)
        slots = Slots(min(fits, jobs), cpus, gpus)

        def started(precision: str) -> None:
            shards.begin(precision)
            loaded = counted(len(chosen.checkpoints), "checkpoint")
            progress.console.print(f"{counted(slots.workers, 'worker')} with {loaded}, in {precision}")

        def done(number: int, rows: DataFrame, said: list[Any]) -> None:
            shards.write(number, chosen.vote.table(rows["id"].tolist(), said))
            progress.advance(bar, len(rows))

        predict_shards(
            given.shards(SHARD, without=there),
            checkpoints=chosen.checkpoints,
            task=chosen.vote.task,
            slots=slots,
            precision=shards.precision or ("float32" if config.training.get("bf16") is False else None),
            started=started,
            done=done,
        )


def _task(config: StudyConfig, prepared: Prepared, name: str | None) -> Task:
    known = {task.name: task for task in prepared.tasks}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name not in known:
        listed = ", ".join(known)
        got = "none" if name is None else repr(name)
        otherwise = f"add --task {next(iter(known))}" if name is None else "name one of them"
        remedy = nearest(name or "", known, otherwise=otherwise)
        raise StudyError(Fault("--task", f"be one of the tasks of {config.study}: {listed}", got, remedy))
    return known[name]


def read_input(config: StudyConfig, task: Task, file: Path) -> Input:
    """The input, once every row of it was looked at: a fault in the last one is found before the first is predicted.

    Raises:
        TaskFileError: where it cannot be read as its layout says.
    """
    from tutti.orchestration.inference import SHARD
    from tutti.tasks.build import new_rows_layout, task_spec

    spec = task_spec(task.name, config.tasks[task.name])
    layout = new_rows_layout(spec, file)
    rows = sum(len(block) for block in layout.blocks(str(file), rows=SHARD))  # as they are predicted
    return Input(file, layout, spec, rows)


def chosen_members(studies: Mapping[str, Kept], task: Task, name: str, recipe: Recipe) -> Chosen:
    """The checkpoints of the ensemble's members that are heard.

    Raises:
        StudyError: where the banks have not what electing them needs, or the weights of one are not there.
    """
    from tutti.modeling.checkpoint import read_metadata
    from tutti.orchestration.inference import Checkpoint, weights_of
    from tutti.outputs.members import elect
    from tutti.outputs.predictions import TaskVote, heard

    bank, rule, first = electorate_of(studies, members=recipe.members), rule_of(recipe), next(iter(studies.values()))
    ids = {task.name: first.prepared.ids(task.name, "validation")}
    election = elect(study=first.config.study, bank=bank, tasks=[task], validation=ids, needed={}, rule=rule)
    elected = election.tasks[task.name]
    groups: dict[int, list[int]] = {}
    checkpoints: list[Checkpoint] = []
    voting = heard(elected.ensemble)
    for study, kept in studies.items():
        if kept.config.tasks[task.name].cleaning != first.config.tasks[task.name].cleaning:
            needed = f"clean the texts of {task.name} as {first.config.study} does, to predict new rows with it"
            raise StudyError(Fault(f"the study {study}", needed, "other steps", "leave one of the two out"))
        places = {bank.place(elected.members[place].key): place for place in voting}
        own = {key: place for (of, key), place in places.items() if of == study}
        for key, found in weights_of(kept.folder, [*own], folds=kept.config.split.folds, tasks=[task]).items():
            groups[own[key]] = list(range(len(checkpoints), len(checkpoints) + len(found)))
            checkpoints += [Checkpoint(each, read_metadata(each).max_length) for each in found]
    vote = TaskVote(task, groups, elected.ensemble, calibrated=rule.calibration == "temperature")
    # The ensemble is a function of these alone.
    ballot = hashlib.sha256(elected.ballot.votes.tobytes() + elected.ballot.labels.tobytes()).hexdigest()
    told = {"rule": asdict(rule), "ballot": ballot, "members": [member.key for member in elected.members]}
    listed = ", ".join(elected.members[place].key for place in voting)
    return Chosen(f"recipe {name}: {counted(len(groups), 'trial')} ({listed})", checkpoints, vote, told)


def _alone(config: StudyConfig, folder: StudyFolder, task: Task, checkpoint: Path) -> Chosen:
    from tutti.modeling.checkpoint import read_metadata
    from tutti.orchestration.inference import Checkpoint, check_predicts
    from tutti.outputs.predictions import TaskVote

    checkpoint = checkpoint.absolute()
    one = folder.path / "trials" / "t0000" / ("fold-0" if config.split.folds else "") / "best"
    remedy = f"name the folder of a checkpoint, such as {one}"
    check_predicts(checkpoint, [task], what="--checkpoint", remedy=remedy)
    alone = Checkpoint(checkpoint, read_metadata(checkpoint).max_length)
    return Chosen(f"the checkpoint {checkpoint}", [alone], TaskVote(task, {0: [0]}), {})


def _fingerprints(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """What changes with any weight of a checkpoint: its metadata has every file's hash."""
    from tutti.modeling.checkpoint import METADATA

    return [{"sha256": sha256_of(one.folder / METADATA), "max_length": one.max_length} for one in checkpoints]
