"""Prints results of workflows as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tutti.errors import counted
from tutti.outputs.folder import CARD, PAGE
from tutti.outputs.formatting import estimate_text, number, signed
from tutti.workflows.listing import Group, Line, listing, show_table

if TYPE_CHECKING:
    from tutti.outputs.election.card import Card, TaskCard
    from tutti.outputs.election.choice import Choice
    from tutti.outputs.election.soup_card import SoupCard
    from tutti.outputs.pseudo.report import PseudoLabelReport
    from tutti.outputs.pseudo.rounds import Comparison
    from tutti.outputs.submission.leaderboard import Entry
    from tutti.records import CheckpointRecord

_SHOWN = 5  # pairs of submissions
_WITH_VOTERS = 9  # tasks at most, below which who votes is listed


def show_card(console: Console, card: Card) -> None:
    """Prints an ensemble: the best trial, the vote and the gain, all on rows that chose neither, and the remarks."""
    lines = [
        Line(
            [task.task, estimate_text(task.single), estimate_text(task.score), signed(task.gain)],
            notes=[_voters(task)] if len(card.tasks) <= _WITH_VOTERS else [],
        )
        for task in card.tasks
    ]
    if len(lines) > 1:
        means = [estimate_text(card.single), estimate_text(card.objective), signed(card.gain)]
        lines.append(Line(["mean", *means], style="bold green"))
    title = f"Study {card.study}, recipe {card.recipe}: scores on rows that chose nothing, with 95 % intervals"
    head = ["task", "best trial", "vote", "gain"]
    console.print(listing(head, lines, width=console.width, title=title))
    if card.verdict:
        console.print(card.verdict, style="bold")
    for graded in card.graded:
        console.print(
            f"On {counted(graded.rows, 'labelled row')} of {graded.task}, {graded.part}: {graded.metric} "
            f"{number(graded.score)}, the best trial alone {number(graded.single)}"
        )
    for remark in (*card.remarks, card.footnote):
        console.print(remark)


def _voters(task: TaskCard) -> str:
    """The metric and who votes, below a task's scores."""
    voting = [f"{member.key} {100 * member.weight:.0f} %" for member in task.members if member.weight]
    return f"{task.metric}, {task.method}: {', '.join(voting)}"


def show_guest(console: Console, record: CheckpointRecord) -> None:
    """Prints a guest's scores, and where its predictions come from."""
    scores = ", ".join(f"{task} {number(score)}" for task, score in record.task_scores.items())
    console.print(f"guest {record.key}: {scores}; {record.source}", markup=False)


def show_pseudo_labels(console: Console, report: PseudoLabelReport, target: Path) -> None:
    """Prints coverage and expected precision by class, the remarks, and the files."""
    from tutti.outputs.pseudo.pool import ledger_of
    from tutti.outputs.pseudo.report import EXPECTED

    console.print(f"Study {report.study}, recipe {report.recipe}. {report.which_rows}")
    for task in report.tasks:
        lines = [Line(each.cells) for each in task.coverage]
        expected = number(task.expected_precision)
        if 0 < task.judged_labels < task.given:
            expected += f" of {task.judged_labels:,} labels"
        share = f"{task.labelled / max(task.unlabelled, 1):.1%}"
        cells = ["all", f"{task.labelled:,}", share, number(task.mean_confidence), expected]
        head = ["label", "rows", "share", "confidence", "expected precision"]
        lines.append(Line(cells, style="bold"))
        console.print(listing(head, lines, width=console.width, title=f"Task {task.task}"))
    judged = any(task.coverage for task in report.tasks)  # no regression's labels are
    console.print(
        f"Share is that of the task's unlabelled rows, confidence the mean. {EXPECTED if judged else ''}".rstrip(),
        style="dim",
    )
    for remark in report.remarks:
        console.print(remark)
    for task in report.tasks:
        for file in (task.file, ledger_of(task.task)) if task.file else ():
            console.print(f"wrote {target / file}")
    for card in (CARD, PAGE):
        console.print(f"wrote {target / card}")


def show_soup(console: Console, card: SoupCard) -> None:
    rows = [
        [trial.key, number(trial.alone), number(trial.score), "yes" if trial.kept else "no"] for trial in card.tried
    ]
    show_table(console, ["trial", "alone", "the soup with it", "in the soup"], rows)
    if card.passed_over:
        console.print(f"Skipped, since their shape differs from the best's: {', '.join(card.passed_over)}")
    console.print(card.verdict)


def show_comparison(console: Console, comparison: Comparison) -> None:
    columns = [comparison.before, comparison.control, comparison.round]
    lines = [
        Line([task, *(estimate_text(column.get(task)) for column in columns), signed(gain)])
        for task, gain in comparison.gain.items()
    ]
    means = [estimate_text(comparison.objective[name]) for name in ("before", "control", "round")]
    lines.append(Line(["mean", *means, signed(comparison.objective["gain"])], style="bold"))
    head = ["task", "before", "with the control", "with the round", "gain over the control"]
    console.print(listing(head, lines, width=console.width))


def show_leaderboard(console: Console, study: str, entries: Sequence[Entry]) -> None:
    from tutti.outputs.submission.leaderboard import correlation

    if not entries:
        console.print(f"The study {study} has no submissions with public scores; add one with `tutti leaderboard add`.")
        return
    tasks = [*entries[-1].tasks]
    lines = [
        Line(
            [entry.recipe, entry.made[:16].replace("T", " "), number(entry.public), number(entry.local)],
            [[number(entry.tasks.get(task)) for task in tasks]],
            notes=[entry.submission],
        )
        for entry in sorted(entries, key=lambda entry: -entry.public)
    ]
    head, title = ["recipe", "made", "public", "local"], f"Submissions of the study {study}"
    console.print(listing(head, lines, width=console.width, groups=[Group(tasks)], left=2, title=title))
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
    submissions = {each.name: each for pair in choice.pairs for each in (pair.first, pair.second)}
    rows = [
        [name, estimate_text(submissions[name].local), number(submissions[name].public), number(choice.expected[name])]
        for name in sorted(submissions, key=lambda name: -choice.expected[name])
    ]
    show_table(console, ["submission", "local", "public", "expected"], rows)
    pairs = [
        [f"{pair.first.name} and {pair.second.name}", number(pair.expected), f"{pair.correlation:.2f}"]
        for pair in choice.pairs[:_SHOWN]
    ]
    show_table(console, ["pair", "the better one, expected", "correlation of errors"], pairs)
    console.print(f"Choose {choice.pairs[0].first.name} and {choice.pairs[0].second.name}.")
    for sentence in choice.reasons:
        console.print(f"{sentence}.")
    for sentence in choice.warnings:
        console.print(f"Beware: {sentence}.")
