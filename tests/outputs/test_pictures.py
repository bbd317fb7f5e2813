from __future__ import annotations

import io
import subprocess
import sys
import warnings
from collections.abc import Sequence

import numpy as np
import pytest

from tutti.outputs.ensemble import write_ensemble
from tutti.outputs.pictures import confusion_matrix_png, ensemble_png


def picture(classes: Sequence[str], rows: int = 400) -> bytes:
    rng = np.random.default_rng(0)
    labels = rng.integers(len(classes), size=rows)
    probabilities = np.eye(len(classes))[labels] + rng.random((rows, len(classes))) * 1.2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of characters that it cannot draw
        return confusion_matrix_png(labels, probabilities, classes, "topic, epoch 3")


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(png[16:20]), int.from_bytes(png[20:24])


@pytest.mark.parametrize("count", [2, 15, 40, 300])
def test_a_confusion_matrix_grows_with_its_classes_and_stays_within_bounds(count):
    width, height = size(picture([f"1{index:02d}" for index in range(count)]))
    assert min(width, height) > min(300, 100 * count)
    assert max(width, height) < 4000


@pytest.mark.parametrize("names", [("快乐", "悲伤"), ("$x$", "$\\frac{"), ("😀", "a_b^c"), ("", "x" * 40)])
def test_class_names_of_any_kind_are_drawn_without_complaint(names):
    assert size(picture(names))[0] > 200


def test_a_class_without_rows_is_drawn_as_an_empty_row():
    png = confusion_matrix_png(np.array([0, 0]), np.array([[1.0, 0, 0], [0, 1.0, 0]]), ("a", "b", "c"), "few")
    assert size(png)[0] > 200


def test_the_same_numbers_give_the_same_picture_and_others_another():
    assert picture("abc") == picture("abc")
    assert picture("abc") != picture("abc", rows=100)


def test_the_ensemble_picture_has_a_lane_for_each_task(make_study, tmp_path):
    study = make_study()
    card = write_ensemble(**study.ensemble(tmp_path / "all"))
    one = write_ensemble(**study.ensemble(tmp_path / "one", tasks=study.tasks[:1]))
    assert size(ensemble_png(card))[1] > size(ensemble_png(one))[1]
    assert (tmp_path / "all" / "ensemble.png").read_bytes() == ensemble_png(card)


def test_drawing_leaves_the_global_state_of_matplotlib_alone():
    code = """
import sys
import numpy as np
from tutti.outputs.pictures import confusion_matrix_png
confusion_matrix_png(np.array([0, 1]), np.eye(2), ("a", "b"), "title")
print("matplotlib.pyplot" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_the_picture_can_be_decoded(make_study):
    from matplotlib.image import imread

    pixels = imread(io.BytesIO(picture("abc")))
    assert pixels.std() > 0.05
