from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from tutti.ensembling.decide import _GRID, decide, tune_offsets


def rare(seed: int, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that follow a prior in which the third class is rare, so that it is rarely the most likely one."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, size=rows, p=[0.6, 0.3, 0.1])
    logits = rng.normal(size=(rows, 3)) + 1.2 * np.eye(3)[labels] + np.log([0.6, 0.3, 0.1])
    return (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32), labels


def macro_f1(labels: np.ndarray, decisions: np.ndarray) -> float:
    return float(f1_score(labels, decisions, average="macro", zero_division=0))


def test_the_decision_is_the_argmax_after_adding_offsets():
    probabilities = np.array([[0.6, 0.4], [0.2, 0.8]], dtype=np.float32)
    assert decide(probabilities).tolist() == [0, 1]
    assert decide(probabilities, np.zeros(2)).tolist() == [0, 1]
    assert decide(probabilities, np.array([0.0, 1.0])).tolist() == [1, 1]
    assert decide(np.array([[0.0, 1.0]]), np.array([2.0, 0.0])).tolist() == [1]


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_the_offsets_are_those_of_a_plain_loop_over_classes_and_offsets(seed, classes):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=80)
    logits = rng.normal(size=(80, classes)) + np.eye(classes)[labels] + np.linspace(0, 1.5, classes)
    probabilities = (np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)).astype(np.float32)
    plain = np.zeros(classes)
    for _ in range(2):
        for index in range(classes):
            tried = [np.where(np.arange(classes) == index, offset, plain) for offset in _GRID]
            scores = np.array([macro_f1(labels, decide(probabilities, offsets)) for offsets in tried])
            smallest_first = np.argsort(np.abs(_GRID), kind="stable")
            best = smallest_first[scores[smallest_first].argmax()]
            if scores[best] > scores[np.argmin(np.abs(_GRID - plain[index]))] + 1e-12:
                plain = tried[best]
    np.testing.assert_array_equal(tune_offsets(probabilities, labels), plain)
    assert plain.any()


@pytest.mark.parametrize("seed", range(5))
def test_with_a_rare_class_offsets_raise_macro_f1_on_held_out_rows_too(seed):
    probabilities, labels = rare(seed, rows=2000)
    offsets = tune_offsets(probabilities[:1000], labels[:1000])
    assert offsets[2] > offsets[0]
    for half in (slice(None, 1000), slice(1000, None)):
        with_offsets = macro_f1(labels[half], decide(probabilities[half], offsets))
        assert with_offsets > macro_f1(labels[half], decide(probabilities[half])) + 0.005


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
        offsets = tune_offsets(probabilities, labels)
        gain = macro_f1(labels, decide(probabilities, offsets)) - macro_f1(labels, decide(probabilities))
        assert gain > 0 if offsets.any() else gain == 0


@pytest.mark.parametrize("seed", range(10))
def test_where_a_class_has_no_rows_offsets_do_not_lower_macro_f1_on_the_rows_they_are_tuned_on(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=80)
    logits = rng.normal(size=(80, 4)) + 0.7 * np.eye(4)[labels] - [0, 0, 0, 1.5]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    offsets = tune_offsets(probabilities, labels)
    assert macro_f1(labels, decide(probabilities, offsets)) >= macro_f1(labels, decide(probabilities)) - 1e-9


def test_of_offsets_that_score_the_same_the_smallest_is_taken():
    probabilities = np.array([[0.55, 0.45], [0.99, 0.01], [0.01, 0.99]])  # from -0.3 on all rows are right
    assert tune_offsets(probabilities, np.array([1, 0, 1])).tolist() == pytest.approx([-0.3, 0])
