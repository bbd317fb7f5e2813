"""Which rows get a pseudo-label: what holds for every rule, then each rule by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.config.recipe import PseudoLabels
from tutti.ensembling.combine import average
from tutti.ensembling.pseudo import Opinion, choose, drift, precision
from tutti.ensembling.pseudo import opinion as opinion_of
from tutti.tasks.kinds.registry import KINDS

RULES = [
    PseudoLabels(select="threshold", threshold=0.6),
    PseudoLabels(select="quantile", share=0.3),
    PseudoLabels(select="prior", share=0.4),
    PseudoLabels(select="all"),
]
PRIOR = np.array([0.4, 0.3, 0.2, 0.1])


def ensemble(seed: int, members: int = 3, rows: int = 60, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    votes = rng.dirichlet(np.full(classes, 0.1), size=(members, rows)).astype(np.float32)
    return average(votes, np.ones(members)), votes


def opinion(mean: np.ndarray, votes: np.ndarray) -> Opinion:
    return opinion_of(KINDS["classes"], mean, mean.argmax(axis=-1), votes.argmax(axis=-1))


def chosen(predicted: Opinion, labelling: PseudoLabels, able: np.ndarray | None = None) -> np.ndarray:
    able = np.ones(len(predicted.classes), dtype=bool) if able is None else able
    return choose(predicted, labelling, prior=PRIOR, able=able)


def judged_and_right(predicted: Opinion, labels: np.ndarray, *, classes: int, **rule) -> tuple[np.ndarray, np.ndarray]:
    held = KINDS["classes"].held
    return precision(predicted, held(predicted.classes, classes), held(labels, classes), **rule)


def test_an_opinion_is_the_most_likely_class_its_probability_and_the_members_agreement():
    mean, votes = ensemble(0)
    predicted = opinion(mean, votes)
    assert np.array_equal(predicted.classes, mean.argmax(axis=1))
    assert np.array_equal(predicted.confidence, mean.max(axis=1))
    assert predicted.confidence.dtype == predicted.agreement.dtype == np.float32
    for row in range(60):
        assert predicted.agreement[row] == pytest.approx(
            np.mean([vote[row].argmax() == predicted.classes[row] for vote in votes])
        )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.select)
@given(seed=st.integers(0, 10_000))
def test_chosen_rows_are_able_agreed_on_unique_and_sorted(rule, seed):
    predicted = opinion(*ensemble(seed))
    able = np.random.default_rng(seed).random(60) < 0.7
    rows = chosen(predicted, rule.model_copy(update={"agreement": 2 / 3}), able)
    assert rows.dtype == np.int64
    assert np.array_equal(rows, np.unique(rows))
    assert able[rows].all()
    assert (predicted.agreement[rows] > 0.6).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.select)
@given(seed=st.integers(0, 10_000))
def test_no_row_is_chosen_before_a_more_confident_one_of_its_class(rule, seed):
    predicted = opinion(*ensemble(seed))
    rows = chosen(predicted, rule)
    others = np.setdiff1d(np.arange(60), rows)
    for index in range(4):
        chosen_confidence, other_confidence = (
            predicted.confidence[which[predicted.classes[which] == index]] for which in (rows, others)
        )
        assert (
            not len(chosen_confidence) or not len(other_confidence) or chosen_confidence.min() >= other_confidence.max()
        )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.select)
def test_no_rows_give_no_labels(rule):
    nothing = np.empty((0, 4), np.float32)
    assert chosen(opinion(nothing, nothing[None]), rule).tolist() == []


@pytest.mark.parametrize("threshold", [0.6, 0.7, 0.9, 0.95, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("members", [1, 3, 5, 7])
def test_members_that_all_just_reach_the_threshold_reach_it_together(threshold, members):
    row = np.array([threshold, 1 - threshold, 0, 0], dtype=np.float32)
    votes = np.broadcast_to(row, (members, 1, 4))
    predicted = opinion(average(votes, np.ones(members)), votes)
    assert chosen(predicted, PseudoLabels(threshold=threshold)).tolist() == [0]


@given(seed=st.integers(0, 10_000), share=st.floats(0.01, 1))
def test_a_quantile_takes_the_same_share_of_each_class_s_rows_and_at_least_one(seed, share):
    predicted = opinion(*ensemble(seed))
    rows = chosen(predicted, PseudoLabels(select="quantile", share=share))
    for index in range(4):
        available, selected = ((each == index).sum() for each in (predicted.classes, predicted.classes[rows]))
        assert selected == np.ceil(available * share - 1e-6)
        assert selected >= min(available, 1)


def test_the_prior_gives_labels_the_class_shares_of_training_as_far_as_rows_go():
    predicted = Opinion(np.repeat([0, 1, 2], [60, 35, 5]), np.linspace(1, 0.5, 100, dtype=np.float32), np.ones(100))
    rows = chosen(predicted, PseudoLabels(select="prior", share=0.5))
    assert np.bincount(predicted.classes[rows], minlength=4).tolist() == [
        20,
        15,
        5,
        0,
    ]  # 10 and 5 of the last were wanted


def test_ties_in_confidence_keep_the_exact_share():
    predicted = Opinion(np.zeros(10, dtype=np.int64), np.ones(10, dtype=np.float32), np.ones(10))
    assert chosen(predicted, PseudoLabels(select="quantile", share=0.3)).tolist() == [0, 1, 2]


def test_drift_is_the_largest_difference_of_a_class_s_share_with_its_sign():
    assert drift(np.array([0.55, 0.3, 0.15, 0.0]), PRIOR) == (pytest.approx(0.15), 0)
    assert drift(np.array([0.45, 0.35, 0.2, 0.0]), PRIOR) == (pytest.approx(-0.1), 3)
    assert drift(np.array([0.55, 0.45]), np.array([0.5, 0.5]))[0] <= 0.05  # in floats 0.55 - 0.5 is more


def test_precision_counts_labelled_rows_that_would_be_chosen_and_those_that_are_right():
    labelled = Opinion(
        np.array([0, 0, 0, 1, 1, 2]),
        np.array([0.9, 0.8, 0.7, 0.95, 0.5, 0.9], dtype=np.float32),
        np.array([1, 1, 1, 0.5, 1, 1], dtype=np.float32),
    )
    like = Opinion(np.array([0, 0, 1]), np.array([0.8, 0.85, 0.4], dtype=np.float32), np.ones(3))
    labels = np.array([0, 1, 0, 1, 1, 2])
    judged, right = judged_and_right(labelled, labels, like=like, least_agreement=0.6, classes=4)
    assert judged.tolist() == [2, 1, 0, 0]  # no row was labelled 2, so none stands for it
    assert right.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(("agreeing", "of"), [(2, 3), (9, 10), (1, 1)])
def test_members_of_whom_just_enough_agree_are_enough(agreeing, of):
    votes = np.tile(np.array([0.9, 0.1, 0, 0], dtype=np.float32), (of, 1, 1))
    votes[agreeing:] = [0.4, 0.6, 0, 0]
    predicted = opinion(votes[0], votes)
    rule = PseudoLabels(select="all", agreement=round(agreeing / of, 6))
    assert chosen(predicted, rule).tolist() == [0]
    judged, _ = judged_and_right(predicted, np.zeros(1, int), like=predicted, least_agreement=rule.agreement, classes=4)
    assert judged.tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(("rows", "share", "expected"), [(100, 0.07, 7), (103, 0.5, 52)])
def test_a_quantile_is_rounded_up_but_not_for_what_a_product_of_floats_has_too_much(rows, share, expected):
    predicted = Opinion(np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=np.float32), np.ones(rows))
    assert len(chosen(predicted, PseudoLabels(select="quantile", share=share))) == expected


def test_the_prior_s_counts_are_the_nearest_ones():
    predicted = Opinion(np.arange(104) % 4, np.ones(104, dtype=np.float32), np.ones(104))
    counts = np.bincount(predicted.classes[chosen(predicted, PseudoLabels(select="prior", share=0.5))])
    assert counts.tolist() == [21, 16, 10, 5]  # of 20.8, 15.6, 10.4 and 5.2


def test_a_labelled_row_below_the_least_confident_one_by_a_rounding_error_is_comparable():
    labelled = Opinion(np.array([0, 0]), np.array([0.8 - 5e-7, 0.799]), np.ones(2))
    like = Opinion(np.array([0]), np.array([0.8]), np.ones(1))
    judged, _ = judged_and_right(labelled, np.zeros(2, int), like=like, least_agreement=0, classes=1)
    assert judged.tolist() == [1]


def test_a_row_of_several_labels_is_as_sure_as_its_least_certain_decision():
    probabilities = np.array([[0.9, 0.3], [0.9, 0.1]], dtype=np.float32)
    decided = np.array([[1, 1], [1, 0]], dtype=np.int8)  # the second label has a threshold of 0.3
    predicted = opinion_of(KINDS["labels"], probabilities, decided, np.stack([decided, 1 - decided]))
    np.testing.assert_allclose(predicted.confidence, [0.3, 0.9])
    np.testing.assert_allclose(predicted.agreement, 0.5)
