from __future__ import annotations

import numpy as np
import pytest

from tutti.errors import StorageError
from tutti.records import TrialState
from tutti.tasks.predictions import Predictions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probabilities": [[1.5, -0.5], [0.5, 0.5]]}, "must have probabilities from 0 to 1; got -0.5"),
        ({"labels": [0, 7]}, "must have labels from 0 to 1, one for each class; got 7"),
        ({"labels": [-1, 0]}, "must have labels from 0 to 1, one for each class; got -1"),
        ({"labels": [0.0, np.nan]}, "must have labels that are indices of classes; got labels of type float64"),
    ],
)
def test_invalid_probabilities_and_labels_are_refused(changes, message):
    arguments = {"probabilities": [[0.25, 0.75], [0.5, 0.5]], "labels": [0, 1], **changes}
    with pytest.raises(StorageError, match=message):
        Predictions(
            ids=np.array(["a", "b"]),
            outputs=np.array(arguments["probabilities"], np.float32),
            labels=np.array(arguments["labels"]),
            names=("no", "yes"),
        )


def test_a_label_of_a_regression_is_a_finite_number():
    values = np.array([1, 2], np.float32)
    for labels in (np.array([1, np.nan], np.float32), np.array(["1", "2"])):
        with pytest.raises(StorageError, match="must have labels that are finite numbers"):
            Predictions(ids=np.array(["a", "b"]), outputs=values, labels=labels)


def test_nothing_follows_the_end_of_a_trial_and_a_trial_that_was_interrupted_goes_on():
    ends = {TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED}
    assert all(TrialState.RUNNING.to(end) is end for end in ends)
    assert TrialState.INTERRUPTED.to(TrialState.QUEUED) is TrialState.QUEUED
    for end in ends:
        with pytest.raises(RuntimeError, match=f"a trial that is {end} cannot become queued"):
            end.to(TrialState.QUEUED)
