"""Votes of texts: the one that agrees best with all members' by the task's metric, or the one that most write."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from saved_models import text_task

from tutti.ensembling.methods.consensus import Consensus, Majority
from tutti.ensembling.methods.registry import METHODS, compared, plain_vote
from tutti.ensembling.methods.score import ScoreWeighted
from tutti.tasks.kinds.text import texts_array
from tutti.tasks.scorer import Scorer

TASK = text_task("rouge_l")
SCORE = Scorer.of(TASK)
ROWS = 60


def members(count: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """``(members, rows)`` texts that get better from member to member, and ``(rows,)`` labels."""
    rng = np.random.default_rng(seed)
    words = np.array(["a", "b", "c", "d", "e", "f"])
    labels = [rng.choice(words, size=rng.integers(2, 7)) for _ in range(ROWS)]
    votes = np.empty((count, ROWS), dtype=object)
    for member, skill in enumerate(np.linspace(0.3, 0.9, count)):
        for row, label in enumerate(labels):
            kept = np.where(rng.random(len(label)) < skill, label, rng.choice(words, size=len(label)))
            votes[member, row] = " ".join(kept)
    return votes, texts_array([" ".join(label) for label in labels])


def utility(label: str, written: str) -> float:
    return SCORE(texts_array([label]), texts_array([written]))


def by_definition(votes: np.ndarray, weights: np.ndarray) -> list[float]:
    """Of each row the highest expected score of any of its texts."""
    return [
        max(sum(weight * utility(other, text) for other, weight in zip(texts, weights, strict=True)) for text in texts)
        for texts in votes.T
    ]


def expected_scores(chosen: np.ndarray, votes: np.ndarray, weights: np.ndarray) -> list[float]:
    return [
        sum(weight * utility(other, text) for other, weight in zip(texts, weights, strict=True))
        for text, texts in zip(chosen, votes.T, strict=True)
    ]


@pytest.mark.parametrize("method", ["uniform", "score"])
def test_the_consensus_is_the_text_with_the_least_bayes_risk(method: str) -> None:
    votes, labels = members()
    weights = np.full(5, 0.2) if method == "uniform" else ScoreWeighted(SCORE).fit(votes, labels).weights
    chosen = METHODS[method].make(SCORE).fit(votes, labels).combine(votes)
    assert all(text in row for text, row in zip(chosen, votes.T, strict=True))
    np.testing.assert_allclose(expected_scores(chosen, votes, weights), by_definition(votes, weights), atol=1e-12)
    assert utility_of(chosen, labels) > np.mean([utility_of(texts, labels) for texts in votes])


def utility_of(texts: np.ndarray, labels: np.ndarray) -> float:
    return SCORE(labels, texts)


def test_members_count_by_their_score() -> None:
    votes, labels = members()
    weights = ScoreWeighted(SCORE).fit(votes, labels).weights
    assert weights.argmax() == 4
    even, weighed = (METHODS[name].make(SCORE).fit(votes, labels).combine(votes) for name in ("uniform", "score"))
    assert utility_of(weighed, labels) >= utility_of(even, labels)
    assert (even != weighed).any()


def test_the_text_that_most_members_write_wins_apart_from_case_and_white_space() -> None:
    votes = np.array([["42"], ["forty two and more words"], [" 42 "], ["forty two and more"]], dtype=object)
    assert Majority(SCORE).fit(votes, votes[0]).combine(votes).tolist() == ["42"]
    votes = np.array([["Paris"], ["paris "], ["Rome"]], dtype=object)
    assert Majority(SCORE).fit(votes, votes[0]).combine(votes)[0].strip().casefold() == "paris"


def test_of_texts_that_as_many_write_the_one_that_agrees_best_wins() -> None:
    votes = np.array([["x y"], ["a b c"], ["a b"], ["a d"]], dtype=object)
    assert Majority(SCORE).fit(votes, votes[0]).combine(votes).tolist() == ["a b"]
    assert Consensus(SCORE).fit(votes, votes[0]).combine(votes).tolist() == ["a b"]


def test_of_texts_that_are_equally_good_the_first_member_s_wins() -> None:
    votes = np.array([["a"], ["b"]], dtype=object)
    for method in (Consensus(SCORE), Majority(SCORE)):
        assert method.fit(votes, votes[0]).combine(votes).tolist() == ["a"]


def test_the_plain_vote_of_a_task_without_a_metric_of_texts_is_by_rouge_l() -> None:
    votes, labels = members()
    task = replace(TASK, metric="perplexity")
    assert task.as_voted.metric == "rouge_l"
    assert replace(task, report=("perplexity", "chrf")).as_voted.metric == "chrf"
    expected = Consensus(SCORE).fit(votes, labels).combine(votes)
    np.testing.assert_array_equal(plain_vote(task, votes), expected)


def test_methods_of_means_and_ranks_do_not_take_texts() -> None:
    assert [name for name, entry in METHODS.items() if entry.texts] == ["uniform", "score", "hard"]
    assert compared(probabilities=False, texts=1000, generative=True) == ("uniform", "hard")
