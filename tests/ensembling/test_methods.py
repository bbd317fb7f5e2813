"""The contract of every combination method, on probabilities and on values."""

from __future__ import annotations

import numpy as np
import pytest
from scorers import of_classes, of_values

from tutti.ensembling.methods.greedy import Greedy
from tutti.ensembling.methods.protocol import Method
from tutti.ensembling.methods.registry import METHODS
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.scorer import Scorer

SINGLE_IS_ITSELF = set(METHODS) - {"rank", "hard"}  # their results are on a scale of their own
WITH_VALUES = {"uniform", "score", "rank", "greedy", "stacking"}


@of_classes
def accuracy(labels: np.ndarray, decisions: np.ndarray) -> float:
    return float((labels == decisions).mean())


@of_values
def neg_mse(labels: np.ndarray, decisions: np.ndarray) -> float:
    return -float(np.square(labels - decisions).mean())


def classes(seed: int = 0, *, members: int = 5, rows: int = 240, count: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Members of different skill, each wrong in rows of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(count, size=rows)
    logits = rng.normal(size=(members, rows, count)) * 1.5
    logits[:, np.arange(rows), labels] += np.linspace(0.5, 2.5, members)[:, None]
    exp = np.exp(logits)
    return (exp / exp.sum(axis=2, keepdims=True)).astype(np.float32), labels


def values(seed: int = 0, *, members: int = 5, rows: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.uniform(0, 5, rows).astype(np.float32)
    noise = rng.normal(size=(members, rows)) * np.linspace(1.5, 0.5, members)[:, None]
    return (labels + noise).astype(np.float32), labels


def method(name: str) -> Method:
    return METHODS[name].make(accuracy)


def combined(name: str, votes: np.ndarray, labels: np.ndarray, new: np.ndarray | None = None) -> np.ndarray:
    return method(name).fit(votes, labels).combine(votes if new is None else new)


every = pytest.mark.parametrize("name", METHODS)
every_with_values = pytest.mark.parametrize("name", sorted(WITH_VALUES))


@every
@pytest.mark.parametrize("count", [2, 4])
def test_the_result_is_probabilities_of_the_same_rows_and_classes(name, count):
    votes, labels = classes(count=count)
    new, _ = classes(1, rows=70, count=count)
    result = combined(name, votes, labels, new)
    assert (result.shape, result.dtype) == ((70, count), np.float32)
    assert (result >= 0).all()
    assert np.allclose(result.sum(axis=1), 1, atol=1e-5)


@every
def test_weights_are_one_for_each_member_and_sum_to_one(name):
    weights = method(name).fit(*classes()).weights
    assert (weights.shape, weights.dtype) == ((5,), np.float64)
    assert (weights >= 0).all()
    assert np.isclose(weights.sum(), 1)


@every
def test_the_order_of_members_does_not_matter(name):
    votes, labels = classes()
    order = [3, 0, 4, 1, 2]
    fitted, moved = method(name).fit(votes, labels), method(name).fit(votes[order], labels)
    assert np.allclose(moved.weights, fitted.weights[order], atol=1e-4)
    assert np.allclose(moved.combine(votes[order]), fitted.combine(votes), atol=1e-4)


@every
def test_permuting_classes_permutes_the_result(name):
    votes, labels = classes()
    order = np.array([2, 0, 3, 1])
    moved = combined(name, votes[:, :, order], np.argsort(order)[labels])
    assert np.allclose(moved, combined(name, votes, labels)[:, order], atol=1e-4)


@every
def test_a_single_member_keeps_its_decisions(name):
    votes, labels = classes()
    votes = votes[-1:]
    result = combined(name, votes, labels)
    if name in SINGLE_IS_ITSELF:
        assert np.allclose(result, votes[0], atol=1e-6)
    assert np.array_equal(result.argmax(axis=1), votes[0].argmax(axis=1))


@every
def test_copies_of_all_members_change_nothing(name):
    votes, labels = classes()
    assert np.allclose(combined(name, np.concatenate([votes, votes]), labels), combined(name, votes, labels), atol=1e-5)


@every
def test_identical_members_decide_as_one(name):
    votes, labels = classes()
    votes = votes[-1:]
    assert np.allclose(combined(name, np.repeat(votes, 3, axis=0), labels), combined(name, votes, labels), atol=1e-6)


@every
def test_the_same_rows_give_the_same_answer(name):
    votes, labels = classes()
    assert np.array_equal(combined(name, votes, labels), combined(name, votes, labels))


@every
def test_the_inputs_stay_as_they_were(name):
    votes, labels = classes()
    votes_before, labels_before = votes.copy(), labels.copy()
    combined(name, votes, labels)
    assert np.array_equal(votes, votes_before)
    assert np.array_equal(labels, labels_before)


@every
def test_a_row_s_result_does_not_depend_on_other_rows(name):
    votes, labels = classes()
    fitted = method(name).fit(votes, labels)
    assert np.allclose(fitted.combine(votes[:, 7:9]), fitted.combine(votes)[7:9], atol=1e-6)
    assert fitted.combine(votes[:, :0]).shape == (0, 4)


@every
def test_the_result_beats_the_median_member(name):
    votes, labels = classes(members=8, rows=400)
    new, truth = classes(1, members=8, rows=4000)
    alone = np.array([accuracy(truth, member) for member in new.argmax(axis=2)])
    score = accuracy(truth, combined(name, votes, labels, new).argmax(axis=1))
    assert score > np.median(alone) + 0.05


@every
def test_a_class_without_fitted_rows_keeps_its_probability(name):
    votes, labels = classes()
    fitted_rows = labels != 2
    result = combined(name, votes[:, fitted_rows], labels[fitted_rows], votes)
    assert result.shape == (240, 4)
    assert np.isfinite(result).all()
    assert accuracy(result.argmax(axis=1)[~fitted_rows], labels[~fitted_rows]) > 0.5


@every
@pytest.mark.parametrize("rows", [1, 2])
def test_one_or_two_rows_of_one_class_are_enough_to_fit(name, rows):
    votes, _ = classes(rows=rows)
    assert np.isfinite(combined(name, votes, np.zeros(rows, dtype=np.int64))).all()


@every
@pytest.mark.filterwarnings("error")
def test_one_row_of_each_class_fits_without_warning(name):
    votes, _ = classes(rows=30, count=30)
    result = combined(name, votes, np.arange(30))
    assert result.shape == (30, 30)
    assert np.isfinite(result).all()


def test_stacking_of_many_classes_on_few_rows_finds_the_better_members():
    votes, labels = classes(rows=4100, count=15)
    known, new = np.split(np.arange(4100), [100])
    fitted = method("stacking").fit(votes[:, known], labels[known])
    assert (np.diff(fitted.weights) > 0).all()  # in the order of their skill
    mean = votes[:, new].mean(axis=0).argmax(axis=1)
    stacked = fitted.combine(votes[:, new]).argmax(axis=1)
    assert accuracy(labels[new], stacked) > accuracy(labels[new], mean) + 0.02


def test_stacking_weighs_members_that_know_nothing_or_the_same_almost_equally():
    votes, labels = classes(members=4)
    nobody = method("stacking").fit(votes, np.random.default_rng(1).permutation(labels)).weights
    same = method("stacking").fit(np.repeat(votes[:1], 4, axis=0), labels).weights
    assert np.allclose(nobody, 0.25, atol=0.1)
    assert np.allclose(same, 0.25, atol=1e-9)


def test_stacking_does_not_weigh_members_by_their_confidence():
    """The logarithms of overconfident members are those of good ones, times a number."""
    votes, labels = classes()
    sure = votes.astype(np.float64) ** 3
    sure = (sure / sure.sum(axis=2, keepdims=True)).astype(np.float32)
    weights, of_sure = (method("stacking").fit(each, labels).weights for each in (votes, sure))
    assert np.allclose(weights, of_sure, atol=0.02)


def test_methods_declare_whether_they_combine_values():
    assert {name for name, entry in METHODS.items() if entry.values} == WITH_VALUES


@pytest.mark.parametrize("name", ["rank", "hard"])
def test_ties_between_classes_are_broken_by_confidence(name):
    votes = np.array([[[0.4, 0.6], [0.6, 0.4]], [[0.9, 0.1], [0.1, 0.9]]], dtype=np.float32)
    assert combined(name, votes, np.array([0, 1])).argmax(axis=1).tolist() == [0, 1]


def test_ties_of_ranks_are_broken_by_the_slightest_difference_of_the_mean_probability():
    rng = np.random.default_rng(0)
    first = rng.uniform(0.5, 1, 2000)
    second = 1 - first + rng.choice([-1, 1], 2000) * 1e-3  # of two members one says each class
    votes = np.stack([np.stack([each, 1 - each], axis=1) for each in (first, second)]).astype(np.float32)
    tied = (votes.argmax(axis=2)[0] != votes.argmax(axis=2)[1]) & (votes != 0.5).all(axis=(0, 2))
    best = votes.mean(axis=0, dtype=np.float64).argmax(axis=1)
    assert tied.sum() > 1900
    assert np.array_equal(combined("rank", votes, best).argmax(axis=1)[tied], best[tied])


@every_with_values
def test_values_are_combined_into_values(name):
    votes, labels = values()
    fitted = METHODS[name].make(neg_mse).fit(votes, labels)
    new, truth = values(1, rows=3000)
    result = fitted.combine(new)
    assert (result.shape, result.dtype) == ((3000,), np.float32)
    assert np.isclose(fitted.weights.sum(), 1)
    assert neg_mse(truth, result) > np.median([neg_mse(truth, member) for member in new])


@every_with_values
def test_the_order_of_members_with_values_does_not_matter(name):
    votes, labels = values()
    order = [3, 0, 4, 1, 2]
    fitted, moved = (METHODS[name].make(neg_mse).fit(each, labels) for each in (votes, votes[order]))
    assert np.allclose(moved.weights, fitted.weights[order], atol=1e-9)
    assert np.allclose(moved.combine(votes[order]), fitted.combine(votes), atol=1e-5)


@every_with_values
def test_a_single_member_s_values_are_unchanged(name):
    votes, labels = values(members=1)
    result = METHODS[name].make(neg_mse).fit(votes, labels).combine(votes)
    if name == "rank":  # its own order, on the labels' scale
        assert np.array_equal(np.argsort(result, kind="stable"), np.argsort(votes[0], kind="stable"))
        assert np.allclose(np.sort(result), np.sort(labels), atol=1e-5)
    else:
        assert np.allclose(result, votes[0], atol=1e-5)


@pytest.mark.parametrize("name", sorted(WITH_VALUES))
def test_copies_of_values_change_nothing(name):
    votes, labels = values()
    twice = np.concatenate([votes, votes])
    fitted, copied = (METHODS[name].make(neg_mse).fit(each, labels) for each in (votes, twice))
    assert np.allclose(copied.combine(twice), fitted.combine(votes), atol=1e-5)


def test_the_mean_probability_changes_no_order_by_ranks_with_many_members_and_classes():
    count, members = 77, 151
    votes = np.tile(np.linspace(2, 1, count, dtype=np.float32), (members, 1, 1))
    votes[:, 0, :2] = [1.999, 2.0]  # class 1 is first by most members, by a little
    votes[: members // 2, 0, :2] = [9000, 1.99]  # class 0 by the others, by far
    votes /= votes.sum(axis=2, keepdims=True)
    assert votes.mean(axis=0)[0, 0] > votes.mean(axis=0)[0, 1]
    assert combined("rank", votes, np.array([0])).argmax(axis=1).tolist() == [1]


def test_equal_probabilities_share_their_mean_rank():
    votes = np.array([[[0.4, 0.4, 0.2]], [[0.4, 0.4, 0.2]]], dtype=np.float32)
    assert combined("rank", votes, np.array([0]))[0] == pytest.approx([0.5, 0.5, 0], abs=1e-3)


def test_sure_members_do_not_outvote_a_majority_of_one_among_hundreds():
    votes = np.full((899, 1, 2), [0.49, 0.51], dtype=np.float32)
    votes[:449] = [1, 0]
    assert combined("hard", votes, np.array([0])).argmax(axis=1).tolist() == [1]


def test_stacking_of_values_prefers_members_without_bias_on_any_scale_and_is_the_mean_where_labels_are_equal():
    labels = np.random.default_rng(0).normal(2.5, 1, 200)
    votes = labels + np.array([[0.0], [1.0]])
    weights, larger = (
        METHODS["stacking"].make(neg_mse).fit(times * votes, times * labels).weights for times in (1, 100)
    )
    assert weights[0] > 0.9
    assert np.allclose(weights, larger)
    assert METHODS["stacking"].make(neg_mse).fit(votes, np.ones(200)).weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", METHODS)
def test_a_column_of_values_without_a_label_is_combined_as_a_mean(name):
    if not METHODS[name].values:
        pytest.skip("for probabilities")
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(40, 2)).astype(np.float32)
    votes = (labels + rng.normal(0, 0.3, (3, 40, 2))).astype(np.float32)
    labels[:, 1] = np.nan
    scorer = Scorer(KINDS["values"], lambda labels, values: -float(np.nanmean((labels - values) ** 2)), decides=False)
    combined = METHODS[name].make(scorer).fit(votes, labels).combine(votes)
    assert np.isfinite(combined).all()


def test_a_constant_column_of_values_does_not_choose_the_members():
    labels = np.stack([np.random.default_rng(0).normal(size=60), np.ones(60)], axis=1).astype(np.float32)
    good, bad = labels + np.float32([0.1, 0.1]), labels + np.float32([5, 0])
    weights = Greedy(KINDS["values"]).fit(np.stack([good, bad]), labels).weights
    assert weights[0] > 0.9
