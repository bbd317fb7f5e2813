"""Commands on a study that ``tutti tune`` made: one call of ``Study`` each."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from tutti.cli.options import (
    Checkpoint,
    Out,
    RecipeName,
    Refit,
    Study,
    Task,
    With,
    going_on,
    interruptible,
    local,
)
from tutti.errors import Fault, StudyError, check_left_out, counted
from tutti.records import best_trial
from tutti.search.objectives import pareto_front
from tutti.workflows.console import console, program, show_next, study_argument
from tutti.workflows.progress import best_so_far, failures, summary, without_vote
from tutti.workflows.shown import show_card, show_guest, show_pseudo_labels, show_soup
from tutti.workflows.study import open_study
from tutti.workflows.trials_table import outcome_table, ranked
from tutti.workflows.vote import Vote

Score = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        metavar="[TASK=]FILE",
        help="Grade on these labels of the test rows; TASK/SET= for one of several test sets. May be given again.",
    ),
]


def trials(
    study: Study,
    top: Annotated[int | None, typer.Option("--top", min=1, metavar="N", help="The first N trials alone.")] = None,
    sort: Annotated[
        str,
        typer.Option("--sort", metavar="KEY", help="score, trial, state, time, a task, an objective, or a parameter."),
    ] = "score",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array, for programs.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Every parameter, for a spreadsheet.")] = False,
) -> None:
    """Lists a study's trials, best first: state, score, other objectives, duration, scores by task, parameters.

    Of the parameters those that vary are shown, below the trial where the terminal is narrow.

    Example: `tutti trials glue_trio --top 5`
    """
    if as_csv:
        check_left_out({"--json": as_json}, beside="--csv")
    opened = open_study(study)
    records, config = opened.records(), opened.config
    objectives = config.search.objectives
    front = pareto_front(records, objectives)
    shown = ranked(records, sort, tasks=[*config.tasks], top=top)
    if as_csv:
        guests = [] if top else [guest.key for guest in opened.guests()]
        typer.echo(opened.trials().loc[[*(record.key for record in shown), *guests]].to_csv(), nl=False)
        return
    if as_json:
        documents = [dataclasses.asdict(record) for record in (shown if top or sort != "score" else records)]
        for document in documents:
            del document["last_task_scores"]  # with folds, what a trial that ends otherwise is told by
        if len(objectives) > 1:
            documents = [document | {"front": document["key"] in front} for document in documents]
        documents += [dataclasses.asdict(guest) | {"state": "guest"} for guest in opened.guests()]
        typer.echo(json.dumps(documents, indent=2, ensure_ascii=False))
        return
    best = best_so_far(records) if opened.is_running else best_trial(records)
    console.print(outcome_table(config, shown, best=best, width=console.width, among=records))
    for guest in opened.guests():
        show_guest(console, guest)
    if len(objectives) > 1:
        console.print(f"Pareto front (*) of {', '.join(objectives)}: {', '.join(front) or 'none yet'}")
    for line in failures(records):
        console.print(line)
    console.print(summary(records, total=config.search.trials, best=best))
    if best_trial(records):
        name = study_argument(opened.folder)
        show_next(console, f"ensemble {name} --recipe {shlex.quote(config.ensemble.recipe)}", f"ui {name}")


def ui(
    study: Study,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address only.")] = False,
) -> None:
    """Starts the MLflow UI on 127.0.0.1 on a study's tracking store and opens it in the browser. Ctrl-C ends it.

    Example: `tutti ui glue_trio`
    """
    open_study(study).ui(port=port, browser=not no_browser)


def doctor(
    study: Study, dry_run: Annotated[bool, typer.Option("--dry-run", help="Show only, and change nothing.")] = False
) -> None:
    """Finds and mends what crashes have left of a study that nobody runs, and says what it did.

    Nothing that a trial could go on from is removed. Exit code 1 where something is left that it cannot mend.

    Example: `tutti doctor glue_trio --dry-run`
    """
    opened = open_study(study)
    found = opened.doctor(dry_run=dry_run)
    for key in found.interrupted:
        command = f"{program()} tune STUDY.yaml --resume"
        console.print(f"trial {key}: cut off, and goes on with `{command}`, and --set as before")
    if found.mended or found.left:
        done = f"{counted(found.mended, 'finding')} {'to be ' * dry_run}mended"
        console.print(f"Study {opened.name}: {done}, {found.left} left.")
    else:
        console.print(f"The study {opened.name} is healthy.")
    if found.left:
        raise typer.Exit(1)


def ensemble(
    study: Study, recipe: RecipeName = None, others: With = None, out: Out = None, score: Score = None
) -> None:
    """Lets the best checkpoints vote: submission files and a card. Needs no GPU and no weights.

    The ensemble and the best trial are scored on rows that had no part in choosing them, with 95 % intervals.

    Example: `tutti ensemble glue_trio --recipe auto --out submission`
    """
    opened = open_study(study)
    vote = opened.ensemble(recipe, others=others or (), score=score or ())
    _write(vote, out)
    if sentence := without_vote(opened.records()):
        console.print(sentence)
    chosen = f"{study_argument(opened.folder)} --recipe {shlex.quote(recipe or opened.config.ensemble.recipe)}"
    unlabelled = any(task.unlabeled for task in opened.config.tasks.values())
    show_next(console, f"report {chosen}", *[f"pseudo-label {chosen}"] * unlabelled)


def _write(vote: Vote, out: Path | None) -> None:
    files = vote.write(out)
    show_card(console, vote.card)
    for file in files:
        console.print(f"wrote {file}")


def pseudo_label(
    study: Study,
    recipe: RecipeName = None,
    others: With = None,
    out: Out = None,
    by_fold: Annotated[
        bool, typer.Option("--by-fold", help="For a student of the same folds: of each fold by its own models.")
    ] = False,
) -> None:
    """Labels the unlabelled rows that the recipe chooses: one file per task, in the task's own training layout.

    The next study's `extra_train:` takes each file. How often labels are right is estimated by class. Exit code 1 where
    no task got a file: no row was chosen, or the labels drift from the training rows' class shares.

    Example: `tutti pseudo-label tnews_round --recipe examples/recipes/tnews_round.yaml`
    """
    opened = open_study(study)
    if by_fold:
        found = opened.pseudo_labels_by_fold(recipe, others=others or ())
    else:
        found = [opened.pseudo_labels(recipe, others=others or ())]
    files = 0
    for labels in found:
        report = labels.write(out / labels.folder.name if out and by_fold else out)
        show_pseudo_labels(console, report, labels.folder)
        files += len(report.files)
    if not files:
        raise typer.Exit(1)
    console.print("Name the files under `extra_train` of the next study, or let a round train on such labels:")
    chosen = shlex.quote(recipe or opened.config.ensemble.recipe)
    show_next(console, f"round {study_argument(opened.folder)} --recipe {chosen}")


def predict(
    study: Study,
    more: Annotated[list[str] | None, typer.Argument(metavar="[TASK=FILE]...", help="More of --inputs.")] = None,
    file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="New rows: CSV, TSV, JSON, Parquet or Excel.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--inputs", metavar="TASK=FILE", help="Later test files; TASK/SET= for one of several sets."),
    ] = None,
    submission: Annotated[
        list[str] | None,
        typer.Option(
            "--submission", metavar="FORMAT|TASK=SAMPLE", help="Of --inputs; by default as recipe and study say."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE|DIR",
            help="What is written: .csv, .jsonl, .json or .parquet, or of --inputs a folder.",
            callback=local,
        ),
    ] = None,
    recipe: RecipeName = None,
    others: With = None,
    task: Task = None,
    checkpoint: Checkpoint = None,
    refit: Refit = False,
) -> None:
    """Predicts new rows with the members of an ensemble: id, label, confidence and each class's probability, in order.

    With `--inputs`, later test files of any tasks become a submission, with zip and card, as `tutti ensemble` has them.
    Without any input, test sets that were added to the study since its trials ended are predicted into its bank.

    Runs on the cluster that RAY_ADDRESS names, otherwise on a Ray of its own on this machine. Needs the members'
    weights. What was cut off with `--input` goes on where it was when the command is run again.

    Example: `tutti predict glue_trio --task CoLA --recipe baseline --input new.tsv --out predictions.csv`
    """
    later = [*(inputs or ()), *(more or ())]
    if checkpoint:
        check_left_out({"--recipe": recipe, "--with": others, "--refit": refit}, beside="--checkpoint")
    if later:
        check_left_out({"--input": file, "--task": task, "--checkpoint": checkpoint}, beside="--inputs")
    else:
        check_left_out({"--submission": submission}, beside="--input")
    if out is None and (file or later):
        raise StudyError(Fault("--out", "name what is written", "none", "add --out " + ("DIR" if later else "FILE")))
    if out is not None and not (file or later):
        raise StudyError(Fault("--out", "be given with rows to predict", "none", "add --input or --inputs"))
    given: dict[str, Any] = {"recipe": recipe, "others": others or (), "refit": refit}
    with interruptible(lambda _: "Interrupted; run the same command again to continue."):
        opened = open_study(study)
        if file and out:
            opened.predict(file, out, task=task, checkpoint=checkpoint, **given)
        elif out:
            vote = opened.predict_tests(later, submission=submission or (), **given)
            _write(vote, out)
        else:
            for key, sets in opened.fill_bank(recipe).items():
                console.print(f"trial {key}: {', '.join(sets)}")
            show_next(console, f"ensemble {study_argument(opened.folder)}")


def soup(
    study: Study,
    recipe: Annotated[str, typer.Option("--recipe", metavar="NAME|FILE", help="Who goes in.")] = "soup",
) -> None:
    """Averages the weights of an ensemble's members into one model, where that is as good as their vote.

    One trial after the other goes in as long as the score on the validation rows does not fall (arXiv 2203.05482). The
    model is a checkpoint that `tutti predict --checkpoint` takes, and its encoder one for `from_pretrained`. Exit code
    1 where the soup falls short of the vote: then there is a card alone, or the soup of an earlier run.

    Example: `tutti soup glue_trio`
    """
    opened = open_study(study)
    made = opened.soup(recipe)
    show_soup(console, made.card)
    if made.replaced:
        console.print(f"wrote {made.checkpoint or made.folder / 'card.md'}")
    else:
        console.print(f"{made.folder} keeps the soup of an earlier run.")
    if made.checkpoint is None:
        raise typer.Exit(1)
    name, checkpoint = study_argument(opened.folder), shlex.quote(str(made.checkpoint))
    show_next(console, f"predict {name} --checkpoint {checkpoint} --input new.csv --out predictions.csv")


def refit(
    study: Study,
    recipe: RecipeName = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How often each member is trained.")] = 1,
    out: Out = None,
) -> None:
    """Trains an ensemble's members once more, on all labelled rows, and writes the submission of these.

    Each for the epochs that validation found; they vote with the weights and decisions found there. The card says what
    score is expected. Interrupted, it goes on where it was when the command is run again.

    Example: `tutti refit glue_trio --recipe auto --seeds 3`
    """
    with interruptible(lambda _: "Interrupted; run the same command again to continue."):
        opened = open_study(study)
        _write(opened.refit(recipe, seeds=seeds), out)
    chosen = f"{study_argument(opened.folder)} --recipe {shlex.quote(recipe or opened.config.ensemble.recipe)}"
    show_next(console, f"predict {chosen} --refit --input new.csv --out predictions.csv")


def report(
    study: Study,
    recipe: RecipeName = None,
    others: With = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write; by default `report` in the study.", callback=local),
    ] = None,
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors", metavar="FILE.csv", help="The rows that the vote has wrong, for relabelling.", callback=local
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Write it anew while the study runs.")] = False,
) -> None:
    """Writes a study on one page: its search, its vote, each task class by class, the rows whose labels to check.

    The page needs no network, reads on a phone, and is kept with the study's run in MLflow.

    Example: `tutti report glue_trio --recipe auto --errors errors.csv`
    """
    with interruptible(lambda _: "Interrupted; the last page stays."):
        page, *_ = open_study(study).report(recipe, others=others or (), out=out, errors=errors, watch=watch)
    console.print(f"Open {page.absolute().as_uri()} in a browser.")


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
    ensemble with its trials beats the one with the control's by more than one standard error, and is not below the one
    before, on rows that had no part in choosing members. Interrupted, it goes on where it was when it is started
    again.

    Example: `tutti round tnews_round --recipe examples/recipes/tnews_round.yaml`
    """
    options = {"--recipe": recipe, "--trials": trials}
    words = [str(word) for option in options.items() if option[1] is not None for word in option]
    again = f"{program()} round {shlex.join([study, *words, *['--until-no-gain'] * until_no_gain])}"
    opened = open_study(study)
    opened.again = lambda **_: again
    with interruptible(going_on(opened.again)):
        rounds = opened.round(recipe, trials=trials, until_no_gain=until_no_gain)
    kept = bool(rounds) and rounds[-1].kept
    words = ["round", study, *words] if kept else ["report", study]
    show_next(console, shlex.join(words))
