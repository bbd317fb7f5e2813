"""What commands print as tables, at the widths of terminals: snapshots, which ``TUTTI_SNAPSHOTS=write`` renews."""

from __future__ import annotations

import dataclasses
import io
import os
from pathlib import Path

import pytest
from rich.cells import cell_len

from tutti.config.recipe import PseudoLabels
from tutti.config.study import StudyConfig
from tutti.ensembling.nested import Estimate
from tutti.errors import StudyError
from tutti.outputs.election.card import Card, Single, TaskCard
from tutti.outputs.election.members import Member
from tutti.outputs.formatting import short_names
from tutti.outputs.pseudo.report import ClassCoverage, PseudoLabelReport, TaskPseudoLabels
from tutti.outputs.submission.leaderboard import Entry
from tutti.records import TrialRecord, TrialState
from tutti.workflows.console import make_console
from tutti.workflows.listing import Group, Line, listing
from tutti.workflows.shown import show_card, show_leaderboard, show_pseudo_labels
from tutti.workflows.trials_table import outcome_table, ranked, trials_table

SNAPSHOTS = Path(__file__).with_name("snapshots")
NAMES = ("CoLA", "SST-2", "情感", "a task with a name that is long", *(f"task {number}" for number in range(4, 28)))
COUNTS = (1, 3, 9, 28)
WIDTHS = (80, 100, 120)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(width: int):
    made = make_console(Terminal())
    made.width, made._color_system = width, None
    return made


def trials(count: int) -> list[TrialRecord]:
    states = (TrialState.FINISHED, TrialState.STOPPED, TrialState.FINISHED, TrialState.FAILED)
    parameters = [
        {
            "learning_rate": 1e-4 * (number + 1),
            "per_device_train_batch_size": 16 if number % 2 else 32,
            "num_train_epochs": 3,
            "pooling": "mean" if number else "attention",
            **({"lora_alpha": 16} if number == 2 else {}),
        }
        for number in range(4)
    ]
    return [
        TrialRecord(
            f"t{number:04d}",
            number,
            state,
            None if state is TrialState.FAILED else 0.5 + number / 10,
            {} if state is TrialState.FAILED else dict.fromkeys(NAMES[:count], 0.5 + number / 10),
            parameters[number],
            seconds=75.0 * (number + 1),
        )
        for number, state in enumerate(states)
    ]


def print_trials(console, count: int) -> None:
    records = trials(count)
    shown = ranked(records, tasks=NAMES[:count])
    console.print(
        trials_table(shown, tasks=NAMES[:count], best=records[2], width=console.width, title=f"Study of {count}")
    )


def card(count: int) -> Card:
    members = (Member("t0002", 2, 0.6, 0.7, 0.7), Member("t0000", 0, 0.4, 0.5, 0.5))
    tasks = tuple(
        TaskCard(
            task=name,
            metric="macro_f1",
            method="stacking",
            members=members,
            score=Estimate(0.7 + 0.001 * place, 0.011),
            single=Estimate(0.69, 0.012),
            gain=Estimate(0.01 + 0.001 * place, 0.015),
            offsets=None,
            calibration=None,
            rows={"validation": 400},
        )
        for place, name in enumerate(NAMES[:count])
    )
    overlap = [[float(one is other) for other in tasks] for one in tasks]
    singles = tuple(Single(f"t{n:04d}", n, 0.7 - n / 10, dict.fromkeys(NAMES[:count], 0.7)) for n in range(2))
    return Card("demo", "self_training", "2026-01-01", "the best 2", tasks, singles, (), {}, overlap)


def print_pseudo_labels(console, count: int) -> None:
    coverage = tuple(
        ClassCoverage(name, 1200 + place, 0.1, 0.98, 0.95 if place else None, 60 * bool(place))
        for place, name in enumerate(NAMES[:count])
    )
    task = TaskPseudoLabels(
        "topic", 20000, 10, 19990, 1200 * count, 0.97, 0.01, NAMES[0], "topic.csv", False, coverage, ()
    )
    report = PseudoLabelReport("demo", "auto", "2026-01-01", "the best 2", PseudoLabels(), (task,), (), (), {})
    show_pseudo_labels(console, report, Path("labels"))


def print_leaderboard(console, count: int) -> None:
    scores = dict.fromkeys(NAMES[:count], 0.8123)
    entries = [
        Entry(
            str(n),
            f"studies/demo/ensembles/auto-{n}",
            "auto",
            "2026-01-01T10:00:00+00:00",
            "",
            0.8 + n / 100,
            0.81,
            scores,
        )
        for n in range(3)
    ]
    show_leaderboard(console, "demo", entries)


PRINTED = {
    "trials": print_trials,
    "ensemble": lambda console, count: show_card(console, card(count)),
    "pseudo_labels": print_pseudo_labels,
    "leaderboard": print_leaderboard,
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PRINTED)
def test_a_table_is_as_it_was_and_fits_the_terminal(name, width):
    console = terminal(width)
    for count in COUNTS:
        PRINTED[name](console, count)
        console.print("")
    text = console.file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    file = SNAPSHOTS / f"{name}_{width}.txt"
    if os.environ.get("TUTTI_SNAPSHOTS") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_parameters_are_columns_where_there_is_room_and_one_line_below_a_trial_elsewhere():
    wide, narrow = (str(trials_table(trials(1), tasks=["CoLA"], best=None, width=width)) for width in (120, 80))
    head, first, *_ = wide.splitlines()
    assert head.split() == ["trial", "state", "score", "time", "CoLA", "lr", "batch", "pooling", "lora_alpha"]
    assert first.split()[-4:] == ["0.0001", "32", "attention", "–"]
    assert narrow.splitlines()[2].strip() == "lr=0.0001 batch=32 pooling=attention"
    assert "epochs" not in wide + narrow  # it does not vary
    assert "lr = learning_rate, batch = per_device_train_batch_size" in wide


def test_report_sets_are_columns_beside_the_tasks_and_can_lead():
    records = [dataclasses.replace(each, set_scores={"CoLA/mm": each.number / 10}) for each in trials(3)[:3]]
    head, first, *_ = str(trials_table(records, tasks=["CoLA"], best=None, width=120)).splitlines()
    assert head.split()[4:6] == ["CoLA", "CoLA/mm"]
    assert first.split()[5] == "0.0000"
    assert [record.number for record in ranked(records, "CoLA/mm", tasks=["CoLA"])] == [2, 1, 0]


def test_the_first_few_trials_show_what_varies_among_all():
    task = {"layout": "competition", "train": "train.tsv"}
    study = StudyConfig.model_validate({"study": "s", "backbone": "b", "tasks": {"CoLA": task}})
    first, *_ = records = ranked(trials(1), tasks=["CoLA"])
    head = str(outcome_table(study, [first], best=first, width=120, among=records)).splitlines()[1]
    assert head.split()[-4:] == ["lr", "batch", "pooling", "lora_alpha"]


def test_the_best_comes_first_and_any_column_can_lead():
    records = [*trials(3)]
    records[1] = dataclasses.replace(records[1], measured={"parameters": 5.0})
    first = {
        key: [record.number for record in ranked(records, key, tasks=NAMES[:3])]
        for key in ("score", "CoLA", "time", "lr", "trial")
    }
    assert first == {
        "score": [2, 1, 0, 3],
        "CoLA": [2, 1, 0, 3],
        "time": [0, 1, 2, 3],
        "lr": [0, 1, 2, 3],
        "trial": [0, 1, 2, 3],
    }
    assert [record.number for record in ranked(records, "parameters", tasks=[], top=1)] == [1]
    with pytest.raises(StudyError, match="did you mean 'learning_rate'"):
        ranked(records, "learning_rat", tasks=[])


def test_a_short_name_is_never_that_of_another_parameter():
    assert short_names(["learning_rate", "lr"]) == ["learning_rate", "lr"]
    assert short_names(["per_device_eval_batch_size", "warmup_ratio"]) == ["eval_batch_size"[5:], "warmup_ratio"]


def test_a_trial_that_went_on_from_another_one_says_from_whom_and_with_what():
    exchange = {"epoch": 2, "donor": "t0003", "parameters": {"learning_rate": 0.002, "pooling": "mean"}}
    records = [dataclasses.replace(trials(1)[0], exchanges=(exchange,))]
    table = str(trials_table(records, tasks=[], best=None, width=120))
    assert "from t0003 after epoch 2: learning_rate=0.002 pooling=mean" in table


def test_other_objectives_stand_beside_the_score_and_the_front_is_marked():
    objectives, measured = ("score", "gain", "seconds", "parameters", "disk"), {"parameters": 1234567.0, "disk": 4.96e6}
    first, second, *_ = trials(1)
    first = dataclasses.replace(first, measured={"score": 0.5, "gain": -0.01, **measured})
    table = trials_table([first, second], tasks=[], best=None, width=120, objectives=objectives, front=["t0000"])
    head, one, two, *_ = str(table).splitlines()
    assert head.split()[:7] == ["trial", "state", "front", "score", "gain", "parameters", "disk"]
    assert all(shown in one for shown in ("*", "-0.0100", "1,234,567", "5.0 MB"))
    assert "*" not in two


def test_a_missing_value_is_a_dash_and_one_that_is_null_is_shown_as_a_study_file_writes_it():
    record = dataclasses.replace(trials(1)[3], parameters={"bits": None})
    assert str(trials_table([record], tasks=["CoLA"], best=None, width=120)).splitlines()[1].split()[-2:] == [
        "–",
        "null",
    ]


def test_sentences_break_between_words_in_a_terminal_and_commands_never():
    console = terminal(40)
    console.print("A sentence that is longer than the terminal: run `tutti tune study.yaml --resume --trials 9` again.")
    console.print("  tutti ensemble studies/demo --recipe auto --out somewhere/else")
    *broken, command = console.file.getvalue().splitlines()
    assert broken == [
        "A sentence that is longer than the",
        "terminal: run",
        "`tutti tune study.yaml --resume --trials 9`",
        "again.",
    ]
    assert command == "  tutti ensemble studies/demo --recipe auto --out somewhere/else"


def test_a_log_keeps_a_sentence_on_one_line():
    log = make_console(io.StringIO())
    log.print("word " * 60)
    assert len(log.file.getvalue().splitlines()) == 1


def test_what_has_no_room_is_left_out_of_a_table_without_second_lines():
    lines = [Line(["t0000"], [["0.5"] * 9])]
    shown = str(listing(["trial"], lines, width=30, groups=[Group([f"column {n}" for n in range(9)])], details=False))
    assert shown == "trial\nt0000"
