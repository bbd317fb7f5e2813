from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from polls import elect

from tutti.ensembling.nested import Estimate
from tutti.ensembling.select import top
from tutti.errors import StudyError
from tutti.outputs.election.poll import Rule
from tutti.outputs.election.soup_card import SoupCard, Tried, Versus, refolded, versus
from tutti.outputs.folder import write_card

CARD = SoupCard(
    study="s",
    recipe="soup",
    created="2026-11-21T00:00:00+00:00",
    tried=(Tried("t0002", 0.8, 0.8, True), Tried("t0000", 0.79, 0.7, False), Tried("t0001", 0.78, 0.82, True)),
    passed_over=("t0003",),
    task_scores={"A": 0.9, "B": 0.74},
    vote_scores={"A": 0.91, "B": 0.733},
    estimates=None,
    within=0.002,
    files={"checkpoint/tutti.json": "abc"},
    overlap=((1.0, 0.0), (0.0, 1.0)),
    weights={"A": 1.0, "B": 1.0},
)


def test_a_soup_s_score_weighs_the_tasks_as_the_study_does():
    weighted = replace(CARD, weights={"A": 3.0, "B": 1.0})
    assert (weighted.score, weighted.vote) == (pytest.approx(0.86), pytest.approx(0.86575))
    assert weighted.verdict.endswith(" They weigh the tasks: A 3, B 1.")


def test_a_soup_is_kept_down_to_the_margin_below_the_vote():
    assert CARD.kept
    assert CARD.verdict == (
        "The soup of 2 trials scores 0.8200, the vote 0.8215: it is kept. "
        "These are scores on the rows that chose them, which flatter both."
    )
    at_the_limit = replace(CARD, task_scores={"A": 0.1234}, vote_scores={"A": 0.1254})
    assert at_the_limit.score < at_the_limit.vote - at_the_limit.within  # by rounding
    assert at_the_limit.kept
    short = replace(CARD, vote_scores={"A": 0.91, "B": 0.7341})
    assert not short.kept
    assert "it is not kept, for it is more than 0.002 below." in short.verdict


def test_a_file_of_a_task_that_is_called_as_the_card_does_not_give_way_to_it(tmp_path):
    (tmp_path / "card.json").write_text("labels")
    with pytest.raises(StudyError, match=r"must not be called card\.json, as the report is; got the task 'card'"):
        write_card(tmp_path, CARD)
    assert (tmp_path / "card.json").read_text() == "labels"


def test_where_there_are_estimates_on_other_rows_these_decide():
    flattered = {
        "A": Versus(Estimate(0.80, 0.01), Estimate(0.85, 0.01), Estimate(-0.05, 0.01)),
        "B": Versus(Estimate(0.70, 0.01), Estimate(0.71, 0.01), Estimate(-0.01, 0.01)),
    }
    card = replace(CARD, estimates=flattered)
    assert (card.kept, card.score, card.vote) == (False, pytest.approx(0.75), pytest.approx(0.78))
    assert "scores 0.7500 ± 0.0139, the vote 0.7800 ± 0.0139: it is not kept" in card.verdict
    assert "on rows that had no part in choosing" in card.verdict
    assert "| A | 0.8000 ± 0.0196 | 0.8500 ± 0.0196 | -0.0500 ± 0.0196 |" in card.to_markdown()
    assert json.loads(card.to_json())["objective"]["gain"]["score"] == pytest.approx(-0.03)


def test_the_card_lists_what_was_tried_and_what_was_not():
    document = json.loads(CARD.to_json())
    assert (document["members"], document["kept"], document["score"]) == (["t0002", "t0001"], True, CARD.score)
    page = CARD.to_markdown()
    assert "| t0000 | 0.7900 | 0.7000 | no |" in page
    assert "Skipped, since their shape differs from the best's: t0003." in page
    assert "| B | 0.7400 | 0.7330 |" in page
    assert page.endswith("## Files\n\n| file | SHA-256 |\n| --- | --- |\n| checkpoint/tutti.json | `abc` |\n")


def test_the_card_of_a_soup_that_is_not_kept_names_no_files():
    page = replace(CARD, files={}).to_markdown()
    assert "SHA-256" not in page
    assert page.endswith("| 0.7330 |\n")


def chosen(study, rule: Rule):
    given = {"bank": study.bank, "tasks": study.tasks, "validation": study.validation()}
    return elect(study="demo", **given, needed={}, rule=rule)


@pytest.mark.parametrize("by", ["objective", "task"])
def test_a_fold_s_voters_are_those_that_are_best_by_the_other_rows_of_all_tasks(make_finished, by):
    study = make_finished(12, skill=0.5, validation=60)
    election = chosen(study, Rule(top=3, by=by))
    folds = refolded(election, by=by)
    assert len(folds) == 5
    for fold in folds:
        scores = {name: each.ballot.scores_on(fold.chosen_on[name]) for name, each in election.tasks.items()}
        ranked = [np.mean([*scores.values()], axis=0)] if by == "objective" else scores.values()
        assert set(fold.voters) == {f"t{index:04d}" for each in ranked for index in top(each, 3)}
    for name, each in election.tasks.items():
        assert sorted(np.concatenate([fold.held_out[name] for fold in folds])) == list(range(60))
        assert not any(set(fold.held_out[name]) & set(fold.chosen_on[name]) for fold in folds)
        assert each.keys == tuple(f"t{index:04d}" for index in range(12))
    assert len({fold.voters for fold in folds}) > 1


def test_a_text_held_out_in_one_task_chooses_no_soup_by_its_rows_of_another(make_finished):
    study = make_finished(6, skill=0.5, validation=60)
    texts = {name: rows.assign(text=np.arange(60).astype(str)) for name, rows in study.validation().items()}
    given = {"bank": study.bank, "tasks": study.tasks, "validation": texts}
    election = elect(study="demo", **given, needed={}, rule=Rule(top=3))
    np.testing.assert_array_equal(election.overlap, np.ones((len(texts), len(texts))))
    for fold in refolded(election, by="objective"):
        held_out = np.unique(np.concatenate([*fold.held_out.values()]))
        for chosen_on in fold.chosen_on.values():
            assert not np.isin(chosen_on, held_out).any()
            assert len(chosen_on) == 48  # as many as with texts of their own


def test_few_rows_judge_no_soup(make_finished):
    study = make_finished(validation=24)
    election = chosen(study, Rule())
    assert refolded(election, by="objective") is None


def test_a_soup_that_decides_as_the_vote_does_is_neither_above_nor_below_it(make_finished):
    election = chosen(make_finished(8, skill=0.5, validation=100), Rule(top=5))
    compared = versus(election, {name: each.held_out.scored[:1] for name, each in election.tasks.items()})
    assert all(len(each.held_out.decisions) > 1 for each in election.tasks.values())  # the vote's own foldings differ
    assert [each.gain.score for each in compared.values()] == [0] * len(compared)
    assert all(each.gain.low < 0 < each.gain.high for each in compared.values())
