from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from polls import write_ensemble
from scorers import score

from tutti.bank.bank import Bank
from tutti.bank.electorate import Electorate
from tutti.config.recipe import Recipe
from tutti.ensembling.methods.registry import METHODS
from tutti.errors import SubmissionError
from tutti.outputs.election.poll import Rule
from tutti.outputs.submission.submission import Formats
from tutti.records import CheckpointRecord
from tutti.tasks.predictions import Predictions


def test_files_lie_where_they_are_looked_for_and_the_card_lists_them(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out"))
    out = tmp_path / "out"
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    submitted = {"emotion_predict.json", "CoLA.tsv", "topic.csv", "submission.zip"}
    round1 = {"round1/emotion_predict.json", "round1/topic.csv", "round1/submission.zip"}
    assert found == submitted | round1 | {"ensemble.png", "reliability.png", "card.json", "card.md"}
    assert set(card.files) == found - {"card.json", "card.md"}
    for name, digest in card.files.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest


def test_predictions_are_the_classes_of_the_members_mean(make_finished, tmp_path):
    study = make_finished()
    card = write_ensemble(**study.ensemble(tmp_path / "out", rule=Rule(top=3, by="task", method="score")))
    task, shown = study.tasks[0], card.tasks[0]
    mean = sum(
        each.weight * study.bank.predictions(each.key, "emotion", "test").outputs.astype(np.float64)
        for each in shown.members
    )
    lines = (tmp_path / "out" / "emotion_predict.json").read_text().splitlines()
    assert [json.loads(line)["label"] for line in lines] == [task.names[index] for index in mean.argmax(axis=1)]
    assert [json.loads(line)["id"] for line in lines] == study.ids["emotion"]["test"].tolist()


def test_the_zip_holds_the_very_files(make_finished, tmp_path):
    write_ensemble(**make_finished().ensemble(tmp_path / "out"))
    for folder in (tmp_path / "out", tmp_path / "out" / "round1"):
        with zipfile.ZipFile(folder / "submission.zip") as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        beside = {path.name for path in folder.iterdir() if path.suffix in (".json", ".tsv", ".csv")} - {"card.json"}
        assert files == {name: (folder / name).read_bytes() for name in beside}


def test_writing_again_gives_the_same_files(rendered, make_finished, tmp_path):
    study = make_finished()
    first = write_ensemble(**study.ensemble(tmp_path / "out"))
    assert write_ensemble(**study.ensemble(tmp_path / "out")).files == first.files


def test_the_ensemble_beats_the_best_trial_where_their_errors_differ(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out", rule=Rule(top=5)))
    assert all(task.gain.score > 0 for task in card.tasks)
    assert card.gain.low > 0


def test_too_few_validation_rows_give_files_but_no_score(make_finished, tmp_path):
    card = write_ensemble(**make_finished(validation=15).ensemble(tmp_path / "out", rule=Rule(method="auto")))
    assert "emotion_predict.json" in card.files
    assert [(task.score, task.gain, task.calibration, task.method) for task in card.tasks] == [
        (None, None, None, "uniform")
    ] * 3
    assert card.objective is None
    sentence = (
        "Too few validation rows of different texts or groups to score on, fewer than 25: "
        "emotion (15 in all), CoLA (15 in all), topic (15 in all)."
    )
    assert f"> {sentence}" in (tmp_path / "out" / "card.md").read_text()
    assert json.loads((tmp_path / "out" / "card.json").read_text())["objective"] is None


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_every_method_makes_a_submission_and_says_what_it_is_worth(make_finished, tmp_path, method):
    rule = Rule(top=4, by="task", within=0.2, diversity=0.01, method=method, decision="offsets")
    study = make_finished(validation=100)
    card = write_ensemble(**study.ensemble(tmp_path / "out", rule=rule, tasks=study.tasks[:1]))
    assert all(task.method == method or method == "auto" for task in card.tasks)
    assert all(task.method in METHODS for task in card.tasks)
    assert all(task.score.low < task.score.score < task.score.high for task in card.tasks)
    page = (tmp_path / "out" / "card.md").read_text()
    assert "at most 0.2 below the best, each different from all better ones in 1 % of the rows or more" in page


def test_offsets_decide_what_is_submitted_and_stand_on_the_card(make_finished, tmp_path):
    study = make_finished(skewed=True)
    rule = Rule(top=5, decision="offsets")
    card = write_ensemble(**study.ensemble(tmp_path / "out", rule=rule))
    plain = write_ensemble(**study.ensemble(tmp_path / "plain", rule=Rule(top=5)))
    emotion = card.tasks[0]
    assert emotion.offsets["angry"] > 0
    assert plain.tasks[0].offsets is None
    assert [task.offsets for task in card.tasks if task.metric == "accuracy"] == [None]  # the likeliest class is best
    assert emotion.score.score > plain.tasks[0].score.score

    def angry(folder: str) -> int:
        return (tmp_path / folder / "emotion_predict.json").read_text().count('"angry"')

    assert angry("out") > angry("plain")
    assert f"angry +{emotion.offsets['angry']:g}" in (tmp_path / "out" / "card.md").read_text()


def test_one_format_may_be_asked_for_all_tasks(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out", submission=Formats("csv")))
    assert {"emotion.csv", "CoLA.csv", "topic.csv"} <= set(card.files)
    with (tmp_path / "out" / "emotion.csv").open(newline="") as file:
        assert len(list(csv.reader(file))) == 61


def test_a_study_without_test_files_gets_its_card_alone(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out", test_ids={}))
    assert set(card.files) == {"ensemble.png", "reliability.png"}
    assert "Task CoLA has no test file." in (tmp_path / "out" / "card.md").read_text()


def test_rows_that_are_not_the_test_file_s_write_nothing_and_all_are_named(make_finished, tmp_path):
    study = make_finished()
    tests = study.tests()
    tests["emotion"]["test"] = tests["emotion"]["test"][::-1]
    tests["topic"]["test-round1"] = tests["topic"]["test-round1"][:-1]
    with pytest.raises(SubmissionError) as error:
        write_ensemble(**study.ensemble(tmp_path / "out", test_ids=tests))
    assert "the submission of emotion, test must be in the order of the test file" in str(error.value)
    assert "the submission of topic, test-round1 must have the 29 rows" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bank"]


def test_a_zip_for_glue_has_official_names_and_the_card_says_what_it_lacks(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out", submission=Formats("glue")))
    assert {"CoLA.tsv", "emotion.tsv", "topic.tsv"} <= set(card.files)
    remark = next(note for note in card.remarks if note.startswith("submission.zip lacks AX.tsv, MNLI-m.tsv, "))
    assert "CoLA.tsv" not in remark


def test_an_official_file_of_glue_s_takes_no_other_labels(make_finished, tmp_path):
    study, kinds = make_finished(), {"topic": "SST-2"}
    message = r"SST-2.tsv must have GLUE's labels, 0, 1; got '100', '101'.*; set `submission: csv` in the recipe\."
    with pytest.raises(SubmissionError, match=message):
        write_ensemble(**study.ensemble(tmp_path / "out", submission=Formats("glue", glue_tasks=kinds)))
    everywhere = Recipe.model_validate({"submission": "csv"}).submission.format
    card = write_ensemble(**study.ensemble(tmp_path / "out", submission=Formats(everywhere, glue_tasks=kinds)))
    assert "topic.csv" in card.files


def test_a_template_is_followed_for_its_task_and_test_set_alone(make_finished, tmp_path):
    study = make_finished()
    ids = study.ids["topic"]["test-round1"]
    (tmp_path / "sample.csv").write_text("key,answer\n" + "".join(f"{each},?\n" for each in ids[::-1]))
    layouts = Formats(templates={"topic/round1": tmp_path / "sample.csv"})
    write_ensemble(**study.ensemble(tmp_path / "out", submission=layouts))
    with (tmp_path / "out" / "round1" / "topic.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["key", "answer"]
    assert [row[0] for row in rows] == ids[::-1].tolist()
    assert (tmp_path / "out" / "topic.csv").read_text().startswith("id,label")
    with pytest.raises(SubmissionError, match=r"the template 'topics' must belong to a test file, of .*topic"):
        write_ensemble(**study.ensemble(tmp_path / "two", submission=Formats(templates={"topics": tmp_path})))


def test_labels_of_test_rows_grade_the_ensemble_and_the_best_trial(make_finished, tmp_path):
    study = make_finished()
    truth = np.random.default_rng(0).integers(3, size=60)
    card = write_ensemble(**study.ensemble(tmp_path / "out", answers={"emotion": {"test": truth}}))
    lines = (tmp_path / "out" / "emotion_predict.json").read_text().splitlines()
    one_hot = np.eye(3)[[study.tasks[0].names.index(json.loads(line)["label"]) for line in lines]]
    best = max(study.bank.records(), key=lambda record: record.task_scores["emotion"]).key
    alone = study.bank.predictions(best, "emotion", "test").outputs
    (graded,) = card.graded
    assert (graded.task, graded.part, graded.rows) == ("emotion", "test", 60)
    assert graded.score == pytest.approx(score("macro_f1", labels=truth, predicted=one_hot))
    assert graded.single == pytest.approx(score("macro_f1", labels=truth, predicted=alone))
    row = f"| emotion | test | macro_f1 | 60 | {graded.single:.4f} | {graded.score:.4f} |"
    assert row in (tmp_path / "out" / "card.md").read_text()


@pytest.mark.parametrize("held", ["nothing", "other rows"])
def test_test_labels_grade_the_ensemble_where_the_best_trial_did_not_predict_them(make_finished, tmp_path, held):
    study = make_finished()
    best = max(study.bank.records(), key=lambda record: record.score)
    parts = study.bank.parts(best.key)
    predictions = {task: {part: study.bank.predictions(best.key, task, part) for part in parts[task]} for task in parts}
    test = predictions["emotion"].pop("test")
    if held == "other rows":
        ids, probabilities = test.ids[:7], test.outputs[:7]
        predictions["emotion"]["test"] = replace(test, ids=ids, outputs=probabilities)
    study.bank.put(replace(best, score=0.0), predictions)  # best in the task, and too far behind overall to vote
    truth = np.random.default_rng(0).integers(3, size=60)
    card = write_ensemble(**study.ensemble(tmp_path / "out", answers={"emotion": {"test": truth}}))
    (graded,) = card.graded
    assert best.key not in {member.key for member in card.tasks[0].members}
    assert (graded.rows, graded.single) == (60, None)
    page = (tmp_path / "out" / "card.md").read_text()
    assert f"| emotion | test | macro_f1 | 60 | – | {graded.score:.4f} |" in page
    remark = "The best trial in emotion does not vote and has no predictions for test: it has no score there."
    assert remark in card.remarks
    assert f"> {remark}" in page


def sure_predictions(study, part: str, *, seed: int) -> Predictions:
    """Votes for CoLA that are nearly always right."""
    truth = study.truth["CoLA", part]
    logits = np.random.default_rng(seed).normal(size=(len(truth), 2)) + 5 * np.eye(2)[truth]
    votes = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    labels = truth if part == "validation" else None
    return Predictions(ids=study.ids["CoLA"][part], outputs=votes, labels=labels, names=("0", "1"))


def test_trials_of_a_study_of_one_task_make_that_task_better_and_leave_the_others_as_they_were(make_finished, tmp_path):
    study = make_finished(3)
    scores = {"CoLA": 0.99}
    special = Bank(tmp_path / "special")
    for number in range(2):
        votes = {part: sure_predictions(study, part, seed=number) for part in ("validation", "test")}
        special.put(CheckpointRecord(f"t{number:04d}", number, 1, 0.99, scores, None), {"CoLA": votes})
    rule = Rule(top=2, by="task")
    alone = write_ensemble(**study.ensemble(tmp_path / "alone", rule=rule))
    both = Electorate({"demo": study.bank, "special": special})
    card = write_ensemble(**study.ensemble(tmp_path / "out", rule=rule, bank=both))
    emotion, cola, topic = card.tasks
    assert {member.key for member in cola.members} == {"special/t0000", "special/t0001"}
    assert cola.score.low > alone.tasks[1].score.high
    assert cola.single.score > alone.tasks[1].single.score  # the best trial is judged among the same candidates
    for before, after in ((alone.tasks[0], emotion), (alone.tasks[2], topic)):
        assert (before.score, before.single, before.gain) == (after.score, after.single, after.gain)
    for name in ("emotion_predict.json", "topic.csv"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert [(single.key, single.objective is None) for single in card.singles[-2:]] == [
        ("special/t0000", True),
        ("special/t0001", True),
    ]
    page = (tmp_path / "out" / "card.md").read_text()
    assert "| special/t0000 | – | – | 0.9900 ● | – |" in page
    assert "> Those of special may vote in CoLA alone." in page
