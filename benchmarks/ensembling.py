"""Greedy selection of an ensemble's members, beside the loop that averages every candidate anew at every step.

    python benchmarks/ensembling.py [--json FILE] [--quick] [--cpu-time]

Votes are made up: 100 members, 15 classes, 100,000 rows, errors that members share in part. Ours is the method as
``tutti ensemble`` uses it, with all of its bags, on one thread. The plain loop is what AutoGluon's greedy selection is
described as: at each of as many steps it averages the members so far and each candidate anew, over all classes, and
takes the one of the lowest log-loss; it has no bags. With --quick the loop, and ours beside it, see 10,000 rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tutti.ensembling.methods.greedy import Greedy

MEMBERS, ROWS, CLASSES = 100, 100_000, 15
TARGETS = {"greedy_seconds": "<= 5", "vs_reaverage": ">= 10", "peak_gib": "<= 3"}


def made_up(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Votes ``(members, rows, classes)`` float32 and labels ``(rows,)``."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=rows)
    shared = rng.standard_normal((rows, CLASSES), dtype=np.float32)
    votes = np.empty((MEMBERS, rows, CLASSES), dtype=np.float32)
    for vote in votes:
        rng.standard_normal(out=vote, dtype=np.float32)
        vote += shared
        vote[np.arange(rows), labels] += 1 + 1.5 * rng.random()
        np.exp(vote, out=vote)
        vote /= vote.sum(axis=1, keepdims=True)
    return votes, labels


def plain_loop(votes: np.ndarray, labels: np.ndarray, steps: int) -> np.ndarray:
    """Weights ``(members,)`` by forward selection with replacement, every candidate averaged anew."""
    rows = np.arange(len(labels))
    chosen: list[int] = []
    losses: list[float] = []
    for _ in range(steps):
        tried = []
        for candidate in range(len(votes)):
            mean = sum(votes[member] for member in [*chosen, candidate]) / (len(chosen) + 1)
            tried.append(-float(np.log(np.maximum(mean[rows, labels], 1e-7)).mean()))
        chosen.append(int(np.argmin(tried)))
        losses.append(min(tried))
    kept = chosen[: int(np.argmin(losses)) + 1]
    return np.bincount(kept, minlength=len(votes)) / len(kept)


def log_loss(votes: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Of the weighted mean."""
    true = np.stack([vote[np.arange(len(labels)), labels] for vote in votes])
    return -float(np.log(np.maximum(weights @ true, 1e-7)).mean())


def seconds(work: Callable[[], np.ndarray], clock: Callable[[], float]) -> tuple[float, np.ndarray]:
    began = clock()
    done = work()
    return clock() - began, done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file, as one flat object")
    parser.add_argument("--quick", action="store_true", help="the plain loop on 10,000 rows: under 5 minutes")
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds in the place of the clock")
    options = parser.parse_args()
    clock = time.process_time if options.cpu_time else time.perf_counter

    votes, labels = made_up(ROWS)
    greedy = Greedy()
    taken, ours = seconds(lambda: greedy.fit(votes, labels).weights, clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux; the votes are in it
    beside = taken
    if options.quick:
        votes, labels = np.ascontiguousarray(votes[:, : ROWS // 10]), labels[: ROWS // 10]
        beside, ours = seconds(lambda: greedy.fit(votes, labels).weights, clock)
    loop, theirs = seconds(lambda: plain_loop(votes, labels, greedy.steps), clock)

    values = {"greedy_seconds": taken, "vs_reaverage": loop / beside, "peak_gib": peak}
    print(f"{MEMBERS} members, {CLASSES} classes; ours {greedy.bags} bags, {greedy.steps} steps; {ROWS:,} rows")
    for name, value in values.items():
        print(f"{name:16}{value:10.2f}   {TARGETS[name]}")
    print(f"on {len(labels):,} rows: ours {beside:.2f} s, log-loss {log_loss(votes, labels, ours):.5f}; ", end="")
    print(f"plain loop {loop:.1f} s, log-loss {log_loss(votes, labels, theirs):.5f}")
    if options.json:
        options.json.write_text(json.dumps(values, indent=2) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
