from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tutti.config.objective_weights import listed_if_unequal, proportional
from tutti.tasks.objective import study_score, weighted_mean
from tutti.tasks.task import Task

MOOD = Task("mood", ("no", "yes"), pair=False, metric="accuracy", submission="csv")


def test_the_score_of_tasks_of_the_same_weight_is_their_mean_to_the_last_bit():
    for scores in np.random.default_rng(0).random((50, 7)).tolist():
        assert weighted_mean(scores, [1.0] * 7) == weighted_mean(scores, [3.0] * 7) == float(np.mean(scores))


def test_a_task_counts_as_often_as_its_weight_says_and_one_of_weight_0_does_not():
    tasks = [replace(MOOD, weight=3.0), replace(MOOD, name="tone"), replace(MOOD, name="topic", weight=0.0)]
    assert study_score({"topic": 0.1, "tone": 0.4, "mood": 0.8}, tasks) == pytest.approx(0.7)


def test_weights_are_in_words_only_where_they_differ():
    assert listed_if_unequal({"mood": 2.0, "tone": 0.5}) == "mood 2, tone 0.5"
    assert listed_if_unequal({"mood": 2.0, "tone": 2.0}) == ""


def test_weights_are_the_same_whatever_their_sum():
    assert proportional({"mood": 0.3, "tone": 0.1}, {"tone": 1, "mood": 3})
    assert not proportional({"mood": 3, "tone": 1}, {"mood": 1, "tone": 1})
    assert not proportional({"mood": 1, "tone": 1}, {"mood": 1})
