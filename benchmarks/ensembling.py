"""Greedy ensemble selection, compared with a plain loop that recomputes every candidate's average at every step.

    python benchmarks/ensembling.py [--json FILE] [--quick] [--cpu-time] [--classes N]

Votes are synthetic: 100 members, 15 classes, 100,000 rows, with partly shared errors. Ours is the method as ``tutti
ensemble`` uses it, with all of its bags, on one thread. The plain loop follows the description of AutoGluon's greedy
selection: for the same number of steps it averages the members so far with each candidate, over all classes, and adds
the candidate with the lowest log-loss, without bagging. With --quick both are compared on 10,000 rows.

With --classes N only the recipe `auto` is timed, in CPU seconds: 10 members, 1,000 rows of N classes, macro-F1, all
choices and their nested estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from tutti.ensembling.methods.greedy import Greedy
from tutti.ensembling.procedure import Ballot, Procedure, auto_methods, out_of_fold
from tutti.ensembling.select import Selection
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS
from tutti.tasks.scorer import Scorer

MEMBERS, ROWS, CLASSES = 100, 100_000, 15
TARGETS = {"greedy_seconds": "<= 5", "vs_reaverage": ">= 10", "peak_gib": "<= 3"}


def synthetic_votes(
    rows: int, *, members: int = MEMBERS, classes: int = CLASSES, skill: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Votes ``(members, rows, classes)`` float32 and labels ``(rows,)``."""
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=rows)
    shared = rng.standard_normal((rows, classes), dtype=np.float32)
    votes = np.empty((members, rows, classes), dtype=np.float32)
    for vote in votes:
        rng.standard_normal(out=vote, dtype=np.float32)
        vote += shared
        vote[np.arange(rows), labels] += skill * (1 + 1.5 * rng.random())
        np.exp(vote, out=vote)
        vote /= vote.sum(axis=1, keepdims=True)
    return votes, labels


def plain_loop(votes: np.ndarray, labels: np.ndarray, steps: int) -> np.ndarray:
    """Weights ``(members,)`` by forward selection with replacement, recomputing every candidate's average."""
    rows = np.arange(len(labels))
    chosen: list[int] = []
    losses: list[float] = []
    for _ in range(steps):
        candidate_losses = []
        for candidate in range(len(votes)):
            mean = sum(votes[member] for member in [*chosen, candidate]) / (len(chosen) + 1)
            candidate_losses.append(-float(np.log(np.maximum(mean[rows, labels], 1e-7)).mean()))
        chosen.append(int(np.argmin(candidate_losses)))
        losses.append(min(candidate_losses))
    best = chosen[: int(np.argmin(losses)) + 1]
    return np.bincount(best, minlength=len(votes)) / len(best)


def log_loss(votes: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """The log-loss of the weighted mean of the votes."""
    true = np.stack([vote[np.arange(len(labels)), labels] for vote in votes])
    return -float(np.log(np.maximum(weights @ true, 1e-7)).mean())


def seconds(work: Callable[[], np.ndarray], clock: Callable[[], float]) -> tuple[float, np.ndarray]:
    """The duration and the result of ``work``."""
    started = clock()
    result = work()
    return clock() - started, result


def auto(classes: int) -> float:
    """CPU seconds of the recipe ``auto`` for one task: the ensemble, its nested estimate and the best trial's."""
    votes, labels = synthetic_votes(1_000, members=10, classes=classes, skill=1.8)
    kind = KINDS["classes"]
    score = Scorer(kind, partial(METRICS["macro_f1"].score, outputs=classes))
    ballot = Ballot(votes, labels, score, np.arange(len(labels)))
    rule = partial(Procedure, standing=ballot.scores, share=1)
    methods = auto_methods(kind, texts=ballot.texts)
    procedure = rule(Selection(top=5, diversity=0.002), methods=methods, tune=kind.tuner("macro_f1"))
    started = time.process_time()
    procedure.fit(ballot)
    for each in (procedure, rule(Selection(top=1), methods=("uniform",))):
        ballot.judge(out_of_fold(each, ballot).scored)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the results to this file, as one flat object")
    parser.add_argument("--quick", action="store_true", help="the plain loop on 10,000 rows: under 5 minutes")
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU seconds instead of wall time")
    parser.add_argument("--classes", type=int, help="time only the recipe `auto`, with this many classes")
    options = parser.parse_args()
    if options.classes:
        values = {f"auto_{options.classes}_cpu_seconds": auto(options.classes)}
        print(json.dumps(values))
        if options.json:
            options.json.write_text(json.dumps(values, indent=2) + "\n", encoding="utf8")
        return
    clock = time.process_time if options.cpu_time else time.perf_counter

    votes, labels = synthetic_votes(ROWS)
    greedy = Greedy(KINDS["classes"])
    greedy_seconds, greedy_weights = seconds(lambda: greedy.fit(votes, labels).weights, clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB on Linux; includes the votes
    compared_seconds = greedy_seconds
    if options.quick:
        votes, labels = np.ascontiguousarray(votes[:, : ROWS // 10]), labels[: ROWS // 10]
        compared_seconds, greedy_weights = seconds(lambda: greedy.fit(votes, labels).weights, clock)
    loop_seconds, loop_weights = seconds(lambda: plain_loop(votes, labels, greedy.steps), clock)

    values = {
        "greedy_seconds": greedy_seconds,
        "vs_reaverage": loop_seconds / compared_seconds,
        "peak_gib": peak,
    }
    print(f"{MEMBERS} members, {CLASSES} classes; ours {greedy.bags} bags, {greedy.steps} steps; {ROWS:,} rows")
    for name, value in values.items():
        print(f"{name:16}{value:10.2f}   {TARGETS[name]}")
    loss = log_loss(votes, labels, greedy_weights)
    print(f"on {len(labels):,} rows: ours {compared_seconds:.2f} s, log-loss {loss:.5f}; ", end="")
    print(f"plain loop {loop_seconds:.1f} s, log-loss {log_loss(votes, labels, loop_weights):.5f}")
    if options.json:
        options.json.write_text(json.dumps(values, indent=2) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
