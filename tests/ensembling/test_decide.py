from __future__ import annotations

import numpy as np
import pytest
from scorers import of_classes
from sklearn.metrics import f1_score

from tutti.ensembling.procedure import Ballot, Procedure, _clearly_best
from tutti.ensembling.select import Selection
from tutti.tasks.kinds.offsets import _GRID, _best_offsets, _calibrated, decide, tune_offsets
from tutti.tasks.kinds.probabilities import log_probabilities


def rare(seed: int, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that follow a prior in which the third class is rare, so that it is rarely the most likely one."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, size=rows, p=[0.6, 0.3, 0.1])
    logits = rng.normal(size=(rows, 3)) + 1.2 * np.eye(3)[labels] + np.log([0.6, 0.3, 0.1])
    return (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32), labels


@of_classes
def accuracy(labels: np.ndarray, decisions: np.ndarray) -> float:
    return float(np.mean(labels == decisions))


@of_classes
def macro_f1(labels: np.ndarray, decisions: np.ndarray) -> float:
    return float(f1_score(labels, decisions, average="macro", zero_division=0))


def test_the_decision_is_the_argmax_after_adding_offsets():
    probabilities = np.array([[0.6, 0.4], [0.2, 0.8]], dtype=np.float32)
    assert decide(probabilities).tolist() == [0, 1]
    assert decide(probabilities, np.zeros(2)).tolist() == [0, 1]
    assert decide(probabilities, np.array([0.0, 1.0])).tolist() == [1, 1]
    assert decide(np.array([[0.0, 1.0]]), np.array([2.0, 0.0])).tolist() == [1]


def expected_f1(shares: np.ndarray, decisions: np.ndarray) -> float:
    """Macro-F1 where each row has its shares of labels instead of one."""
    classes, weights = np.divmod(np.arange(shares.size), shares.shape[1])[1], shares.ravel()
    rows = np.repeat(decisions, shares.shape[1])
    return float(f1_score(classes, rows, sample_weight=weights, average="macro", zero_division=0))


def drawn(seed: int, classes: int, rows: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    logits = rng.normal(size=(rows, classes)) + np.eye(classes)[labels] + np.linspace(0, 1.5, classes)
    return (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("certain", [False, True])
def test_the_offsets_are_those_of_a_plain_loop_over_classes_and_offsets(seed, classes, certain):
    probabilities, labels = drawn(seed, classes)
    shares = np.eye(classes)[labels] if certain else np.random.default_rng(seed).dirichlet(np.ones(classes), 80)
    plain = np.zeros(classes)
    for _ in range(2):
        for index in range(classes):
            tried = [np.where(np.arange(classes) == index, offset, plain) for offset in _GRID]
            scores = np.array([expected_f1(shares, decide(probabilities, offsets)) for offsets in tried])
            smallest_first = np.argsort(np.abs(_GRID), kind="stable")
            best = smallest_first[(scores[smallest_first] > scores.max() - 1e-12).argmax()]
            if scores[best] > scores[np.argmin(np.abs(_GRID - plain[index]))] + 1e-12:
                plain = tried[best]
    np.testing.assert_array_equal(_best_offsets(log_probabilities(probabilities), shares), plain)
    assert plain.any()


def test_offsets_are_tuned_for_the_labels_that_calibrated_probabilities_lead_one_to_expect():
    probabilities, labels = drawn(0, 3)
    logs = log_probabilities(probabilities)
    expected = 0.6 * _best_offsets(logs, _calibrated(logs, labels))
    np.testing.assert_allclose(tune_offsets(probabilities, labels), expected)
    assert expected.any()


def test_probabilities_are_calibrated_by_a_temperature_and_by_what_speaks_too_rarely_or_too_often():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20_000, 3)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    told = 3 * logits + [0, 1.5, -1.5]  # too sure, and biased
    calibrated = _calibrated(told - np.log(np.exp(told).sum(axis=1, keepdims=True)), labels)
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calibrated, true, atol=0.03)


def test_biases_of_few_rows_stay_small():
    calibrated = _calibrated(np.log(np.full((3, 3), 1 / 3)), np.zeros(3, dtype=np.int64))
    assert 0.4 < calibrated[0, 0] < 0.55  # without the prior 0.999


def test_a_class_without_a_labelled_row_gets_no_decisions_by_its_offset():
    for seed in range(5):
        probabilities, labels = rare(seed)
        seen = labels < 2
        assert tune_offsets(probabilities, labels)[2] > 0
        assert tune_offsets(probabilities[seen], labels[seen])[2] <= 0


def test_offsets_for_the_f1_of_one_class_favour_it_where_its_errors_count_alone():
    rng = np.random.default_rng(0)
    labels = rng.choice(2, size=4000, p=[0.32, 0.68])
    logits = 0.8 * rng.normal(size=4000) + 0.8**2 * (labels - 0.5) + np.log(0.68 / 0.32)
    probabilities = np.stack([1 / (1 + np.exp(logits)), 1 / (1 + np.exp(-logits))], axis=1)
    both, one = (tune_offsets(probabilities, labels, counted=counted) for counted in (None, 1))
    assert both[0] - both[1] > 0 > one[0] - one[1]
    f1 = [f1_score(labels, decide(probabilities, offsets)) for offsets in (both, None, one)]
    assert f1 == sorted(f1)


@pytest.mark.parametrize("seed", range(5))
def test_with_a_rare_class_offsets_raise_macro_f1_on_held_out_rows_too(seed):
    probabilities, labels = rare(seed, rows=2000)
    offsets = tune_offsets(probabilities[:1000], labels[:1000])
    assert offsets[2] > offsets[0]
    with_offsets = macro_f1(labels[1000:], decide(probabilities[1000:], offsets))
    assert with_offsets > macro_f1(labels[1000:], decide(probabilities[1000:])) + 0.005


def test_where_nothing_can_be_gained_all_offsets_stay_at_zero():
    labels = np.array([0, 1, 2, 1])
    assert tune_offsets(np.eye(3, dtype=np.float32)[labels], labels).tolist() == [0, 0, 0]
    assert tune_offsets(np.full((0, 3), 0.5), np.zeros(0, dtype=np.int64)).tolist() == [0, 0, 0]


def test_offsets_of_rows_with_ties_change_only_for_a_better_score():
    rng = np.random.default_rng(0)
    for _ in range(300):
        labels = rng.integers(3, size=30)
        shares = rng.multinomial(4, [1 / 3] * 3, size=30) + np.eye(3)[labels]  # as of five members' hard votes
        probabilities = (shares / 5).astype(np.float32)
        offsets = _best_offsets(log_probabilities(probabilities), np.eye(3)[labels])
        gain = macro_f1(labels, decide(probabilities, offsets)) - macro_f1(labels, decide(probabilities))
        assert gain > 0 if offsets.any() else gain == 0


@pytest.mark.parametrize("seed", range(10))
def test_where_a_class_has_no_rows_offsets_do_not_lower_the_score_that_they_are_tuned_for(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=80)
    logits = rng.normal(size=(80, 4)) + 0.7 * np.eye(4)[labels] - [0, 0, 0, 1.5]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    offsets = _best_offsets(log_probabilities(probabilities), np.eye(4)[labels])
    assert macro_f1(labels, decide(probabilities, offsets)) >= macro_f1(labels, decide(probabilities)) - 1e-9


def test_of_offsets_that_score_the_same_the_smallest_is_taken():
    probabilities = np.array([[0.55, 0.45], [0.99, 0.01], [0.01, 0.99]])  # from -0.3 on all rows are right
    offsets = _best_offsets(log_probabilities(probabilities), np.eye(2)[[1, 0, 1]])
    assert offsets.tolist() == pytest.approx([-0.3, 0])


def test_offsets_are_compared_on_rows_that_they_were_not_tuned_on():
    seen = []

    def recorded(said: np.ndarray, labels: np.ndarray) -> np.ndarray:
        seen.append(len(labels))
        return tune_offsets(said, labels)

    rng = np.random.default_rng(0)
    labels, votes = rng.integers(3, size=100), rng.dirichlet(np.ones(3), (2, 100)).astype(np.float32)
    known = Ballot(votes, labels, accuracy, np.arange(100))
    Procedure(Selection(), known.scores, share=1, methods=("uniform",), tune=recorded).fit(known)
    assert set(seen[:5]) == {80}


def test_an_option_that_is_clearly_better_is_not_missed_for_one_that_is_not():
    rng = np.random.default_rng(0)
    right = np.zeros(400, dtype=np.int64)
    default, repaired, other = right.copy(), right.copy(), right.copy()
    default[:100], repaired[18:100], other[rng.choice(400, 79, replace=False)] = 1, 1, 1
    decisions = np.stack([default, repaired, other])[None]
    assert _clearly_best(decisions, right, np.arange(400), accuracy, 1.96, 0) == 1
