"""Classes in the spelling of a sample submission."""

from __future__ import annotations

import pytest

from tutti.tasks.spelling import is_placeholder, spelled_like


@pytest.mark.parametrize(
    ("classes", "sample", "spelled"),
    [
        (("0", "1"), ["0"], ["0", "1"]),
        (("0.0", "1.0"), ["0"], ["0", "1"]),
        (("0", "1", "2"), ["1.0"], ["0.0", "1.0", "2.0"]),
        (("2.5", "3.0", "4.0"), ["2.5", "3"], ["2.5", "3", "4"]),
        (("False", "True"), ["TRUE"], ["FALSE", "TRUE"]),
        (("FALSE", "TRUE"), ["false"], ["false", "true"]),
        (("false", "true"), ["True"], ["False", "True"]),
        (("False", "True"), ["0"], ["0", "1"]),
        (("negative", "positive"), ["Positive"], ["Negative", "Positive"]),
        (("no", "yes", "maybe"), ["Yes", "NO"], ["NO", "Yes", "maybe"]),
        (("a", "A"), ["A"], ["a", "A"]),
        (("0", "1"), ["1.0", "1", "7"], ["0", "1"]),
        (("0", "1"), ["1.0", "01"], ["0.0", "1.0"]),
        (("x", "X", "y"), ["Y"], None),
        (("0", "1"), ["0.5"], None),
        (("calm", "glad"), ["0", ""], None),
        ((), ["0"], None),
    ],
)
def test_each_class_is_spelled_as_the_sample_spells_it(classes, sample, spelled):
    expected = None if spelled is None else dict(zip(classes, spelled, strict=True))
    assert spelled_like(classes, sample) == expected


@pytest.mark.parametrize(("label", "says_nothing"), [("", True), (" ? ", True), ("NaN", True), ("0", False)])
def test_a_placeholder_says_nothing_of_the_labels(label: str, says_nothing: bool) -> None:
    assert is_placeholder(label) is says_nothing
