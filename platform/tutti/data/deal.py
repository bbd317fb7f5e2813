"""Deals sets of rows, each as a whole, so that every stratum is spread in given shares."""

from __future__ import annotations

import numpy as np

_PASSES = 3  # over the sets that are dealt one by one, after the first of which each is dealt anew


def deal(amounts: np.ndarray, shares: np.ndarray, *, seed: int) -> np.ndarray:
    """Deals each set of rows to one part, so that every stratum has its share in each part, as closely as it goes.

    Greedy stratification of several labels (Sechidis, Tsoumakas and Vlahavas 2011) for sets of any size. Sets of equal
    amounts are alike: of ``n`` of them each part gets ``floor(share * n)``, drawn at random. Of what is left, the sets
    that hold most of any stratum are dealt first, each to the part where it adds least to the squared distance between
    the strata's amounts and their shares, relative to the whole strata; then each is dealt anew, among all others.

    Args:
        amounts: ``(sets, strata)`` of at least 0: how much of each stratum, such as rows of a class, a set holds.
        shares: ``(parts,)``, above 0, which sum to 1.
        seed: decides between sets, and between parts, that are alike.

    Returns:
        ``(sets,)`` int64, the part of each set.
    """
    rng = np.random.default_rng(seed)
    totals = amounts.sum(axis=0, dtype=np.float64)
    amounts, totals = amounts[:, totals > 0].astype(np.float64), totals[totals > 0]
    part_of = np.empty(len(amounts), dtype=np.int64)
    rest = []
    _, kinds = np.unique(amounts, axis=0, return_inverse=True)
    order = np.lexsort((rng.random(len(amounts)), kinds))
    for alike in np.split(order, np.cumsum(np.bincount(kinds))[:-1]):
        whole = np.floor(shares * len(alike) + 1e-9).astype(np.int64)
        part_of[alike[: whole.sum()]] = np.repeat(np.arange(len(shares)), whole)
        rest.append(alike[whole.sum() :])
    left = np.concatenate(rest)
    given = np.zeros((len(shares), len(totals)))
    dealt = np.setdiff1d(np.arange(len(amounts)), left)
    np.add.at(given, part_of[dealt], amounts[dealt])
    wanted = np.outer(shares, totals)
    weights = 1 / np.outer(shares, totals**2)

    def cheapest(one: int) -> int:
        cost = (amounts[one] * (2 * (given - wanted) + amounts[one]) * weights).sum(axis=1).round(12)
        return int(rng.choice(np.flatnonzero(cost == cost.min())))

    in_turn = left[np.lexsort((rng.random(len(left)), -(amounts[left] / totals).max(axis=1)))]
    for again in range(_PASSES):
        for one in in_turn:
            if again:
                given[part_of[one]] -= amounts[one]
            part_of[one] = cheapest(one)
            given[part_of[one]] += amounts[one]
    return part_of
