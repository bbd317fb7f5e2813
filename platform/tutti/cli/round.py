"""``tutti round``: makes pseudo-labels, trains on them, and keeps the result only if it beats a control."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutti.cli import stores, tune, vote
from tutti.cli.browse import Study
from tutti.cli.console import console, program
from tutti.cli.electorate import VotingStudy, electorate_of, prepared_of_others, voting_studies
from tutti.cli.vote import RecipeName
from tutti.config.folder import StudyFolder
from tutti.config.recipe import Recipe
from tutti.config.study import ExtraTrain, StudyConfig
from tutti.errors import Fault, StorageError, StudyError, TrialError, counted
from tutti.files import write_whole
from tutti.records import TrialRecord, TrialState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tutti.bank.electorate import Electorate
    from tutti.data.prepare import Prepared
    from tutti.outputs.pseudo_report import PseudoLabelReport
    from tutti.outputs.rounds import Comparison, Round

_MOST_POINTS = 4
_PLAN = "plan.json"


@dataclass(frozen=True)
class _Base:
    """The study that the rounds start from, and the recipe of the current round."""

    config: StudyConfig
    folder: StudyFolder
    prepared: Prepared
    records: list[TrialRecord]
    recipe: Recipe
    recipe_name: str
    again: str  # the command that resumes the round

    @property
    def recipe_sha256(self) -> str:
        return hashlib.sha256(self.recipe.model_dump_json().encode()).hexdigest()

    @property
    def rounds(self) -> Path:
        return self.folder.path / "rounds"

    def folder_of(self, study: str) -> StudyFolder:
        """The folder of this study or of a study that a round trains."""
        return self.folder if study == self.config.study else StudyFolder(self.folder.path.parent / study)

    def voting(self, others: Sequence[str]) -> dict[str, VotingStudy]:
        """By name: the study, ``others`` of its rounds, and the studies that the recipe names."""
        paths = [str(self.folder_of(study).path) for study in others]
        return voting_studies(self.config, self.folder, self.prepared, members=self.recipe.members, others=paths)

    def voters(self, others: Sequence[str], *, only: Mapping[str, Collection[str]] | None = None) -> Electorate:
        """The checkpoints of these studies that may vote; ``only`` limits a study that it names to some trials."""
        return electorate_of(self.voting(others), members=self.recipe.members, only=only)


def round_(
    study: Study,
    recipe: RecipeName = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Of each of the round's two studies; by default 4 at most.")
    ] = None,
    until_no_gain: Annotated[bool, typer.Option("--until-no-gain", help="Go on as long as rounds gain.")] = False,
) -> None:
    """Labels unlabelled rows, trains the study's best points on them too, and keeps that only if it gains.

    A control study trains the same points for as many steps without the pseudo-labels. The round is kept where the
    ensemble with its trials scores above the one with the control's, on rows that had no part in choosing members.
    Interrupted, it goes on where it was when it is started again.

    Example: `tutti round glue_trio --recipe self_training`
    """
    from tutti.config.load import load_recipe
    from tutti.orchestration.study import study_lock
    from tutti.outputs.rounds import ended_rounds

    config, folder, prepared = stores.open_folder(study)
    name, chosen = load_recipe(recipe or config.ensemble.recipe)
    options = {"--recipe": recipe, "--trials": trials}
    words = [str(word) for option in options.items() if option[1] is not None for word in option]
    again = f"{program()} round {shlex.join([study, *words, *['--until-no-gain'] * until_no_gain])}"
    with study_lock(folder):
        base = _Base(config, folder, prepared, _finished_records(config, folder), chosen, name, again)
        _check(base)
        first = True
        while True:
            done = ended_rounds(base.rounds)
            _check_new(base, done)
            report = _plan(base, done, trials=trials)
            if report is not None and not report.files:
                shutil.rmtree(_place(base, done), ignore_errors=True)
                # A command that was killed between two rounds and started again ends as it would have without the kill.
                continues = until_no_gain and bool(done) and done[-1].recipe_sha256 == base.recipe_sha256
                if first and not continues:
                    got, remedy = "none, for the reasons above", "do what they say"
                    raise StudyError(Fault(f"round {len(done) + 1}", "have pseudo-labels", got, remedy))
                console.print(f"Round {len(done) + 1} has no pseudo-labels: rounds end here.")
                return
            if not _run(base, done) or not until_no_gain:
                return
            first = False


def _finished_records(config: StudyConfig, folder: StudyFolder) -> list[TrialRecord]:
    from tutti.search.limits import is_over

    with closing(stores.load_store(config, folder)) as store:
        records, seconds = store.records(), store.run_seconds()
    if not is_over(config.search, records, seconds=seconds):
        ended = sum(record.state is not TrialState.RUNNING for record in records)
        got = f"{counted(ended, 'trial')} that ended, of {config.search.trials}"
        remedy = "run `tutti tune STUDY.yaml --resume` first"
        raise StudyError(Fault(f"the study {config.study}", "have all its trials before a round", got, remedy))
    return records


def _check(base: _Base) -> None:
    """Checks early what would otherwise fail only after hours: rows, names, changed files."""
    from tutti.data.prepare import prepare
    from tutti.ensembling.nested import LEAST_JUDGED
    from tutti.tasks.build import task_specs

    name, parts_of = base.config.study, base.prepared.parts
    vote.layouts(base.config, base.recipe).check(vote.test_ids(base.config, base.prepared))
    if base.recipe.members.filter is not None:
        rule, remedy = "let every trial vote in a round, whose own have no tags yet", "take members.filter out"
        raise StudyError(Fault(f"the recipe {base.recipe_name}", rule, repr(base.recipe.members.filter), remedy))
    if base.config.split.folds:
        # Pseudo-labels are the mean of all folds' models, of which all but one have trained on any validation row. This
        # leak alone would make the round look better than its control.
        rule, got = "have rows that no teacher has trained on, to tell whether a round gains", "split.folds"
        raise StudyError(Fault(f"the study {name}", rule, got, "set split.validation in its place in a new study"))
    if not any("unlabeled" in parts for parts in parts_of.values()):
        remedy = "name a file of unlabelled rows as `unlabeled:` of a task and run a new study"
        raise StudyError(Fault(f"the study {name}", "have a task with unlabelled rows", "none", remedy))
    for task, parts in parts_of.items():
        if (rows := parts["validation"].rows) < LEAST_JUDGED:
            rule = f"have {LEAST_JUDGED} validation rows or more, to tell whether a round gains"
            remedy = "raise split.validation in a new study"
            raise StudyError(Fault(f"task {task} of the study {name}", rule, str(rows), remedy))
    if len(_name(base, 999, control=True)) > 80:
        rule, remedy = "leave room for -round-N-control in 80 characters", "give the study a shorter name"
        raise StudyError(Fault(f"the name of the study {name}", rule, f"{len(name)} characters", remedy))
    split = base.config.split
    prepare(  # loads the prepared data, after checking that the files have not changed since
        task_specs(base.config.tasks),
        validation=split.validation,
        folds=split.folds,
        seed=split.seed,
        folder=base.folder.data,
    )


def _check_new(base: _Base, done: list[Round]) -> None:
    """Refuses a recipe that gained nothing in an earlier round with the same teachers; other teachers label anew."""
    teachers = tuple(_teachers(base, done))
    for earlier in done:
        if not earlier.kept and earlier.recipe_sha256 == base.recipe_sha256 and earlier.teachers == teachers:
            what = f"the recipe {base.recipe_name}"
            rule = f"differ from that of round {earlier.number}, which gained nothing"
            raise StudyError(Fault(what, rule, "the same", "change pseudo_labels or members, or name another recipe"))


def _name(base: _Base, number: int, *, control: bool = False) -> str:
    return f"{base.config.study}-round-{number}{'-control' * control}"


def _place(base: _Base, done: list[Round]) -> Path:
    return base.rounds / str(len(done) + 1)


def _teachers(base: _Base, done: list[Round]) -> list[str]:
    """Names of the studies whose trials make the labels: the first one, and that of each round that was kept."""
    return [base.config.study, *(earlier.study for earlier in done if earlier.kept)]


def _plan(base: _Base, done: list[Round], *, trials: int | None) -> PseudoLabelReport | None:
    """Writes the round's pseudo-labels, its two study files and, last, its plan; returns none if the plan exists.

    Raises:
        StudyError: if the round was begun with another recipe or number of trials, or ``trials`` exceeds the number of
            points.
    """
    from tutti.config.load import dump_study, parse_study
    from tutti.data.prepare import load_prepared
    from tutti.orchestration.rounds import best_points, round_studies, steps_of

    place, number, teachers = _place(base, done), len(done) + 1, _teachers(base, done)
    if (place / _PLAN).is_file():
        _check_plan(base, place, number, trials=trials)
        console.print(f"Round {number} goes on")
        return None
    points = best_points(base.records, count=trials or _MOST_POINTS)
    if len(points) < (trials or 0):
        rule = f"be at most the {counted(len(points), 'point')} of finished trials, to train each once"
        raise StudyError(Fault("--trials", rule, str(trials), "give a smaller number"))
    console.rule(f"Round {number}: pseudo-labels of {' and '.join(teachers)}")
    latest = base.folder_of(teachers[-1])
    prepared = load_prepared(latest.data)
    report = _write_labels(base, prepared, teachers, out=place / "labels")
    files = {task.task: task.file for task in report.tasks if task.file is not None}
    if not files:
        return report
    written = {task.task: task.written for task in report.tasks}
    rows = [prepared.parts[task.name]["train"].rows + written.get(task.name, 0) for task in prepared.tasks]
    tokens = cache(partial(_tokens, latest, prepared, base.config))
    latest_tasks = parse_study(latest.study_file).tasks
    both = round_studies(
        base.config.model_copy(
            update={"storage": base.config.storage.model_copy(update={"path": base.folder.path.parent})}
        ),
        name=_name(base, number),
        known={task: config.extra_train for task, config in latest_tasks.items()},
        labels={
            task: ExtraTrain(path=place / "labels" / file, labels="soft" if file.endswith(".soft.parquet") else "hard")
            for task, file in files.items()
        },
        points=points,
        steps=[steps_of(base.config, point, rows=rows, tokens=tokens) for point in points],
        longer=sum(rows) / (sum(rows) - sum(written.values())),
    )
    for config in both:
        write_whole(place / f"{config.study}.json", dump_study(config))
    plan: dict[str, object] = {"recipe": base.recipe_name, "recipe_sha256": base.recipe_sha256, "teachers": teachers}
    plan["trials"] = both[0].search.trials
    write_whole(place / _PLAN, json.dumps(plan, ensure_ascii=False, indent=2) + "\n")
    return report


def _check_plan(base: _Base, place: Path, number: int, *, trials: int | None) -> None:
    """Checks that the round was begun with this recipe and number of trials."""
    plan = _read_plan(place / _PLAN)
    rule = f"be that which round {number} was begun with"
    begun = " and ".join(str(base.folder_of(_name(base, number, control=control)).path) for control in (False, True))
    restart = f"or remove {place}, {begun} to begin the round anew"
    if plan["recipe_sha256"] != base.recipe_sha256:
        what, got = f"the recipe {base.recipe_name}", f"another one than {plan['recipe']}"
        raise StudyError(Fault(what, rule, got, f"name that recipe, {restart}"))
    if trials not in (None, plan["trials"]):
        got = f"another one than {plan['trials']}"
        raise StudyError(Fault(f"--trials {trials}", rule, got, f"leave it out, {restart}"))


def _write_labels(base: _Base, prepared: Prepared, teachers: Sequence[str], *, out: Path) -> PseudoLabelReport:
    """Writes and shows the round's pseudo-labels of the unlabelled rows of the latest teacher, ``prepared``."""
    from tutti.ensembling.pseudo import Labelling
    from tutti.outputs.pseudo_labels import write_pseudo_labels
    from tutti.outputs.pseudo_pool import pools
    from tutti.tasks.build import task_specs

    others = prepared_of_others(base.voting(teachers[1:]), teachers[-1])
    report = write_pseudo_labels(
        study=base.config.study,
        recipe_name=base.recipe_name,
        tasks=prepared.tasks,
        validation=prepared.validation_ids(),
        pools=pools(prepared, task_specs(base.config.tasks), others=others),
        bank=base.voters(teachers[1:]),
        rule=vote.rule_of(base.recipe),
        labelling=Labelling(**base.recipe.pseudo_labels.model_dump()),
        out=out,
    )
    vote.show_pseudo_labels(report, out)
    return report


def _read_plan(file: Path) -> dict[str, Any]:
    """The plan that a round was begun with.

    Raises:
        StorageError: if it cannot be read.
    """
    try:
        plan = json.loads(file.read_text(encoding="utf-8"))
        return {key: plan[key] for key in ("recipe", "recipe_sha256", "trials")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "restore the file, or remove it to plan the round again"
        raise StorageError(Fault(str(file), "be as `tutti round` wrote it", repr(error), remedy)) from error


def _tokens(folder: StudyFolder, prepared: Prepared, config: StudyConfig) -> float:
    """The mean number of tokens of a training row."""
    import numpy as np

    from tutti.data.encode import load_part
    from tutti.orchestration.build import max_length_of

    lengths = [
        load_part(
            prepared,
            task=task.name,
            part="train",
            tokenizer=config.backbone,
            max_length=max_length_of(config.training),
            cache=folder.encoded,
        ).lengths
        for task in prepared.tasks
    ]
    return float(np.concatenate(lengths).mean())


def _run(base: _Base, done: list[Round]) -> bool:
    """Runs the round's two studies, compares the ensembles and writes the result; returns whether the round is kept."""
    from tutti.config.load import parse_study
    from tutti.outputs.rounds import Round, compare, write_round

    place, number, teachers = _place(base, done), len(done) + 1, _teachers(base, done)
    finished = {}
    for control in (False, True):
        name = _name(base, number, control=control)
        what = "the control: as many steps without pseudo-labels" if control else "training on pseudo-labels too"
        console.rule(f"Round {number}: {what}")
        config = parse_study(place / f"{name}.json")
        folder = base.folder_of(name)
        records = tune.run(stores.with_stores(config, folder), folder, resume=True, again=lambda **_: base.again)
        finished[name] = {record.key for record in records if record.state is TrialState.FINISHED}
        if not (both := set.intersection(*finished.values())):  # checked before the control is trained in vain
            remedy = "look at its trials with `tutti trials`, then start the round again"
            rule = "have a finished trial" + " of a point that the round finished too" * control
            raise TrialError(Fault(f"the study {name}", rule, "none", remedy))
    study, others = _name(base, number), teachers[1:]
    if alone := set.union(*finished.values()) - both:
        console.print(
            f"Left out of the comparison, for they finished in one alone: {', '.join(sorted(alone))}", soft_wrap=True
        )
    only = dict.fromkeys(finished, both)
    comparison = compare(
        base.prepared.tasks,
        before=base.voters(others),
        control=base.voters([*others, _name(base, number, control=True)], only=only),
        with_round=base.voters([*others, study], only=only),
        validation=base.prepared.validation_ids(),
        needed={task: list(config.test_sets()) for task, config in base.config.tasks.items()},
        rule=vote.rule_of(base.recipe),
    )
    console.rule(f"Round {number}: scores on validation rows that chose no member")
    _show(comparison)
    gain = comparison.objective["gain"]
    if comparison.kept:
        doubt = " The interval holds 0: the rows cannot tell that from chance." if gain.low <= 0 else ""
        console.print(f"Round {number} is kept: it gains {gain.score:+.4f} over its control.{doubt}")
        together = [str(base.folder_of(name).path) for name in (*others, study)]
        recipe_file = _write_recipe(base, place)
        vote.make_ensemble(str(base.folder.path), recipe=recipe_file, others=together, out=place / "ensemble")
    else:
        console.print(
            f"Round {number} is not kept: with {gain.score:+.4f} it gains nothing over its control. The ensemble stays "
            f"that of {' and '.join(teachers)}.",
            soft_wrap=True,
        )
    ended = Round(number, base.recipe_name, base.recipe_sha256, study, tuple(teachers), comparison.kept)
    write_round(place, ended, comparison)
    console.print(f"wrote {place / 'round.json'}", soft_wrap=True)
    return comparison.kept


def _write_recipe(base: _Base, place: Path) -> str:
    """Writes a copy of the recipe into the round's folder, since the original may change; returns its path."""
    file = place / f"{base.recipe_name}.yaml"
    write_whole(file, base.recipe.model_dump_json(indent=2, exclude_unset=True) + "\n")  # JSON is YAML too
    return str(file)


def _show(comparison: Comparison) -> None:
    from rich.table import Table

    from tutti.outputs.card import estimate_text, signed

    table = Table()
    table.add_column("")
    for column in (*comparison.gain, "score"):
        table.add_column(column, justify="right")
    for name, label in (("before", "before"), ("control", "with the control"), ("round", "with the round")):
        estimates = (*getattr(comparison, name).values(), comparison.objective[name])
        table.add_row(label, *map(estimate_text, estimates))
    gains = (*comparison.gain.values(), comparison.objective["gain"])
    table.add_row("gain over the control", *map(signed, gains), style="bold")
    console.print(table)
