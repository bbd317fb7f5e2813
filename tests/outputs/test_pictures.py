from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.figure import Figure
from polls import write_ensemble

from tutti.ensembling.calibrate import Bin
from tutti.outputs.election.card import Calibration
from tutti.outputs.pictures import (
    _cut,
    confusion_matrix_png,
    drawn,
    ensemble_png,
    reliability_png,
    scatter_png,
)


def picture(classes: Sequence[str], rows: int = 400) -> bytes:
    rng = np.random.default_rng(0)
    labels = rng.integers(len(classes), size=rows)
    probabilities = np.eye(len(classes))[labels] + rng.random((rows, len(classes))) * 1.2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of characters that it cannot draw
        return confusion_matrix_png(labels, probabilities.argmax(axis=1), classes, "topic, epoch 3")


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


@pytest.mark.parametrize("names", [("short", "names"), ("x" * 40, "y" * 40), ("a long name of a class",) * 15])
def test_class_names_of_any_length_leave_the_matrix_most_of_the_width(monkeypatch, names):
    shares, save = [], Figure.savefig

    def measured(figure, *args, **options):
        save(figure, *args, **options)
        shares.append(figure.axes[0].get_window_extent().width / figure.bbox.width)

    monkeypatch.setattr(Figure, "savefig", measured)
    picture(names)
    assert shares[0] > 0.5


def test_class_names_that_are_cut_to_the_same_text_are_told_by_their_number(monkeypatch):
    labels, save = [], Figure.savefig

    def read(figure, *args, **options):
        save(figure, *args, **options)
        labels.append([tick.get_text() for tick in figure.axes[0].get_xticklabels()])

    monkeypatch.setattr(Figure, "savefig", read)
    picture(("account_payment_dispute_opened", "account_payment_dispute_closed", "account"))
    assert labels == [["#0", "#1", "account"]]


def test_a_class_name_is_cut_where_it_is_wider_than_24_letters():
    assert [_cut(name) for name in ("x" * 24, "x" * 25, "快" * 12, "快" * 13, "x快" * 9, "")] == [
        "x" * 24,
        "x" * 23 + "…",
        "快" * 12,
        "快" * 11 + "…",
        "x快" * 7 + "x…",
        "",
    ]


def test_a_class_without_rows_is_drawn_as_an_empty_row():
    png = confusion_matrix_png(np.array([0, 0]), np.array([0, 1]), ("a", "b", "c"), "few")
    assert size(png)[0] > 200
    assert png != confusion_matrix_png(np.array([0, 2]), np.array([0, 1]), ("a", "b", "c"), "few")


def test_the_same_numbers_give_the_same_picture_and_others_another():
    assert picture("abc") == picture("abc")
    assert picture("abc") != picture("abc", rows=100)


def scatter(labels: np.ndarray, values: np.ndarray) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return scatter_png(labels.astype(np.float32), values.astype(np.float32), (), "STS-B, $x$")


def test_a_scatter_shows_where_values_lie():
    from matplotlib.image import imread

    labels = np.linspace(0, 5, 200)
    right, wrong = (imread(io.BytesIO(scatter(labels, values))) for values in (labels, labels[::-1]))
    assert right.shape == wrong.shape
    blue = [np.argwhere((picture[..., 2] - picture[..., 0]) > 0.15) for picture in (right, wrong)]
    slopes = [np.corrcoef(found[:, 0], found[:, 1])[0, 1] for found in blue]
    assert slopes[0] < -0.95  # up in the picture is a smaller row
    assert slopes[1] > 0.95


def test_a_scatter_of_one_row_or_of_equal_values_is_drawn_without_complaint():
    for labels, values in (
        (np.ones(1), np.ones(1)),
        (np.full(9, 2.0), np.full(9, 2.0)),
        (np.zeros(3), np.full(3, 1e30)),
    ):
        assert size(scatter(labels, values))[0] > 300


def test_the_ensemble_picture_has_a_lane_for_each_task(make_finished, tmp_path):
    study = make_finished()
    card = write_ensemble(**study.ensemble(tmp_path / "all"))
    one = write_ensemble(**study.ensemble(tmp_path / "one", tasks=study.tasks[:1]))
    assert size(ensemble_png(card))[1] > size(ensemble_png(one))[1]
    assert (tmp_path / "all" / "ensemble.png").read_bytes() == ensemble_png(card)


def test_drawing_leaves_the_global_state_of_matplotlib_alone():
    code = """
import sys
import numpy as np
from tutti.outputs.pictures import confusion_matrix_png
confusion_matrix_png(np.array([0, 1]), np.array([0, 1]), ("a", "b"), "title")
print("matplotlib.pyplot" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_a_backend_that_is_not_installed_is_no_hindrance_and_stays_in_the_environment():
    code = """
import os
import numpy as np
from tutti.outputs.pictures import confusion_matrix_png, drawn
print(*drawn({"a": lambda: confusion_matrix_png(np.array([0, 1]), np.array([0, 1]), ("a", "b"), "title")}))
print(os.environ["MPLBACKEND"])
"""
    backend = "module://matplotlib_inline.backend_inline"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"MPLBACKEND": backend},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["a", backend]


def test_a_picture_that_fails_is_left_out_with_one_line(caplog):
    def fail():
        raise OSError("no font\nat all")

    assert drawn({"one.png": fail, "two.png": lambda: b"png"}) == {"two.png": b"png"}
    assert caplog.messages == ["The picture one.png was not drawn: no font"]


def test_reliability_has_a_panel_for_each_task_three_in_a_row():
    bins = (Bin(10, 0.4, 0.5), Bin(30, 0.9, 0.8))
    known = Calibration(0.8, 0.1, 0.05, bins, bins)
    widths = [size(reliability_png({f"$task_{n}": known for n in range(count)})) for count in (1, 3, 4)]
    assert widths[0][0] < widths[1][0] == widths[2][0]
    assert widths[1][1] < widths[2][1]
