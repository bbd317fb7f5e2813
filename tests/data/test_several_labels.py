from __future__ import annotations

import pytest

from tutti.data.several_labels import several_labels


@pytest.mark.parametrize(
    ("names", "separator"),
    [
        (("a", "b", "a|b", "b|c", "a|c"), "|"),
        (("joy;love", "love", "joy; fear", "fear; love"), ";"),
        (("joy, love", "joy, fear", "fear, love"), ","),
        (("a|", "a|b|", "b|c|", "a|c|"), "|"),
    ],
)
def test_classes_made_of_parts_that_recur_look_like_several_labels(names: tuple[str, ...], separator: str) -> None:
    notice = several_labels(names, column="tags")
    assert notice is not None
    assert f"columns: {{labels: tags, separator: {separator!r}}}" in notice


@pytest.mark.parametrize(
    "names",
    [
        ("a", "b", "c", "a|b"),  # most have none
        ("Boston, MA", "New York, NY", "Chicago, IL"),
        ("yes|", "no|"),
        ("news", "sport"),
        (),
    ],
)
def test_names_that_happen_to_hold_a_separator_do_not(names: tuple[str, ...]) -> None:
    assert several_labels(names, column="tags") is None
