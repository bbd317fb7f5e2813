"""A regression from the bank to its submission, beside a task of classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from polls import elect, write_ensemble, write_pseudo_labels
from scorers import score

from tutti.bank.bank import Bank
from tutti.config.recipe import PseudoLabels
from tutti.errors import StudyError
from tutti.outputs.election.members import votes
from tutti.outputs.election.poll import Rule
from tutti.outputs.pseudo.pool import Pool
from tutti.outputs.submission.submission import Formats
from tutti.records import CheckpointRecord
from tutti.tasks.layouts.glue import Glue
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task

STSB = Task("STS-B", (), pair=True, metric="pearson_spearman", submission="glue")
COLA = Task("CoLA", ("0", "1"), pair=False, metric="matthews", submission="glue")
ROWS = {"validation": 120, "test": 40, "unlabeled": 30}


def ids(part: str) -> np.ndarray:
    return np.array([str(row) for row in range(ROWS[part])])


VALIDATION = {task: pd.DataFrame({"id": ids("validation"), "text": ids("validation")}) for task in ("STS-B", "CoLA")}


def put(bank: Bank) -> None:
    """Three members that are each right but for noise of their own."""
    rng = np.random.default_rng(7)
    truth = {part: rng.uniform(0, 5, rows).astype(np.float32) for part, rows in ROWS.items()}
    grammatical = rng.integers(2, size=ROWS["validation"])
    for number in range(3):
        values = {
            part: Predictions(
                ids=ids(part),
                outputs=(right + rng.normal(0, 1 + number / 10, len(right))).astype(np.float32),
                labels=right if part == "validation" else None,
            )
            for part, right in truth.items()
        }
        classes = {
            part: Predictions(
                ids=ids(part),
                outputs=rng.dirichlet([1, 1], rows).astype(np.float32),
                labels=grammatical if part == "validation" else None,
                names=COLA.names,
            )
            for part, rows in ROWS.items()
        }
        scores = {
            "STS-B": score(STSB.metric, labels=truth["validation"], predicted=values["validation"].outputs),
            "CoLA": score(COLA.metric, labels=grammatical, predicted=classes["validation"].outputs),
        }
        record = CheckpointRecord(f"t{number:04d}", number, 1, float(np.mean(list(scores.values()))), scores, None)
        bank.put(record, {"STS-B": values, "CoLA": classes})


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    bank = Bank(tmp_path / "bank")
    put(bank)
    return bank


@pytest.fixture
def ensemble(bank: Bank, tmp_path: Path) -> Callable:
    def written(**changes):
        plain = {"study": "demo", "recipe_name": "baseline", "tasks": [STSB, COLA], "bank": bank, "rule": Rule(top=3)}
        plain |= {"test_ids": {task: {"test": ids("test")} for task in ("STS-B", "CoLA")}}
        plain |= {"validation": VALIDATION, "submission": Formats(), "out": tmp_path / "out"}
        return write_ensemble(**{**plain, **changes})

    return written


@pytest.mark.parametrize(
    ("tasks", "usual"),
    [
        ([COLA], "stacking"),
        ([STSB], "their mean"),
        ([STSB, COLA], "stacking, for numbers by their mean"),
    ],
)
def test_how_numbers_are_combined_is_said_where_there_are_some(bank: Bank, tasks: list[Task], usual: str) -> None:
    rule = Rule(top=3, method="auto")
    election = elect(study="demo", bank=bank, tasks=tasks, validation=VALIDATION, needed={}, rule=rule)
    assert f", combined in each task by {usual}, or by a method that is clearly better there" in election.rule


def mean_of(bank: Bank, part: str, members) -> np.ndarray:
    return sum(
        member.weight * bank.predictions(member.key, "STS-B", part).outputs.astype(np.float64) for member in members
    )


@pytest.mark.parametrize("method", ["uniform", "score"])
def test_the_submission_holds_the_weighted_mean_with_three_decimals(bank, ensemble, tmp_path, method):
    card = ensemble(rule=Rule(top=3, method=method))
    mean = mean_of(bank, "test", card.tasks[0].members)
    assert len({round(member.weight, 9) for member in card.tasks[0].members}) == (1 if method == "uniform" else 3)
    header, *lines = (tmp_path / "out" / "STS-B.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    assert [line.split("\t")[0] for line in lines] == ids("test").tolist()
    labels_written = [line.split("\t")[1] for line in lines]
    assert [len(text.split(".")[1]) for text in labels_written] == [3] * ROWS["test"]
    assert np.abs(np.array(labels_written, dtype=float) - mean).max() <= 0.00051
    assert set((tmp_path / "out" / "CoLA.tsv").read_text().split("\n")[1:-1]) <= {
        f"{row}\t{label}" for row in ids("test") for label in "01"
    }


def test_the_card_scores_the_mean_value_and_it_beats_its_members(bank, ensemble, tmp_path):
    card = ensemble()
    shown, truth = card.tasks[0], bank.predictions("t0000", "STS-B", "validation").labels
    mean = mean_of(bank, "validation", shown.members)
    assert (shown.task, shown.metric) == ("STS-B", "pearson_spearman")
    flattering = score("pearson_spearman", labels=truth, predicted=mean)
    assert shown.score.score == pytest.approx(flattering, abs=1e-6)  # three of three: there was nothing to choose
    assert shown.gain.score > 0
    assert (shown.offsets, shown.calibration) == (None, None)
    assert "| STS-B (pearson_spearman) |" in (tmp_path / "out" / "card.md").read_text()
    assert "| STS-B | uniform | the value | – | – | – |" in (tmp_path / "out" / "card.md").read_text()


def test_other_formats_hold_all_digits_of_float32(bank, ensemble, tmp_path):
    card = ensemble(submission=Formats("competition"), out=tmp_path / "json")
    ensemble(submission=Formats("csv"), out=tmp_path / "csv")
    mean = mean_of(bank, "test", card.tasks[0].members)
    lines = (tmp_path / "json" / "sts-b_predict.json").read_text().splitlines()
    labels_written = [json.loads(line)["label"] for line in lines]
    assert np.array_equal(np.array(labels_written, dtype=np.float32), mean.astype(np.float32))
    table = pd.read_csv(tmp_path / "csv" / "STS-B.csv", dtype={"id": str})
    assert table["id"].tolist() == ids("test").tolist()
    assert np.array_equal(table["label"].to_numpy(dtype=np.float32), mean.astype(np.float32))


def test_a_squared_error_weighs_all_members_alike(bank, ensemble):
    for record in bank.records():
        parts = {
            task: {part: bank.predictions(record.key, task, part) for part in names}
            for task, names in bank.parts(record.key).items()
        }
        scores = {**record.task_scores, "STS-B": -1.0 - record.number}
        bank.put(CheckpointRecord(record.key, record.number, 1, record.score, scores, None), parts)
    task = Task("STS-B", (), pair=True, metric="neg_mse", submission="glue")
    card = ensemble(tasks=[task, COLA], rule=Rule(top=3, method="score", by="task"))
    assert [member.weight for member in card.tasks[0].members] == pytest.approx([1 / 3] * 3)
    assert [member.key for member in card.tasks[0].members] == ["t0000", "t0001", "t0002"]


def test_members_of_another_kind_are_named(bank):
    election = elect(
        study="s",
        bank=bank,
        tasks=[STSB, COLA],
        validation=VALIDATION,
        needed={},
        rule=Rule(top=2, by="task"),
    )
    values = Task("CoLA", (), pair=False, metric="pearson", submission="csv")
    with pytest.raises(
        StudyError,
        match=r"CoLA/test must hold predictions of one number per row; got 2 classes \(0, 1\)",
    ):
        votes(bank, task=values, part="test", elected=election.tasks["CoLA"])
    classes = Task("STS-B", ("a", "b"), pair=True, metric="accuracy", submission="csv")
    with pytest.raises(
        StudyError, match=r"STS-B/test must hold predictions of 2 classes \(a, b\); got one number per row"
    ):
        votes(bank, task=classes, part="test", elected=election.tasks["STS-B"])


@pytest.mark.parametrize("method", ["auto", "rank", "greedy", "stacking"])
def test_values_are_combined_by_every_method_that_can(ensemble, method):
    card = ensemble(rule=Rule(method=method, decision="offsets", calibration="temperature"))
    shown = card.tasks[0]
    assert shown.score.score > 0.6
    assert (shown.offsets, shown.calibration) == (None, None)


def test_a_vote_by_hands_over_values_is_refused_with_the_methods_that_can(ensemble, tmp_path):
    message = (
        "the method hard must combine what the task's labels are; got STS-B, whose labels are numbers; name one of"
    )
    with pytest.raises(StudyError, match=f"{message} auto, uniform, score, rank, greedy, stacking in the recipe"):
        ensemble(rule=Rule(method="hard"))
    assert not (tmp_path / "out").exists()


def pseudo(bank: Bank, out: Path, names: tuple[str, ...], select: str = "threshold"):
    rows = pd.DataFrame({"id": ids("unlabeled"), "text": "a", "text_b": "b"})
    seen, prior = np.zeros(len(rows), dtype=bool), np.full(2, 0.5)
    return write_pseudo_labels(
        study="demo",
        recipe_name="baseline",
        tasks=[STSB, COLA],
        validation=VALIDATION,
        pools={name: Pool(rows, seen, prior, Glue(name), ".tsv", "5" * 64) for name in names},
        bank=bank,
        rule=Rule(top=3),
        labelling=PseudoLabels(select=select, threshold=0.5, max_drift=None),
        out=out,
    )


def test_a_regression_gets_no_pseudo_labels_and_the_report_says_why(bank, tmp_path):
    report = pseudo(bank, tmp_path / "out", ("STS-B", "CoLA"))
    assert [task.task for task in report.tasks] == ["CoLA"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "CoLA.tsv",
        "CoLA.ledger.parquet",
        "card.json",
        "card.md",
    }
    remark = "Task STS-B was passed over: a value has no confidence."
    assert report.remarks == (remark,)
    assert f"> {remark}" in (tmp_path / "out" / "card.md").read_text()


def test_a_study_of_regressions_alone_has_nothing_to_label(bank, tmp_path):
    with pytest.raises(StudyError, match="a task with unlabelled rows; got none but STS-B, whose labels are numbers"):
        pseudo(bank, tmp_path / "out", ("STS-B",))
    assert not (tmp_path / "out").exists()
