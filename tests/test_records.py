from __future__ import annotations

import numpy as np
import pytest

from tutti.errors import StorageError
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
