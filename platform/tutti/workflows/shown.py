"""Prints results of workflows as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tutti.errors import counted
from tutti.outputs.formatting import estimate_text, number, signed
from tutti.workflows.console import table_of_numbers

if TYPE_CHECKING:
    from tutti.outputs.election.card import Card
    from tutti.outputs.election.choice import Choice
    from tutti.outputs.election.soup_card import SoupCard
    from tutti.outputs.pseudo.report import PseudoLabelReport
    from tutti.outputs.pseudo.rounds import Comparison
    from tutti.outputs.submission.leaderboard import Entry
    from tutti.records import CheckpointRecord

_SHOWN = 5  # pairs of submissions


def show_card(console: Console, card: Card) -> None:
    """Prints an ensemble: the scores of every trial and of the ensemble, and the card's remarks."""
    console.print(f"Study {card.study}, recipe {card.recipe}: scores on the validation rows; below, nested estimates")
    table = table_of_numbers("", numbers=(*(task.task for task in card.tasks), "score"))
    for single in card.singles:
        scores = (number(single.task_scores.get(task.task)) for task in card.tasks)
        table.add_row(single.key, *scores, number(single.objective))
    if any(task.score for task in card.tasks):
        table.add_section()
        for label, style, name, show in (
            ("best trial", "", "single", estimate_text),
            ("ensemble", "bold green", "score", estimate_text),
            ("gain", "", "gain", signed),
        ):
            mean = card.objective if name == "score" else getattr(card, name)
            table.add_row(label, *(show(getattr(task, name)) for task in card.tasks), show(mean), style=style)
    console.print(table)
    for graded in card.graded:
        console.print(
            f"On {counted(graded.rows, 'labelled row')} of {graded.task}, {graded.part}: {graded.metric} "
            f"{number(graded.score)}, the best trial alone {number(graded.single)}"
        )
    for remark in card.remarks:
        console.print(remark)


def show_guest(console: Console, record: CheckpointRecord) -> None:
    """Prints a guest's scores, and where its predictions come from."""
    scores = ", ".join(f"{task} {number(score)}" for task, score in record.task_scores.items())
    console.print(f"guest {record.key}: {scores}; {record.source}", markup=False)


def show_pseudo_labels(console: Console, report: PseudoLabelReport, target: Path) -> None:
    """Prints coverage and expected precision by class, the remarks, and the files."""
    from tutti.outputs.pseudo.pool import ledger_of
    from tutti.outputs.pseudo.report import EXPECTED

    console.print(f"Study {report.study}, recipe {report.recipe}. {report.which_rows}")
    judged = any(task.coverage for task in report.tasks)  # no regression's labels are
    caption = f"Share is that of the task's unlabelled rows. {EXPECTED if judged else ''}".rstrip()
    columns = ("rows", "share", "mean confidence", "expected precision")
    table = table_of_numbers("task", "label", numbers=columns, caption=caption)
    for task in report.tasks:
        for class_coverage in task.coverage:
            table.add_row(task.task, *class_coverage.cells)
        share = task.labelled / max(task.unlabelled, 1)
        expected = number(task.expected_precision)
        if 0 < task.judged_labels < task.given:
            expected += f" of {task.judged_labels:,} labels"
        means = (number(task.mean_confidence), expected)
        table.add_row(task.task, "all", f"{task.labelled:,}", f"{share:.1%}", *means, style="bold")
    console.print(table)
    for remark in report.remarks:
        console.print(remark)
    for task in report.tasks:
        for file in (task.file, ledger_of(task.task)) if task.file else ():
            console.print(f"wrote {target / file}")


def show_soup(console: Console, card: SoupCard) -> None:
    table = table_of_numbers("trial", numbers=("alone", "the soup with it", "in the soup"))
    for trial in card.tried:
        table.add_row(trial.key, number(trial.alone), number(trial.score), "yes" if trial.kept else "no")
    console.print(table)
    if card.passed_over:
        console.print(f"Skipped, since their shape differs from the best's: {', '.join(card.passed_over)}")
    console.print(card.verdict)


def show_comparison(console: Console, comparison: Comparison) -> None:
    table = table_of_numbers("", numbers=(*comparison.gain, "score"))
    for name, label in (("before", "before"), ("control", "with the control"), ("round", "with the round")):
        estimates = (*getattr(comparison, name).values(), comparison.objective[name])
        table.add_row(label, *map(estimate_text, estimates))
    gains = (*comparison.gain.values(), comparison.objective["gain"])
    table.add_row("gain over the control", *map(signed, gains), style="bold")
    console.print(table)


def show_leaderboard(console: Console, study: str, entries: Sequence[Entry]) -> None:
    from tutti.outputs.submission.leaderboard import correlation

    if not entries:
        console.print(f"The study {study} has no submissions with public scores; add one with `tutti leaderboard add`.")
        return
    table = Table(title=f"Submissions of the study {study}", title_justify="left")
    for name in ("recipe", "made", "submission"):
        table.add_column(name, overflow="fold")
    for name in ("public", "local", *entries[-1].tasks):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in sorted(entries, key=lambda entry: -entry.public):
        scores = (number(entry.tasks.get(task)) for task in entries[-1].tasks)
        table.add_row(entry.recipe, entry.made, entry.submission, number(entry.public), number(entry.local), *scores)
    console.print(table)
    together = correlation(entries)
    if together is None:
        console.print("A correlation of public and local scores needs three submissions, and scores that differ.")
        return
    console.print(
        f"Public and local scores of {together.submissions} submissions: Pearson {together.pearson:+.3f}, "
        f"Spearman {together.spearman:+.3f}."
    )


def show_choice(console: Console, choice: Choice) -> None:
    """Prints the submissions with their scores, the best pairs, why the first is chosen, and what to be wary of."""
    table = table_of_numbers("submission", numbers=("local", "public", "expected"))
    submissions = {each.name: each for pair in choice.pairs for each in (pair.first, pair.second)}
    for name in sorted(submissions, key=lambda name: -choice.expected[name]):
        each = submissions[name]
        table.add_row(name, estimate_text(each.local), number(each.public), number(choice.expected[name]))
    console.print(table)
    pairs = table_of_numbers("pair", numbers=("the better one, expected", "correlation of errors"))
    for pair in choice.pairs[:_SHOWN]:
        pairs.add_row(f"{pair.first.name} and {pair.second.name}", number(pair.expected), f"{pair.correlation:.2f}")
    console.print(pairs)
    console.print(f"Choose {choice.pairs[0].first.name} and {choice.pairs[0].second.name}.")
    for sentence in choice.reasons:
        console.print(f"  {sentence}.")
    for sentence in choice.warnings:
        console.print(f"Beware: {sentence}.")
