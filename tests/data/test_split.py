from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.data.split import validation_rows, validation_values
from tutti.tasks.kinds.classes import ordered_classes


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=2, max_size=80).filter(
        lambda labels: max(Counter(labels).values()) > 1
    ),
    share=st.floats(0.01, 0.5),
    seed=st.integers(0, 2**32),
)
def test_the_split_is_stable_and_leaves_training_rows_of_every_class(labels, share, seed):
    labels_array = np.array(labels)
    held_out = validation_rows(labels_array, np.arange(len(labels_array)), share=share, seed=seed, task="A")
    assert (
        held_out.tolist()
        == validation_rows(labels_array, np.arange(len(labels_array)), share=share, seed=seed, task="A").tolist()
    )
    assert held_out.tolist() == sorted(set(held_out.tolist()))
    assert 0 < len(held_out) < len(labels)
    assert set(np.delete(labels_array, held_out)) == set(labels)


def test_shares_of_classes_are_kept() -> None:
    labels = np.array([0] * 600 + [1] * 300 + [2] * 100)
    held_out = validation_rows(labels, np.arange(len(labels)), share=0.2, seed=0, task="A")
    assert Counter(labels[held_out].tolist()) == {0: 120, 1: 60, 2: 20}


def test_rows_are_shuffled_and_seed_and_task_each_change_the_split() -> None:
    labels = np.zeros(100, dtype=np.int64)
    splits = [
        tuple(validation_rows(labels, np.arange(len(labels)), share=0.3, seed=seed, task=task))
        for seed, task in ((0, "A"), (1, "A"), (0, "B"))
    ]
    assert len({*splits, tuple(range(30)), tuple(range(70, 100))}) == 5


def test_a_class_with_one_row_stays_in_training() -> None:
    labels = np.array([0] * 20 + [1])
    for seed in range(20):
        assert 20 not in validation_rows(labels, np.arange(len(labels)), share=0.4, seed=seed, task="A")


@given(
    values=st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=80),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_the_split_of_a_regression_is_stable_and_leaves_training_rows(values, share, seed):
    values_array = np.array(values, dtype=np.float32)
    held_out = validation_values(values_array, np.arange(len(values_array)), share=share, seed=seed, task="A")
    assert (
        held_out.tolist()
        == validation_values(values_array, np.arange(len(values_array)), share=share, seed=seed, task="A").tolist()
    )
    assert held_out.tolist() == sorted(set(held_out.tolist()))
    assert 2 <= len(held_out) < len(values)
    assert len(held_out) >= min(share * len(values) - 1e-6, len(values) - 1)


def test_every_tenth_of_the_values_gives_its_share_to_validation() -> None:
    values = np.random.default_rng(0).exponential(size=1000).astype(np.float32)
    for seed in range(5):
        held_out = validation_values(values, np.arange(len(values)), share=0.2, seed=seed, task="A")
        assert Counter((values.argsort().argsort()[held_out] // 100).tolist()) == dict.fromkeys(range(10), 20)


def test_rows_of_a_regression_are_shuffled_within_their_tenth_and_seed_and_task_change_the_split() -> None:
    values = np.arange(100, dtype=np.float32)
    splits = {
        tuple(validation_values(values, np.arange(len(values)), share=0.5, seed=seed, task=task))
        for seed, task in ((0, "A"), (1, "A"), (0, "B"))
    }
    assert len({*splits, tuple(range(0, 100, 2)), tuple(range(1, 100, 2))}) == 5


@given(
    sizes=st.lists(st.integers(1, 5), min_size=10, max_size=40),
    share=st.floats(0.05, 0.5),
    seed=st.integers(0, 2**32),
)
def test_rows_of_one_text_stay_on_one_side_and_the_share_is_of_texts(sizes: list[int], share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = pd.factorize(rng.permutation(np.repeat(np.arange(len(sizes)), sizes)))[0]
    classes = rng.integers(2, size=len(sizes))
    classes[:4] = 0, 0, 1, 1
    for held_out in (
        validation_rows(classes[codes], codes, share=share, seed=seed, task="A"),
        validation_values(codes.astype(np.float32), codes, share=share, seed=seed, task="A"),
    ):
        texts = set(codes[held_out])
        assert not texts & set(np.delete(codes, held_out))
        assert len(texts) == max(math.ceil(share * len(sizes) - 1e-9), 2)


def test_a_text_with_the_only_row_of_a_class_stays_in_training() -> None:
    labels, texts = np.array([0] * 20 + [1]), np.array([*range(20), 0])  # the row of class 1 has a text of class 0
    for seed in range(50):
        held_out = validation_rows(labels, texts, share=0.4, seed=seed, task="A")
        assert len(held_out) == 8
        assert not {0, 20} & set(held_out.tolist())


@pytest.mark.parametrize("choose", [validation_rows, validation_values])
def test_a_text_of_more_rows_than_are_to_be_held_out_stays_in_training(choose: Any) -> None:
    texts = np.array([*range(100), *[0] * 400])
    for seed in range(20):
        held_out = choose(np.arange(500) % 2, texts, share=0.1, seed=seed, task="A")
        assert len(held_out) == 10
        assert 0 not in texts[held_out]
    rows = np.array([*range(190), *[0] * 10])  # 20 of 200 rows are to be held out, and 11 are one text's
    assert not any(0 in rows[choose(rows % 2, rows, share=0.1, seed=seed, task="A")] for seed in range(20))
    every_text_often = np.repeat(np.arange(10), 50)
    assert len(choose(np.repeat(np.arange(10) % 2, 50), every_text_often, share=0.1, seed=0, task="A")) == 100


def test_numeric_labels_are_ordered_as_numbers_and_others_as_text() -> None:
    assert ordered_classes(["+1", "-1"]) == ("-1", "+1")
    assert ordered_classes(["10.0", "2.0", "1.0", "1e3", "1"]) == ("1", "1.0", "2.0", "10.0", "1e3")
    assert ordered_classes(["1_000", "2"]) == ("1_000", "2")
    assert ordered_classes(["100", "99", "-1", "100"]) == ("-1", "99", "100")
    assert ordered_classes(["b", "10", "9"]) == ("10", "9", "b")


@pytest.mark.parametrize("choose", [validation_rows, validation_values])
def test_what_is_held_out_is_not_rounded_up_for_what_a_product_of_floats_has_too_much(choose: Any) -> None:
    assert len(choose(np.arange(100) % 2, np.arange(100), share=0.07, seed=0, task="A")) == 7


def test_as_many_rows_stay_in_training_as_there_are_classes() -> None:
    held_out = validation_rows(np.array([0, 0, 1, 1]), np.arange(4), share=0.9, seed=0, task="A")
    assert (held_out // 2).tolist() == [0, 1]


def test_a_class_whose_other_texts_are_too_large_to_be_held_out_stays_in_training() -> None:
    texts = np.array([*range(100), *[0] * 400])
    labels = (texts < 2).astype(int)  # text 1 has one row
    for seed in range(20):
        assert not labels[validation_rows(labels, texts, share=0.1, seed=seed, task="A")].any()


def test_every_tenth_of_the_values_gives_its_share_of_texts_however_many_rows_they_have() -> None:
    texts = np.repeat(np.arange(100), 3)
    held_out = validation_values(texts.astype(np.float32), texts, share=0.2, seed=0, task="A")
    assert Counter((texts[held_out] // 10).tolist()) == dict.fromkeys(range(10), 6)
