from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scorers import of_classes, of_values

from tutti.ensembling.nested import Estimate, judge, on_label_scale, overlap_of, repeats_for, splits
from tutti.tasks.metrics import METRICS

FEW = 200  # resamples, which suffice for an interval


@of_classes
def accuracy(labels: np.ndarray, decisions: np.ndarray) -> float:
    return float((labels == decisions).mean())


@pytest.mark.parametrize("rows", [20, 23, 101])
def test_every_row_is_held_out_once_per_repeat_and_never_in_its_own_training_rows(rows):
    labels = np.random.default_rng(0).integers(3, size=rows)
    judged = np.zeros((3, rows), dtype=int)
    for repeat, train, held_out in splits(labels, np.arange(len(labels)), repeats=3, seed=0):
        assert sorted([*train, *held_out]) == list(range(rows))
        judged[repeat, held_out] += 1
    assert (judged == 1).all()


def test_folds_are_stratified_by_class_or_number():
    classes = np.repeat([0, 1, 2], [100, 40, 5])
    for _, train, held_out in splits(classes, np.arange(len(classes)), repeats=2, seed=1):
        assert np.bincount(classes[train]).tolist() == pytest.approx([80, 32, 4], abs=1)
        assert len(held_out) == 29
    numbers = np.random.default_rng(0).normal(size=500)
    assert all(
        abs(np.median(numbers[held_out]) - np.median(numbers)) < 0.1
        for *_, held_out in splits(numbers, np.arange(len(numbers)), repeats=1, seed=0)
    )


def test_folds_follow_the_seed():
    labels = np.zeros(50, dtype=int)
    first, again, other = (
        [held_out.tolist() for *_, held_out in splits(labels, np.arange(len(labels)), repeats=2, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert first[:5] != first[5:]


def test_fewer_rows_get_more_repeats():
    assert [repeats_for(rows) for rows in (20, 500, 1000, 50_000)] == [5, 4, 2, 1]


@pytest.mark.parametrize(("shares", "recalls"), [((1 / 3, 1 / 3, 1 / 3), (0.7, 0.7, 0.7)), ((0.8, 0.2), (0.99, 0.5))])
def test_the_interval_covers_the_true_score_in_about_95_percent(shares, recalls):
    rng = np.random.default_rng(0)
    true = float(np.dot(shares, recalls))
    covered, widths = [], []
    for number in range(200):
        labels = rng.choice(len(shares), size=300, p=shares)
        decisions = np.where(rng.random(300) < np.array(recalls)[labels], labels, (labels + 1) % len(shares))
        estimate = judge(
            decisions[None], labels, np.arange(len(labels)), score=accuracy, seed=number, resamples=FEW
        ).estimate
        covered.append(estimate.low <= true <= estimate.high)
        widths.append(estimate.high - estimate.score)
    assert 0.9 <= np.mean(covered) <= 0.99
    assert np.mean(widths) == pytest.approx(1.96 * np.sqrt(true * (1 - true) / 300), rel=0.1)


@pytest.mark.parametrize("copies", [1, 10])
@pytest.mark.parametrize(("texts", "true"), [(25, 0.95), (50, 0.98), (100, 0.97)])
def test_few_texts_that_are_all_right_have_an_interval_of_positive_width_however_many_copies(texts, true, copies):
    rng = np.random.default_rng(0)
    covered = []
    groups = np.repeat(np.arange(texts), copies)
    for number in range(100):
        labels = rng.integers(2, size=texts)
        decisions = np.where(rng.random(texts) < true, labels, 1 - labels)[groups]
        estimate = judge(decisions[None], labels[groups], groups, score=accuracy, seed=number, resamples=FEW).estimate
        assert estimate.low < estimate.score
        covered.append(estimate.low <= true <= estimate.high)
    assert np.mean(covered) >= 0.93


def test_a_paired_difference_has_a_smaller_error_than_each_score():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=400)
    worse = np.where(rng.random(400) < 0.7, labels, 1 - labels)
    better = np.where(rng.random(400) < 0.1, labels, worse)
    first, second = (
        judge(each[None], labels, np.arange(len(labels)), score=accuracy, seed=3) for each in (better, worse)
    )
    gain = first.over(second)
    assert gain.score == pytest.approx(accuracy(labels, better) - accuracy(labels, worse))
    assert gain.error < 0.6 * first.estimate.error
    same = first.over(first)
    assert (same.score, same.error) == (0, pytest.approx(2**0.5 / 400))


@pytest.mark.parametrize("texts", [25, 50, 100, 200])
def test_a_gain_of_a_few_rows_lies_in_its_interval_also_where_hardly_any_row_differs(texts):
    rng = np.random.default_rng(0)
    covered = []
    for number in range(200):
        labels = rng.integers(2, size=texts)
        draw = rng.random(texts)  # 0.02 are right with the better one alone, and 0.01 with the other
        right = {"better": draw < 0.92, "other": (draw < 0.9) | ((draw >= 0.92) & (draw < 0.93))}
        better, other = (
            judge(
                np.where(right[name], labels, 1 - labels)[None],
                labels,
                np.arange(texts),
                score=accuracy,
                seed=number,
                resamples=FEW,
            )
            for name in ("better", "other")
        )
        gain = better.over(other)
        covered.append(gain.low <= 0.01 <= gain.high)
        assert gain.error > 0
    assert np.mean(covered) >= 0.93


def test_a_gain_in_a_correlation_of_matthews_lies_in_its_interval_where_a_row_counts_twice_as_much():
    rng = np.random.default_rng(0)
    score = of_classes(partial(METRICS["matthews"].score, outputs=2))
    covered = []
    for number in range(150):
        labels, draw = rng.integers(2, size=50), rng.random(50)  # the better one alone is right in 0.04 of the rows
        better, other = (
            judge(
                np.where(draw < right, labels, 1 - labels)[None],
                labels,
                np.arange(50),
                score=score,
                seed=number,
                resamples=FEW,
            )
            for right in (0.85, 0.81)
        )
        gain = better.over(other)
        covered.append(gain.low <= 0.08 <= gain.high)
    assert np.mean(covered) >= 0.93


def test_the_interval_of_a_gain_does_not_depend_on_which_class_is_the_first():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), [3, *[110] * 9])
    decisions = [np.where(rng.random(993) < right, labels, rng.integers(1, 10, 993)) for right in (0.9, 0.85)]
    score, errors = of_classes(partial(METRICS["macro_f1"].score, outputs=10)), []
    for names in (np.arange(10), np.arange(10)[::-1]):  # the rare one first, then last
        better, other = (
            judge(names[decided][None], names[labels], np.arange(993), score=score, seed=0, resamples=FEW)
            for decided in decisions
        )
        errors.append(better.over(other).error)
    assert errors[0] == pytest.approx(errors[1], rel=0.2)


def test_the_interval_of_a_gain_without_bounds_reaches_as_far_to_both_sides():
    labels = np.random.default_rng(0).normal(50, 5, size=40)

    @of_values
    def neg_mse(truth, decided):
        return -float(np.mean((truth - decided) ** 2))

    good, bad = (
        judge((labels + error)[None], labels, np.arange(len(labels)), score=neg_mse, seed=0)
        for error in (0.1, labels / 10)
    )
    gain = good.over(bad)
    assert gain.low > 1
    assert gain.high - gain.score == pytest.approx(gain.score - gain.low)


def test_no_resample_loses_a_rare_class():
    labels = np.repeat([0, 1], [200, 1])
    seen = []
    judge(
        labels[None],
        labels,
        np.arange(len(labels)),
        score=of_classes(lambda truth, decisions: seen.append(np.bincount(truth)) or 1.0),
        seed=0,
    )
    assert min(rare for _, rare in seen) == 1
    assert max(rare for _, rare in seen) > 1


def test_numbers_are_resampled_as_they_come():
    labels = np.linspace(0, 1, 200).astype(np.float32)
    estimate = judge(
        labels[None],
        labels,
        np.arange(len(labels)),
        score=of_values(lambda truth, decisions: float(truth.mean())),
        seed=0,
    ).estimate
    assert estimate.error == pytest.approx(labels.std() / np.sqrt(200), rel=0.15)


def test_the_mean_of_tasks_has_a_smaller_error_than_each():
    mean = Estimate.mean([Estimate(0.5, 0.03), Estimate(0.7, 0.04)], np.eye(2), [1, 1])
    assert (mean.score, mean.error) == (pytest.approx(0.6), pytest.approx(0.025))
    assert str(mean) == "0.6000 ± 0.0490"
    assert (mean.low, mean.high) == (pytest.approx(0.6 - 0.049), pytest.approx(0.6 + 0.049))


def test_a_task_of_more_weight_counts_more_in_the_mean_and_in_its_error():
    mean = Estimate.mean([Estimate(0.5, 0.04), Estimate(0.7, 0.01)], np.eye(2), [3, 1])
    assert (mean.score, mean.error) == (pytest.approx(0.55), pytest.approx(np.hypot(0.03, 0.0025)))
    alone = Estimate.mean([Estimate(0.5, 0.04), Estimate(0.7, 0.01)], np.ones((2, 2)), [1, 0])
    assert (alone.score, alone.error) == (0.5, pytest.approx(0.04))


def test_texts_that_two_tasks_share_make_the_error_of_their_mean_larger():
    estimates = [Estimate(0.5, 0.03), Estimate(0.7, 0.04)]
    errors = []
    for shared in (0, 50, 100):
        overlap = overlap_of([np.arange(100), np.arange(100 - shared, 200 - shared)])
        errors.append(Estimate.mean(estimates, overlap, [1, 1]).error)
    assert errors[0] == pytest.approx(0.025)
    assert errors[0] < errors[1] < errors[2] == pytest.approx(0.035)  # the mean of both errors


def test_the_interval_of_the_mean_of_tasks_with_the_same_texts_holds_the_true_score():
    """Of 100 texts, each is hard in all of three tasks or in none: right with probability 0.5 or 0.9."""
    rng, covered, groups = np.random.default_rng(0), 0, np.arange(100)
    for number in range(60):
        chances, estimates = np.where(rng.random(100) < 0.5, 0.5, 0.9), []
        luck = rng.random(100)
        for _ in range(3):
            labels = rng.integers(2, size=100)
            decisions = np.where(luck < chances, labels, 1 - labels)
            estimates.append(
                judge(decisions[None], labels, groups, score=accuracy, seed=number, resamples=FEW).estimate
            )
        mean = Estimate.mean(estimates, overlap_of([groups] * 3), [1, 1, 1])
        covered += mean.low <= 0.7 <= mean.high
    assert covered >= 53


def test_values_of_another_scale_have_the_scale_of_the_labels():
    labels = np.random.default_rng(0).normal(2.5, 1.2, size=50)
    np.testing.assert_allclose(on_label_scale(3 * labels - 7, labels), labels)
    np.testing.assert_allclose(on_label_scale(np.full(50, 4.0, np.float32), labels), labels.mean())


def test_rows_with_the_same_text_are_held_out_together():
    groups = np.random.default_rng(0).integers(30, size=100)
    for _, train, held_out in splits(groups % 3, groups, repeats=3, seed=0):
        assert not set(groups[train]) & set(groups[held_out])
        assert sorted([*train, *held_out]) == list(range(100))


def test_intervals_of_rows_that_share_texts_hold_the_true_score():
    """Of 100 texts, each is right with probability 0.8, in all its rows or none; a few have many rows."""
    rng, covered = np.random.default_rng(0), 0
    for number in range(100):
        groups = np.repeat(np.arange(100), rng.geometric(0.4, size=100))
        labels = (groups % 2).astype(np.int64)
        decisions = np.where(rng.random(100)[groups] < 0.8, labels, 1 - labels)
        estimate = judge(decisions[None], labels, groups, score=accuracy, seed=number, resamples=FEW).estimate
        covered += estimate.low <= 0.8 <= estimate.high
    assert covered >= 88


def test_folds_are_stratified_by_the_class_of_each_text_however_many_rows_it_has():
    groups = np.repeat(np.arange(100), np.random.default_rng(0).integers(1, 6, size=100))
    for *_, held_out in splits((groups < 20).astype(np.int64), groups, repeats=2, seed=0):
        assert sum(np.unique(groups[held_out]) < 20) == 4


def test_the_overlap_of_tasks_is_of_their_texts_in_proportion_to_the_sizes_of_both():
    groups = [np.arange(100), np.repeat(np.arange(25), 4)]
    np.testing.assert_allclose(overlap_of(groups), [[1, 0.5], [0.5, 1]])


def test_a_score_and_its_error_are_of_all_foldings():
    labels = np.arange(100) % 2
    judged = judge(np.stack([labels, 1 - labels]), labels, np.arange(100), score=accuracy, seed=0)
    assert (judged.score, judged.estimate.error) == (0.5, pytest.approx(0.5, abs=0.05))
