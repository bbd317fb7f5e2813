"""Every kind of task from a small file to a submission, and from its pseudo-labels to training rows. Without training.

The members' predictions are the truth with noise.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tutti.bank.bank import Bank
from tutti.bank.electorate import Electorate
from tutti.bank.tables import from_parquet, to_parquet
from tutti.config.load import load_study
from tutti.config.metric_facts import FACTS
from tutti.config.recipe import PseudoLabels, Recipe
from tutti.config.study import StudyConfig
from tutti.data.prepare import prepare
from tutti.data.prepared import Prepared
from tutti.ensembling.methods.registry import plain_vote
from tutti.ensembling.task_vote import TaskVote
from tutti.errors import StudyError
from tutti.outputs.election.ensemble import vote as vote_of
from tutti.outputs.election.grade import read_labels
from tutti.outputs.election.poll import Poll, Rule
from tutti.outputs.pictures import predictions_png
from tutti.outputs.pseudo.labels import label
from tutti.outputs.pseudo.pool import pools
from tutti.outputs.pseudo.rounds import compare
from tutti.outputs.report.report import Search, vote, write_report
from tutti.records import CheckpointRecord
from tutti.tasks.build import sample_ids_of, task_specs
from tutti.tasks.kinds.entities import UNKNOWN, sure_parts, types_of
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.predictions import Predictions
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task
from tutti.workflows.tune import picture
from tutti.workflows.vote import formats_of
from tutti.workflows.vote import test_ids as ids_of_tests

ROWS = {"train": 200, "test": 30, "pool": 40}
MEMBERS = 4
TOXIC = ("toxic", "insult", "threat")
RECIPE = Recipe(members={"top": 3}, method="stacking", decision="offsets", calibration="temperature")
OF_TEXTS = Recipe(members={"top": 3})


@dataclass(frozen=True)
class Example:
    """A kind's task: the columns of its labels, the keys of its study file, and random labels as its file has them."""

    columns: tuple[str, ...]
    keys: str
    cells: Callable[[np.random.Generator, int], list[list[str]]]
    layout: str = "table"
    choices: Callable[[np.random.Generator], list[str]] | None = None
    worse: bool = False


def classes(rng: np.random.Generator, rows: int) -> list[list[str]]:
    return [[("calm", "glad", "sad")[each]] for each in rng.integers(3, size=rows)]


def grades(rng: np.random.Generator, rows: int) -> list[list[str]]:
    return [[str(each)] for each in rng.integers(1, 6, size=rows)]


def zeros_and_ones(rng: np.random.Generator, rows: int) -> list[list[str]]:
    """One in ten is missing."""
    known, labels = rng.random((rows, 3)) > 0.1, rng.random((rows, 3)) < (0.5, 0.3, 0.2)
    return np.where(known, labels.astype(int).astype(str), "").tolist()


def lists(rng: np.random.Generator, rows: int) -> list[list[str]]:
    names = ("joy", "love", "fear")
    return [["|".join(names[index] for index in np.flatnonzero(row))] for row in rng.random((rows, 3)) < 0.4]


def number(rng: np.random.Generator, rows: int) -> list[list[str]]:
    return [[f"{each:.3f}"] for each in rng.normal(size=rows)]


def numbers(rng: np.random.Generator, rows: int) -> list[list[str]]:
    values = [[f"{each:.3f}" for each in row] for row in rng.normal(size=(rows, 2))]
    return [["" if rng.random() < 0.1 else each for each in row] for row in values]


def texts(rng: np.random.Generator, rows: int) -> list[list[str]]:
    words = ("one", "two", "three", "four")
    return [[" ".join(words[each] for each in rng.integers(4, size=rng.integers(1, 6)))] for _ in range(rows)]


def tags(rng: np.random.Generator, rows: int) -> list[list[str]]:
    """Of rows of three words."""
    marked = ("O O O", "B-PER I-PER O", "O B-LOC B-PER", "B-LOC O O", "O O B-LOC")
    return [[marked[each]] for each in rng.integers(len(marked), size=rows)]


def overlapping(rng: np.random.Generator, rows: int) -> list[list[str]]:
    """Of rows of three words."""
    marked = ("O O O", "B-PER I-PER|B-LOC I-LOC", "O B-LOC|B-PER O", "B-LOC B-LOC B-LOC", "O O B-PER")
    return [[marked[each]] for each in rng.integers(len(marked), size=rows)]


def one_span(rng: np.random.Generator, rows: int) -> list[list[str]]:
    """Of rows of three words; in one of five there is no answer."""
    marked = ("O O O", "B-answer I-answer O", "O B-answer O", "O O B-answer", "B-answer O O")
    return [[marked[each]] for each in rng.integers(len(marked), size=rows)]


def plain_tags(rng: np.random.Generator, rows: int) -> list[list[str]]:
    return [[" ".join(rng.choice(["DET", "NOUN", "VERB"], 3))] for _ in range(rows)]


def answers(rng: np.random.Generator, rows: int) -> list[list[str]]:
    """Places from 0; every row has two candidates at least, see ``some_candidates``."""
    return [[str(each)] for each in rng.integers(2, size=rows)]


def some_candidates(rng: np.random.Generator) -> list[str]:
    """Two to four, in as many columns."""
    count = rng.integers(2, 5)
    return [f"answer {place}" if place < count else "" for place in range(4)]


CHOICES = "\n    columns: {choices: [one, two, three, four]}"
EXAMPLES = {
    "classes": Example(("label",), "metric: macro_f1", classes),
    "ordered": Example(("label",), "metric: quadratic_kappa\n    ordered: true", grades),
    "choice": Example(("label",), "metric: accuracy" + CHOICES, answers, choices=some_candidates),
    "labels": Example(TOXIC, "metric: macro_f1\n    columns: {labels: [toxic, insult, threat]}", zeros_and_ones),
    "labels in one cell": Example(("tags",), 'metric: macro_f1\n    columns: {labels: tags, separator: "|"}', lists),
    "value": Example(("label",), "metric: pearson", number),
    "values": Example(("valence", "arousal"), "metric: rmse\n    columns: {values: [valence, arousal]}", numbers),
    "values by correlation": Example(
        ("valence", "arousal"), "metric: pearson\n    columns: {values: [valence, arousal]}", numbers
    ),
    "preference": Example((), "columns: {better: text, worse: other}", lambda rng, rows: [[]] * rows, worse=True),
    "tokens": Example(("tags",), "metric: entity_f1", tags, "tokens"),
    "overlapping": Example(("tags",), "spans: overlapping", overlapping, "tokens"),
    "span": Example(("tags",), "spans: one", one_span, "tokens"),
    "tags": Example(("tags",), "spans: none", plain_tags, "tokens"),
    "text": Example(("label",), "metric: rouge_l\n    columns: {text: text, label: label}", texts, "instructions"),
}
PROBABILITIES = {
    "classes": Example(("label",), "metric: log_loss", classes),
    "ordered": Example(("label",), "metric: roc_auc\n    ordered: true", grades),
    "choice": Example(("label",), "metric: log_loss" + CHOICES, answers, choices=some_candidates),
    "labels": Example(TOXIC, "metric: roc_auc\n    columns: {labels: [toxic, insult, threat]}", zeros_and_ones),
}


@dataclass(frozen=True)
class Study:
    """A study whose trials have ended. What is made of it goes to ``folder``."""

    folder: Path
    config: StudyConfig
    prepared: Prepared
    bank: Bank
    truth: np.ndarray

    @property
    def task(self) -> Task:
        return self.prepared.tasks[0]


def write_table(path: Path, example: Example, part: str, labels: list[list[str]] | None, rows: int) -> None:
    rng = np.random.default_rng(len(part))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ("one", "two", "three", "four") if example.choices else ("other",) if example.worse else ()
        writer.writerow(["id", "text", *names, *(example.columns if labels else ())])
        for row in range(rows):
            own = example.choices(rng) if example.choices else [f"other {part} {row}"] if example.worse else ()
            writer.writerow([f"{part}{row}", f"text {part} {row}", *own, *(labels[row] if labels else ())])


def of_own_candidates(outputs: np.ndarray, rows: pd.DataFrame) -> np.ndarray:
    """Probabilities of the candidates that rows have, where they have any."""
    if "choices" not in rows:
        return outputs
    own = np.arange(outputs.shape[1]) < np.array([len(json.loads(each)) for each in rows["choices"]])[:, None]
    return np.where(own, outputs, 0) / np.where(own, outputs, 0).sum(axis=1, keepdims=True)


def noisy(kind: str, truth: np.ndarray, outputs: int, rng: np.random.Generator) -> np.ndarray:
    """Outputs that are right more often than not."""
    if kind == "text":
        return np.where(rng.random(len(truth)) < 0.3, rng.permutation(truth), truth)
    if kind == "preference":
        return rng.normal([1, 0], size=(len(truth), 2)).astype(np.float32)
    if kind in ("value", "values"):
        return (np.nan_to_num(truth) + rng.normal(0, 0.6, truth.shape)).astype(np.float32)
    if kind == "labels":
        logits = 2.4 * np.nan_to_num(truth, nan=0.5) - 1.8 + rng.normal(size=truth.shape)
        return (1 / (1 + np.exp(-logits))).astype(np.float32)
    logits = 2 * np.eye(outputs)[truth] + rng.normal(size=(*truth.shape, outputs))
    if kind == "overlapping":  # of two types, each with three words
        lane, of_tag = np.arange(6)[:, None] // 3, (np.arange(outputs) - 1) // 2
        logits = np.where((of_tag == lane) | (of_tag < 0), logits, -np.inf)
    shares = np.exp(logits)
    return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)


def write_answers(path: Path, columns: tuple[str, ...], labels: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", *columns], *([f"test{row}", *cells] for row, cells in enumerate(labels))])


def make(folder: Path, example: Example, more: str = "") -> Study:
    """Writes the files, prepares the study, and puts the members' predictions into its bank."""
    rng = np.random.default_rng(0)
    labels = {part: example.cells(rng, rows) for part, rows in ROWS.items()}
    for part, rows in ROWS.items():
        write_table(folder / f"{part}.csv", example, part, labels[part] if part == "train" else None, rows)
    answers = folder / "answers.csv"
    if example.layout == "tokens" or example.worse:
        write_table(answers, example, "test", labels["test"], ROWS["test"])
    else:
        write_answers(answers, example.columns, labels["test"])
    (folder / "study.yaml").write_text(f"""
study: kinds
backbone: {folder}
tasks:
  t:
    layout: {example.layout}
    train: train.csv
    test: test.csv
    unlabeled: pool.csv
    {example.keys}
    {more}
search_space: {{learning_rate: {{type: log_uniform, low: 1.0e-5, high: 1.0e-4}}}}
storage: {{path: {folder / "studies"}}}
""")
    config = load_study(folder / "study.yaml")
    specs = task_specs(config.tasks, sample_ids_of(config), config.split)
    prepared = prepare(specs, validation=0.5, seed=0, folder=folder / "data")
    task = prepared.tasks[0]
    truth = read_labels(
        str(answers),
        task=task,
        layout=specs[0].extra_layout,
        expected=prepared.rows("t", "test"),
        cleaning=specs[0].cleaning,
    )
    pool = task.kind.parse(_as_read(specs[0], labels["pool"], folder, example), task.names)
    bank = Bank(folder / "bank")
    for member in range(MEMBERS):
        outputs = {
            part: (right, noisy(task.kind_name, right, task.outputs, np.random.default_rng([member, len(right)])))
            for part, right in (
                ("validation", prepared.labels("t", "validation")),
                ("test", truth),
                ("unlabeled", pool),
            )
        }
        outputs = {
            part: (right, of_own_candidates(predicted, prepared.rows("t", part)))
            for part, (right, predicted) in outputs.items()
        }
        bank.put(*checkpoint(task, f"t{member:04d}", member, outputs, prepared))
    return Study(folder, config, prepared, bank, truth)


def checkpoint(
    task: Task, key: str, number: int, outputs: dict[str, tuple[np.ndarray, np.ndarray]], prepared: Prepared
) -> tuple[CheckpointRecord, dict[str, dict[str, Predictions]]]:
    """What a bank stores of a checkpoint with these labels and outputs by part."""
    parts = {
        part: Predictions.of(
            task, ids=prepared.ids("t", part), outputs=predicted, labels=right if part == "validation" else None
        )
        for part, (right, predicted) in outputs.items()
    }
    score = Scorer.of(task).score(parts["validation"].labels, parts["validation"].outputs)
    return CheckpointRecord(key, number, 1, score, {"t": score}, None), {"t": parts}


def _as_read(spec, labels: list[list[str]], folder: Path, example: Example) -> list[str]:
    write_table(folder / "truth.csv", example, "pool", labels, len(labels))
    return spec.extra_layout.read(str(folder / "truth.csv"), labelled=True)["label"].tolist()


def ensemble(study: Study, recipe: Recipe | None = None, name: str = "out"):
    recipe = recipe or (OF_TEXTS if study.task.kind.generative else RECIPE)
    voted = vote_of(
        poll_of(study, recipe),
        test_ids=ids_of_tests(study.config, study.prepared),
        submission=formats_of(study.config, study.prepared, recipe),
        answers={"t": {"test": study.truth}},
    )
    return voted.write(study.folder / name)


def poll_of(study: Study, recipe: Recipe) -> Poll:
    return Poll("kinds", study.prepared.tasks, study.prepared.validation_rows(), study.bank, Rule.of(recipe), "own")


def submitted(study: Study, name: str = "out") -> list[list[str]]:
    with (study.folder / name / "t.csv").open(newline="") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Callable[[str, bool], Study]:
    """Each example's study, made once."""
    return cache(lambda name, probabilities: make(tmp_path_factory.mktemp("study"), _examples(probabilities)[name]))


def _examples(probabilities: bool) -> dict[str, Example]:
    return PROBABILITIES if probabilities else EXAMPLES


@pytest.fixture
def study_of(made, tmp_path) -> Callable[..., Study]:
    return lambda name, probabilities=False: replace(made(name, probabilities), folder=tmp_path)


def test_every_kind_has_an_example():
    assert {name.split()[0] for name in EXAMPLES} == KINDS.keys()
    needing = {kind for facts in FACTS.values() if facts.needs == "probabilities" for kind in facts.kinds}
    assert PROBABILITIES.keys() == needing


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_submission_has_a_row_per_test_row_and_the_columns_of_its_kind(study_of, tmp_path, example):
    study = study_of(example)
    assert study.task.kind_name == example.split()[0]
    card = ensemble(study)
    header, *rows = submitted(study)
    assert header == [
        "id",
        *(study.task.names if study.task.kind_name in ("labels", "values", "preference") else ("label",)),
    ]
    assert [row[0] for row in rows] == [f"test{row}" for row in range(ROWS["test"])]
    if study.task.kind.spans == "one":
        pieces = {piece for row in range(ROWS["test"]) for piece in (f"text test {row}", f"test {row}", str(row), "")}
        assert {cell for row in rows for cell in row[1:]} <= pieces | {"text", "test", "text test"}
        assert json.loads((tmp_path / "out" / "t.answers.json").read_text()) == dict(rows)
        return
    if study.task.kind.sequential:
        rows = [[row[0], *row[1].replace("|", " ").split(" ")] for row in rows]
    allowed = {"labels": {"0", "1"}, "choice": {"0", "1", "2", "3"}}.get(study.task.kind_name, {*study.task.names})
    cells = {cell for row in rows for cell in row[1:]}
    if study.task.kind_name != "text":
        assert cells <= allowed if study.task.kind.probabilistic else np.isfinite([*map(float, cells)]).all()
    read = json.loads((tmp_path / "out" / "card.json").read_text())
    assert read["tasks"][0]["score"]["score"] == card.tasks[0].score.score
    assert card.graded[0].score > (-1 if study.task.metric == "rmse" else 0.5)
    assert {"ensemble.png", "t.csv", "submission.zip"} <= card.files.keys()


@pytest.mark.parametrize("kind", PROBABILITIES)
def test_where_the_metric_needs_probabilities_these_are_submitted(study_of, kind):
    study = study_of(kind, probabilities=True)
    card = ensemble(study, Recipe(decision="offsets"))
    header, *rows = submitted(study)
    assert header == ["id", *study.task.names]
    probabilities = np.array([row[1:] for row in rows], dtype=float)
    scorer = Scorer.of(study.task)
    assert scorer(study.truth, probabilities.astype(np.float32)) == pytest.approx(card.graded[0].score, abs=1e-5)
    assert card.tasks[0].decision == "none is made"


@pytest.mark.parametrize("kind", [name for name in EXAMPLES if KINDS[name.split()[0]].probabilistic])
@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_pseudo_labels_come_back_as_extra_training_rows(study_of, kind, labels):
    study = study_of(kind)
    if study.task.kind.sequential and labels == "soft":
        with pytest.raises(StudyError, match=r"labels must be hard with tasks of tags"):
            pseudo(study, PseudoLabels(select="all", labels=labels, max_drift=None))
        return
    report = pseudo(study, PseudoLabels(select="all", labels=labels, max_drift=None))
    assert report.tasks[0].labelled == ROWS["pool"]
    back = trained_on(study, report.tasks[0].file, labels)
    assert back.untrained == []
    assert len(back.rows) == ROWS["pool"]
    members = [member.key for member in report.tasks[0].members]
    mean = np.mean([study.bank.predictions(key, "t", "unlabeled").outputs for key in members], axis=0)
    decision = thresholds_of_the_vote(study) if study.task.kind.tuned_alone and labels == "hard" else None
    np.testing.assert_array_equal(back.labels, study.task.kind.decide(mean.astype(np.float32), decision))
    if labels == "soft":
        np.testing.assert_allclose(back.soft, mean, atol=1e-6)


def test_the_picture_of_a_trial_shows_the_decisions_that_were_scored(study_of):
    study = study_of("labels")
    predictions = study.bank.predictions("t0000", "t", "validation")
    faint = replace(predictions, outputs=predictions.outputs / 3)  # from 0.5 on there would be no label at all
    thresholds = Scorer.of(study.task).alone(faint.labels, faint.outputs)
    decided = study.task.kind.decide(faint.outputs, thresholds)
    drawn = predictions_png(study.task.kind, faint.labels, decided, study.task.names, "t")
    assert picture({"t": study.task}, "t", faint) == drawn


SUREST = "The surest 0.25 of the eligible rows are labelled"


@pytest.mark.parametrize(
    ("select", "said"),
    [("threshold", "A row is labelled where it is as sure"), ("quantile", SUREST), ("prior", SUREST)],
)
def test_rows_of_several_labels_are_chosen_by_their_least_certain_label(study_of, select, said):
    study = study_of("labels")
    labelling = PseudoLabels(select=select, share=0.25, threshold=0.7, max_drift=None)
    report = pseudo(study, labelling)
    (task,) = report.tasks
    mean = np.mean([study.bank.predictions(each.key, "t", "unlabeled").outputs for each in task.members], axis=0)
    given = mean >= thresholds_of_the_vote(study)
    sure = np.where(given, mean, 1 - mean).min(axis=1)
    expected = int((sure >= 0.7).sum()) if select == "threshold" else ROWS["pool"] // 4
    assert 0 < task.labelled == expected < ROWS["pool"]
    chosen = np.sort(np.argsort(-sure)[:expected])
    np.testing.assert_array_equal(trained_on(study, task.file, "hard").labels, given[chosen])
    assert report.which_rows.startswith(said)
    assert "class" not in report.which_rows
    by_name = {each.label: each.rows for each in task.coverage}
    assert by_name == dict(zip(study.task.names, given[chosen].sum(axis=0), strict=True))
    (refused,) = pseudo(study, labelling.model_copy(update={"max_drift": 1e-9})).tasks
    assert refused.file is None


@pytest.mark.parametrize("kind", ["value", "values"])
def test_pseudo_labels_of_numbers_come_back_as_they_were_predicted(study_of, kind):
    study = study_of(kind)
    report = pseudo(study, PseudoLabels(select="all", max_drift=None))
    back = trained_on(study, report.tasks[0].file, "hard")
    members = [member.key for member in report.tasks[0].members]
    mean = np.mean([study.bank.predictions(key, "t", "unlabeled").outputs for key in members], axis=0)
    np.testing.assert_allclose(back.labels, mean, atol=1e-6)


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_a_round_whose_trials_are_better_than_their_control_s_is_kept(study_of, kind, tmp_path):
    study = study_of(kind)
    right = study.prepared.labels("t", "validation")

    def with_trials(name: str, share: float) -> Electorate:
        more = Bank(tmp_path / name)
        for member in range(MEMBERS):
            rng = np.random.default_rng([9, member])
            outputs = share * np.nan_to_num(right, nan=0.5) + (1 - share) * noisy(kind, right, study.task.outputs, rng)
            more.put(
                *checkpoint(study.task, f"r{member:04d}", member, {"validation": (right, outputs)}, study.prepared)
            )
        return Electorate({"kinds": study.bank, name: more})

    before = poll_of(study, Recipe(members={"top": 3}))
    trials = {"control": with_trials("control", 0.0), "with_round": with_trials("round", 0.4)}
    compared = compare(before, **trials, needed={"t": []})
    assert compared.kept


def thresholds_of_the_vote(study: Study) -> np.ndarray:
    card = ensemble(study, Recipe(members={"top": 3}))
    return np.array([*card.tasks[0].offsets.values()], dtype=np.float32)


def test_pseudo_labels_of_texts_are_those_on_which_members_agree_best(study_of):
    study = study_of("text")
    report = pseudo(study, PseudoLabels(select="all", max_drift=None))
    back = trained_on(study, report.tasks[0].file, "hard")
    keys = [member.key for member in report.tasks[0].members]
    votes = np.stack([study.bank.predictions(key, "t", "unlabeled").outputs for key in keys])
    np.testing.assert_array_equal(back.labels, plain_vote(study.task, votes))


def test_trials_that_are_ranked_by_perplexity_have_the_vote_s_metric_on_its_card(study_of, monkeypatch):
    study = study_of("text")
    known = study.bank.records()
    by_rouge = {record.key: record.task_scores["t"] for record in known}
    ranked = [replace(record, score=-360 - record.number, task_scores={"t": -360 - record.number}) for record in known]
    monkeypatch.setattr(study.bank, "records", lambda: ranked)
    task = replace(study.task, metric="perplexity", report=("rouge_l",))
    poll, formats = replace(poll_of(study, OF_TEXTS), tasks=[task]), formats_of(study.config, study.prepared, OF_TEXTS)
    card = vote_of(poll, test_ids={}, submission=formats).card
    assert card.tasks[0].metric == "rouge_l"
    assert {single.key: single.task_scores["t"] for single in card.singles} == pytest.approx(by_rouge)


def pseudo(study: Study, labelling: PseudoLabels):
    rows = pools(study.prepared, task_specs(study.config.tasks))
    return label(poll_of(study, Recipe(members={"top": 3})), pools=rows, labelling=labelling).write(
        study.folder / "pseudo"
    )


@pytest.mark.parametrize("kind", ["tokens", "overlapping", "span", "tags"])
def test_parts_that_are_sure_enough_are_pseudo_labels_and_others_are_unknown(study_of, kind):
    study = study_of(kind)
    labelling = PseudoLabels(select="parts", threshold=0.7, max_drift=None)
    (task,) = pseudo(study, labelling).tasks
    back = trained_on(study, task.file, "hard")
    members = [member.key for member in task.members]
    mean = np.mean([study.bank.predictions(key, "t", "unlabeled").outputs for key in members], axis=0)
    decision = thresholds_of_the_vote(study) if study.task.kind.tuned_alone else None
    whole = study.task.kind.decide(mean.astype(np.float32), decision)
    kept = sure_parts(mean, whole, 0.7, marks=kind != "tags")
    chosen = (kept > 0 if kind != "tags" else kept >= 0).any(axis=1)
    assert 0 < chosen.sum() == task.labelled
    np.testing.assert_array_equal(back.labels, kept[chosen])
    assert (kept == UNKNOWN).any()
    with pytest.raises(StudyError, match=r"select must be of tasks with tags alone: t has none; got parts"):
        pseudo(study_of("classes"), labelling)


@dataclass(frozen=True)
class Back:
    """Rows of extra_train as the next study trains on them."""

    rows: list[str]
    labels: np.ndarray
    soft: np.ndarray | None
    untrained: list[str]


def trained_on(study: Study, file: str | None, labels: str) -> Back:
    extra = [{"path": str(study.folder / "pseudo" / str(file)), "labels": labels}]
    document = study.config.model_dump(mode="json")
    document["tasks"]["t"]["extra_train"] = extra
    config = StudyConfig.model_validate(document)
    prepared = prepare(task_specs(config.tasks), validation=0.5, seed=0, folder=study.folder / "next")
    ids, every = prepared.ids("t", "train"), prepared.labels("t", "train")
    ours = np.array([str(row).startswith("extra") for row in ids])
    rows = prepared.rows("t", "train")
    soft = np.stack(rows["probabilities"][ours]) if labels == "soft" else None
    untrained = prepared.tasks[0].kind.untrained(every, prepared.tasks[0].names)
    return Back(ids[ours].tolist(), every[ours], soft, untrained)


@pytest.mark.parametrize("example", EXAMPLES)
def test_stored_predictions_come_back(study_of, example):
    study = study_of(example)
    for part in ("validation", "test"):
        stored = study.bank.predictions("t0000", "t", part)
        back = from_parquet(to_parquet(stored))
        np.testing.assert_array_equal(back.outputs, stored.outputs)
        np.testing.assert_array_equal(back.labels, stored.labels)
        assert (back.names, back.kind_name) == (study.task.names, study.task.kind_name)


@pytest.mark.parametrize("example", EXAMPLES)
def test_new_rows_are_predicted_with_the_columns_of_their_kind(study_of, example):
    study = study_of(example)
    outputs = study.bank.predictions("t0000", "t", "test").outputs
    texts = [f"text test {row}" for row in range(len(outputs))]
    table = TaskVote(study.task, {0: (0,)}).table(["a"] * len(outputs), [outputs], texts=texts)
    names, kind = study.task.names, study.task.kind_name
    decided = "labels" if kind == "labels" else "label"
    if study.task.kind.spans in ("one", "none"):
        more = {"one": ["answer", "tags", "entities"], "none": ["tags"]}[study.task.kind.spans]
        assert table.column_names == ["id", *more, "confidence"]
        return
    if kind in ("tokens", "overlapping"):
        assert table.column_names == ["id", "tags", "entities", "confidence"]
        found = zip(table["tags"].to_pylist(), map(json.loads, table["entities"].to_pylist()), strict=True)
        assert all(tags.count("B-") == len(entities) for tags, entities in found)
        assert table["tags"].to_pylist() == study.task.kind.spell(study.task.kind.decide(outputs), names)
        return
    if kind == "text":
        assert table.column_names == ["id", "text", "agreement"]
        assert table["text"].to_pylist() == outputs.tolist()
        return
    columns = [decided, "confidence", *(f"p_{name}" for name in names)] if study.task.kind.probabilistic else names
    assert table.column_names == ["id", *(columns or ("value",))]
    if kind == "labels":
        first = [name for name, given in zip(names, outputs[0] >= 0.5, strict=True) if given]
        assert table["labels"][0].as_py() == ", ".join(first)
        assert table["confidence"][0].as_py() == pytest.approx(np.maximum(outputs[0], 1 - outputs[0]).min())


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_report_s_part_on_an_ensemble_is_made(study_of, example, tmp_path):
    study = study_of(example)
    rows = pools(study.prepared, task_specs(study.config.tasks))
    section = vote(poll_of(study, Recipe()), labelling=PseudoLabels(), pools=rows)
    part = section.tasks[0]
    assert (part.matrix is not None) == study.task.kind.picture.startswith("confusion")
    assert ("decisions" in part.plots) == (study.task.kind.name in ("value", "values", "text", "preference"))
    names = study.task.names
    if study.task.kind.spans in ("many", "overlapping", "one"):
        names = types_of(names)
    assert [each.label for each, _ in part.classes] == [*names] * study.task.kind.probabilistic
    if study.task.kind.sequential:
        row = part.opinions[0]
        assert "".join(each.text for each in row.parts) == row.text
        assert {each.verdict for each in row.parts} <= {"", "right", "missed", "wrong"}
    known = study.prepared.labels("t", "validation")
    if study.task.kind_name == "labels":
        assert [each.rows for each, _ in part.classes] == np.nansum(known, axis=0).tolist()
    assert part.opinions
    page, *_ = write_report(study="kinds", tasks=study.prepared.tasks, search=Search([]), vote=section, out=tmp_path)
    assert part.opinions[0].id in page.read_text(encoding="utf8")


def test_a_study_file_names_the_sample_that_its_submission_is_like(tmp_path):
    ids = [f"test{row}" for row in reversed(range(ROWS["test"]))]
    (tmp_path / "sample.csv").write_text("Id,insult,Toxic,threat\n" + "".join(f"{row},0.5,0.5,0.5\n" for row in ids))
    study = make(tmp_path, EXAMPLES["labels"], "submission: {like: sample.csv}")
    ensemble(study)
    header, *rows = submitted(study)
    assert header == ["Id", "insult", "Toxic", "threat"]
    assert [row[0] for row in rows] == ids
    assert all(0 < float(cell) < 1 for row in rows for cell in row[1:])
