"""Which two submissions to choose: by local and public scores, and by how alike they err."""

from __future__ import annotations

import numpy as np
import pytest

from tutti.ensembling.nested import Judged
from tutti.outputs.election.choice import Choice, Submission, choose

ROWS = {"validation_rows": 1000, "public_rows": 300, "private_rows": 700}


def submission(name: str, score: float, errors: np.ndarray, public: float | None = None) -> Submission:
    judged = Judged(score, score + 0.01 * errors, 0.0)
    return Submission(name, judged.estimate, {"task": judged}, public)


def chosen(*submissions: Submission) -> Choice:
    return choose(submissions, overlap=((1.0,),), weights=[1.0], **ROWS)


@pytest.fixture
def draws() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(4, 500))


def names(choice: Choice) -> set[str]:
    return {choice.pairs[0].first.name, choice.pairs[0].second.name}


def test_of_equals_the_two_that_err_least_alike_are_chosen(draws):
    alike = submission("twin", 0.8, 0.99 * draws[0] + 0.14 * draws[2])
    choice = chosen(submission("one", 0.8, draws[0]), alike, submission("other", 0.799, draws[1]))
    assert names(choice) in ({"one", "other"}, {"twin", "other"})
    best = choice.pairs[0]
    assert best.correlation == pytest.approx(0.0, abs=0.15)
    assert best.expected > 0.804
    assert choice.pairs[-1].correlation > 0.95
    assert any("err more alike" in reason for reason in choice.reasons)


def test_a_public_score_counts_by_its_rows_after_the_shift_of_all(draws):
    choice = chosen(
        submission("one", 0.80, draws[0], public=0.75),
        submission("other", 0.80, draws[1], public=0.77),
        submission("third", 0.70, draws[2]),
    )
    assert choice.shift == pytest.approx(-0.04)
    assert choice.expected["other"] == pytest.approx((1000 * 0.76 + 300 * 0.77) / 1300)
    assert choice.expected["third"] == pytest.approx(0.66)
    assert names(choice) == {"one", "other"}


def test_public_scores_that_contradict_local_ones_by_more_than_chance_are_told(draws):
    same = chosen(submission("one", 0.80, draws[0], 0.81), submission("other", 0.79, draws[1], 0.80))
    assert not same.warnings
    shifted = chosen(submission("one", 0.80, draws[0], 0.60), submission("other", 0.79, draws[1], 0.59))
    assert "0.2000 lower than local ones" in shifted.warnings[0]
    close = 0.999 * draws[0] + 0.04 * draws[1]
    turned = chosen(submission("one", 0.80, draws[0], 0.79), submission("other", 0.79, close, 0.81))
    assert "Locally one is better than other by 0.0100, publicly worse by 0.0200" in turned.warnings[0]


def test_a_second_submission_that_is_far_below_the_first_is_said_to_hardly_matter(draws):
    far = chosen(submission("one", 0.80, draws[0]), submission("other", 0.70, draws[1]))
    assert any(reason.startswith("The second one hardly matters: it adds 0.0000") for reason in far.reasons)
    near = chosen(submission("one", 0.80, draws[0]), submission("other", 0.80, draws[1]))
    assert not any("hardly matters" in reason for reason in near.reasons)
