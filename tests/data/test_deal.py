"""Sets of rows are dealt as wholes, and every stratum is spread as evenly as they allow."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.data.deal import deal


def spread(parts: np.ndarray, amounts: np.ndarray, shares: np.ndarray) -> float:
    """The root mean square distance of the strata's shares from those wanted."""
    of_part = np.zeros((len(shares), amounts.shape[1]))
    np.add.at(of_part, parts, amounts)
    return float(np.sqrt(np.square(of_part / amounts.sum(axis=0) - shares[:, None]).mean()))


def test_groups_are_spread_at_least_as_evenly_as_scikit_learn_spreads_them() -> None:
    from sklearn.model_selection import StratifiedGroupKFold

    ours, theirs = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows, folds, classes = int(rng.integers(100, 800)), int(rng.choice([2, 5, 10])), int(rng.integers(2, 8))
        drawn = rng.zipf(1.6, rows) % 40 if seed % 2 else rng.integers(rows // 5, size=rows)
        groups = np.unique(drawn, return_inverse=True)[1]
        leaning = rng.dirichlet(np.full(classes, 0.5), size=groups.max() + 1)
        labels = np.array([rng.choice(classes, p=leaning[group]) for group in groups])
        amounts = np.zeros((groups.max() + 1, classes))
        np.add.at(amounts, (groups, labels), 1)
        amounts = np.hstack([amounts[:, amounts.any(axis=0)], amounts.sum(axis=1, keepdims=True)])
        expected = np.empty(len(amounts), dtype=np.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes with fewer rows than folds
            splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
            for fold, (_, held_out) in enumerate(splitter.split(labels, labels, groups)):
                expected[groups[held_out]] = fold
        shares = np.full(folds, 1 / folds)
        ours.append(spread(deal(amounts, shares, seed=seed), amounts, shares))
        theirs.append(spread(expected, amounts, shares))
    assert np.mean(ours) <= np.mean(theirs)


@pytest.mark.parametrize("shares", [np.full(5, 0.2), np.array([0.1, 0.9])])
def test_each_of_many_labels_has_its_share_in_each_part(shares: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    labels = rng.random((2000, 28)) < rng.uniform(0.01, 0.3, size=28)  # any of 28 in a row
    amounts = np.hstack([labels, np.ones((2000, 1))]).astype(np.float64)
    parts = deal(amounts, shares, seed=0)
    for part, share in enumerate(shares):
        off = np.abs(amounts[parts == part].sum(axis=0) - share * amounts.sum(axis=0))
        assert (off <= np.maximum(2, amounts.sum(axis=0) / 300)).all()


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=5), folds=st.integers(2, 6), seed=st.integers(0, 2**32))
def test_rows_that_are_alike_are_dealt_evenly_at_random_and_again_in_the_same_way(counts, folds, seed):
    amounts = np.repeat(np.eye(len(counts)), counts, axis=0)
    shares = np.full(folds, 1 / folds)
    parts = deal(amounts, shares, seed=seed)
    assert parts.tolist() == deal(amounts, shares, seed=seed).tolist()
    for kind in range(len(counts)):
        sizes = np.bincount(parts[amounts[:, kind] == 1], minlength=folds)
        assert sizes.max() - sizes.min() <= 1


def test_the_seed_changes_what_is_dealt_where() -> None:
    amounts, shares = np.ones((40, 1)), np.array([0.25, 0.75])
    assert len({tuple(deal(amounts, shares, seed=seed)) for seed in range(5)}) == 5
