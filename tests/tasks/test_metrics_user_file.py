"""A metric of the user's own, in a Python file."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tutti.config.study import OwnMetric
from tutti.errors import ConfigError
from tutti.tasks.metrics import Metric, check_fits, own_metric, ship

LABELS, LIKELY = np.array([0, 1, 1]), np.array([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3]])
GOOD = "def share(labels, predictions):\n    return (predictions.argmax(axis=1) == labels).mean()\n"


def own(folder: Path, source: str, *, function: str = "share", higher: bool = True) -> Metric:
    file = folder / "metric.py"
    file.write_text(source)
    return own_metric(OwnMetric(file=file, function=function, needs="probabilities", higher_is_better=higher))


def score(metric: Metric) -> float:
    return metric.score(LABELS, LIKELY, outputs=2)


def test_a_function_in_a_file_is_a_metric(tmp_path: Path) -> None:
    metric = own(tmp_path, GOOD)
    assert (metric.name, metric.needs) == ("share", "probabilities")
    assert metric.kinds == ("classes", "ordered", "labels", "choice", "tokens", "overlapping", "span", "tags")
    assert score(metric) == pytest.approx(2 / 3)


def test_an_own_metric_is_refused_where_a_task_has_no_such_predictions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="be a metric for one number per row; got 'share', which is"):
        check_fits(own(tmp_path, GOOD), "value", outputs=1, what="it")


def test_of_an_own_metric_too_higher_scores_are_better(tmp_path: Path) -> None:
    metric = own(tmp_path, GOOD, higher=False)
    assert score(metric) == pytest.approx(-2 / 3)
    assert metric.raw(score(metric)) == pytest.approx(2 / 3)


def test_the_file_leaves_nothing_behind_that_others_could_meet(tmp_path: Path) -> None:
    paths = [*sys.path]
    (tmp_path / "other").mkdir()
    first = own(tmp_path, GOOD)
    second = own(tmp_path / "other", "def share(labels, predictions):\n    return 0.5\n")
    assert (score(first), score(second)) == (pytest.approx(2 / 3), 0.5)
    assert sys.path == paths
    assert "metric" not in sys.modules
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metric.py", "other"]


def test_a_file_may_define_what_looks_its_module_up(tmp_path: Path) -> None:
    source = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    b: int\n"
    assert score(own(tmp_path, source + GOOD)) == pytest.approx(2 / 3)


def test_the_function_may_change_its_arrays(tmp_path: Path) -> None:
    metric = own(tmp_path, "def share(labels, predictions):\n    labels[:] = 0\n    predictions[:] = 0\n    return 1\n")
    labels, likely = LABELS.copy(), LIKELY.copy()
    metric.score(labels, likely, outputs=2)
    assert (labels == LABELS).all()
    assert (likely == LIKELY).all()


def test_the_copy_of_the_file_serves_other_processes_once_the_own_file_is_gone(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / "metric.py"
    file.write_text(GOOD)
    config = OwnMetric(file=file, function="share", needs="probabilities", higher_is_better=True)
    shipped = ship(config, tmp_path / "data")
    assert ship(config, tmp_path / "data") == shipped
    file.write_text("def share(labels, predictions):\n    return 0\n")
    other = ship(config, tmp_path / "data")
    assert shipped.file != other.file
    assert Path(shipped.file).name == "metric.py"
    file.unlink()
    (tmp_path / "metric.pickle").write_bytes(pickle.dumps(own_metric(shipped)))
    code = (
        "import pickle, sys, numpy as np; metric = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(metric.score(np.array([0, 1]), np.array([[1.0, 0.0], [1.0, 0.0]]), outputs=2))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "metric.pickle")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0.5"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def share(labels, predictions)\n    return 1\n",
            r"line 1 must load as a Python file; got SyntaxError",
        ),
        (
            "\nimport no_such_thing\n",
            r"line 2 must load .*; got ModuleNotFoundError: No module",
        ),
        ("import sys\nsys.exit(3)\n", r"line 2 must load as a Python file; got SystemExit: 3; correct it"),
        ("share = 3\n", r"must have a function 'share', which the study file names; got no function; add it"),
        (
            "\ndef share(labels):\n    return 1\n",
            r"line 2 must have .* of two arguments, .*; got too many positional",
        ),
    ],
)
def test_a_file_that_is_no_metric_is_told_in_one_sentence_before_anything_starts(tmp_path, source, message):
    with pytest.raises(ConfigError, match=message) as caught:
        own(tmp_path, source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "    x = [1]\n    return x[labels.size]\n",
            r"line 3 \(share\) must return a score; got IndexError: list",
        ),
        ("    return np.ones(3).reshape(2, 2)\n", r"line 2 \(share\) must return a score; got NameError: name 'np' is"),
        ("    return float('nan')\n", r"line 1 \(share\) must return a finite number; got nan; correct the function"),
        ("    return predictions\n", r"must return a finite number; got an array of shape \(3, 2\)"),
        ("    import numpy\n    return numpy.array(['1'])\n", r"must return a finite number; got array\(\['1'\]"),
    ],
)
def test_a_function_that_fails_names_file_and_line(tmp_path: Path, body: str, message: str) -> None:
    metric = own(tmp_path, "def share(labels, predictions):\n" + body)
    with pytest.raises(ConfigError, match=message) as caught:
        score(metric)
    assert str(caught.value).startswith("metric.py, line ")
    assert "\n" not in str(caught.value)


def test_an_error_in_a_library_names_the_line_that_called_it(tmp_path: Path) -> None:
    metric = own(tmp_path, "import numpy\ndef share(labels, predictions):\n    return numpy.reshape(labels, (7, 7))\n")
    with pytest.raises(ConfigError, match=r"line 3 \(share\) must return a score; got ValueError: cannot reshape"):
        score(metric)


@pytest.mark.parametrize("result", ["np.float32(0.25)", "np.array(0.25)", "np.array([0.25])", "0.25"])
def test_any_single_number_is_a_result(tmp_path: Path, result: str) -> None:
    source = f"import numpy as np\ndef share(labels, predictions):\n    return {result}\n"
    assert score(own(tmp_path, source)) == 0.25
