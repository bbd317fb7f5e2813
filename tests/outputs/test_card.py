"""What the card of an ensemble says of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import datetime

import numpy as np
import pytest
from polls import write_ensemble

from tutti.ensembling.nested import Estimate
from tutti.outputs.election.card import FOLDED
from tutti.outputs.election.poll import Rule
from tutti.outputs.formatting import verdict
from tutti.tasks.scorer import Scorer


def test_the_card_s_members_have_the_scores_of_the_metric(make_finished, tmp_path):
    study = make_finished()
    card = write_ensemble(**study.ensemble(tmp_path / "out"))
    for task, shown in zip(study.tasks, card.tasks, strict=True):
        each = [study.bank.predictions(member.key, task.name, "validation") for member in shown.members]
        singles = [Scorer.of(task).score(study.labels[task.name], member.outputs) for member in each]
        assert [member.score for member in shown.members] == pytest.approx(singles)
        assert sum(member.weight for member in shown.members) == pytest.approx(1)


def test_the_card_s_scores_are_estimates_with_intervals_on_rows_that_chose_nothing(make_finished, tmp_path):
    study = make_finished()
    card = write_ensemble(**study.ensemble(tmp_path / "out"))
    for task, shown in zip(study.tasks, card.tasks, strict=True):
        each = [study.bank.predictions(member.key, task.name, "validation") for member in shown.members]
        flattering = Scorer.of(task).score(
            study.labels[task.name], np.mean([member.outputs for member in each], axis=0)
        )
        assert shown.score.score == pytest.approx(flattering, abs=0.05)  # the same members in nearly every fold
        assert 0.01 < shown.score.high - shown.score.score < 0.2
        assert shown.gain.score == pytest.approx(shown.score.score - shown.single.score)
        assert shown.single.score <= max(single.task_scores[task.name] for single in card.singles)
    assert card.objective.score == pytest.approx(np.mean([task.score.score for task in card.tasks]))
    assert card.gain.error < max(task.gain.error for task in card.tasks)


def test_averaging_made_it_too_unsure_and_the_card_says_by_how_much(make_finished, tmp_path):
    card = write_ensemble(**make_finished(skill=2.5).ensemble(tmp_path / "out", rule=Rule(top=5)))
    for task in card.tasks:
        assert task.calibration.temperature < 1
        assert task.calibration.error_after < task.calibration.error_before
    page = (tmp_path / "out" / "card.md").read_text()
    shown = card.tasks[0].calibration
    assert f"| {shown.temperature:.3f} | {shown.error_before:.3f} | {shown.error_after:.3f} |" in page


def test_the_json_card_says_what_the_value_says(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out"))
    read = json.loads((tmp_path / "out" / "card.json").read_text())
    assert (read["study"], read["recipe"], read["objective"]) == ("demo", "baseline", asdict(card.objective))
    assert read["tasks"][0]["members"][0] == vars(card.tasks[0].members[0])
    assert read["files"] == card.files
    assert [each["key"] for each in read["singles"]] == [each.key for each in card.singles]
    assert datetime.fromisoformat(read["created"]).utcoffset().total_seconds() == 0


def test_the_page_compares_every_single_trial_with_the_ensemble(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out"))
    page = (tmp_path / "out" / "card.md").read_text()
    head, footnote = page.split("## Every single trial, on the rows that chose its epoch")
    assert f"**{card.verdict}**" in head
    for task in card.tasks:
        assert f"| {task.task} | {task.metric} | {task.single} | **{task.score}** | +" in head
    assert f"| mean |  | {card.single} | **{card.objective}** | +" in head
    assert "| trial | objective | emotion (macro_f1) | CoLA (matthews) | topic (accuracy) |" in footnote
    for single in card.singles:
        assert f"| {single.key} | {single.objective:.4f} |" in footnote
        assert f"{single.objective:.4f}" not in head
    assert card.footnote in footnote
    assert "scored on rows that had no part in choosing members" in page
    assert "![" in page
    assert page.count("●") == 3 * 3 + 1


@pytest.mark.parametrize(
    ("gain", "error", "points", "sentence"),
    [
        (
            0.009,
            0.0153,
            True,
            "the vote cannot be told from the best trial (+0.9 ± 3.0 points).",
        ),
        (-0.001, 0.01, True, "the vote cannot be told from the best trial (-0.1 ± 2.0 points)."),
        (0.035, 0.01, True, "the vote beats the best trial by 3.5 ± 2.0 points."),
        (-0.035, 0.01, True, "the best trial beats the vote by 3.5 ± 2.0 points."),
        (1.5, 0.5, False, "the vote beats the best trial by 1.5000 ± 0.9800."),
    ],
)
def test_one_sentence_says_whether_the_vote_is_better(gain, error, points, sentence):
    said = verdict(Estimate(gain, error), rows="400 validation rows", points=points)
    assert said == f"On 400 validation rows {sentence}"


def test_the_verdict_counts_the_rows_of_all_tasks(make_finished, tmp_path):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out"))
    assert card.verdict.startswith("On 600 validation rows of 3 tasks the vote beats the best trial of each task by ")
    assert json.loads((tmp_path / "out" / "card.json").read_text())["verdict"] == card.verdict
    assert [task.verdict[:27] for task in card.tasks] == ["On 200 validation rows the "] * 3


def test_the_objective_weighs_the_tasks_and_the_card_says_how(make_finished, tmp_path):
    arguments = make_finished().ensemble(tmp_path / "out")
    first, *others = arguments["tasks"]
    card = write_ensemble(**arguments | {"tasks": (replace(first, weight=2.0), *others)})
    scores = [task.score.score for task in card.tasks]
    assert card.objective.score == pytest.approx((2 * scores[0] + sum(scores[1:])) / 4)
    for single in card.singles:
        assert single.objective == pytest.approx(np.average([*single.task_scores.values()], weights=[2, 1, 1]))
    said = "The study's score and each mean over tasks weigh the tasks: emotion 2, CoLA 1, topic 1."
    assert said in card.remarks
    assert f"> {said}" in (tmp_path / "out" / "card.md").read_text()


@pytest.mark.parametrize("folded", [True, False])
def test_a_card_of_folds_says_that_its_calibration_is_not_that_of_new_rows(make_finished, tmp_path, folded):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out", folded=folded))
    page = (tmp_path / "out" / "card.md").read_text()
    assert (FOLDED in card.remarks) == (f"> {FOLDED}" in page) == folded


@pytest.mark.parametrize(("gain", "clear"), [(-0.06, True), (-0.01, False), (0.06, False)])
def test_an_ensemble_clearly_below_the_best_trials_says_what_to_submit_instead(make_finished, tmp_path, gain, clear):
    card = write_ensemble(**make_finished().ensemble(tmp_path / "out"))
    card = replace(card, tasks=tuple(replace(task, gain=Estimate(gain, 0.02)) for task in card.tasks))
    remarks = [remark for remark in card.remarks if "submits these instead" in remark]
    assert bool(remarks) == clear
    assert all(
        "of each task is better than the vote: a recipe with `members: {top: 1, by: task}`" in remark
        for remark in remarks
    )


def test_what_the_card_advises_submits_the_best_trial_of_each_task(make_finished, tmp_path):
    study = make_finished(growth=0)
    card = write_ensemble(**study.ensemble(tmp_path / "out", rule=Rule(top=1, by="task")))
    best = {task.name: max(study.bank.records(), key=lambda each: each.task_scores[task.name]) for task in study.tasks}
    assert {task.task: task.members[0].key for task in card.tasks} == {name: each.key for name, each in best.items()}
    assert len({each.key for each in best.values()}) > 1
    assert all(task.gain.score == 0 and task.gain.low < 0 for task in card.tasks)


def test_the_objective_of_a_trial_with_further_tasks_is_its_mean_over_those_of_the_ensemble(make_finished, tmp_path):
    study = make_finished(2)
    card = write_ensemble(**study.ensemble(tmp_path / "out", rule=Rule(by="task"), tasks=study.tasks[:2]))
    for single in card.singles:
        scores = single.task_scores
        assert single.objective == pytest.approx((scores["emotion"] + scores["CoLA"]) / 2)
