from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pandas import DataFrame

from tutti.data.clean import clean_text, drop_duplicates, text_groups_of
from tutti.errors import ConfigError


def clean(text: str, **steps: Any) -> str:
    return clean_text(text, **{"emoji": None, "emoticons": False, "repeated_punctuation": False, **steps})


PIECES = [
    "[",
    "]",
    "😂",
    "👍🏽",
    "👩‍❤️‍👨",
    "🇨🇳",
    "❤️",
    "‼",
    "1",
    "a",
    "好",
    "!",
    "！",
    " ",
    "_",
    "\u200d",
    "\ufe0f",
    "[生病]",
    "[ok]",
]


@given(
    text=st.lists(st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"])), min_size=1).map(
        "".join
    ),
    emoji=st.sampled_from([None, "zh", "en"]),
    emoticons=st.booleans(),
    repeated_punctuation=st.booleans(),
)
@example(text="\ufe0f", emoji="zh", emoticons=False, repeated_punctuation=False)
def test_cleaning_twice_changes_nothing_and_never_empties_a_text(text: str, **steps: Any) -> None:
    once = clean(text, **steps)
    assert clean(once, **steps) == once
    assert bool(once.strip()) >= bool(text.strip())


@given(st.text())
def test_with_every_step_off_a_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "language", "cleaned"),
    [
        ("太好😂了", "zh", "太好笑哭了了"),
        ("so good😂!", "en", "so good face with tears of joy !"),
        ("👍👍", "en", "thumbs up thumbs up"),
        ("love🪅party", "en", "love piñata party"),
        ("go🇨🇮team", "en", "go Côte d’Ivoire team"),
        ("  two  spaces stay", "en", "  two  spaces stay"),
        ("❤️", "zh", "红心"),
    ],
)
def test_emoji_become_words_that_read_as_text(text: str, language: str, cleaned: str) -> None:
    assert clean(text, emoji=language) == cleaned


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("我[生病]了", "我生病了"),
        ("[中国赞][中国赞]", "中国赞中国赞"),
        ("[good][good]", "good good"),
        ("[[生病]]", "生病"),
        ("see [12] and [a b] and []", "see [12] and [a b] and []"),
    ],
)
def test_bracketed_emoticons_lose_their_brackets(text: str, cleaned: str) -> None:
    assert clean(text, emoticons=True) == cleaned


def test_the_separator_of_a_template_is_no_emoticon() -> None:
    assert clean("title [SEP] [lol] body", emoticons=True) == "title [SEP] lol body"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("！！！", "！"),
        ("wait...", "wait."),
        ("什么？！？！", "什么？！？！"),
        ("aaa 111 $$$", "aaa 111 $$$"),
        ("!!--((x))", "!-(x)"),
    ],
)
def test_runs_of_the_same_mark_become_one(text: str, cleaned: str) -> None:
    assert clean(text, repeated_punctuation=True) == cleaned


def test_marks_that_are_doubled_by_rule_stay_and_a_list_says_which_marks_become_one() -> None:
    text = "真的……——//@某人: !!,, http://a.b"
    assert clean(text, repeated_punctuation=True) == "真的……——//@某人: !, http://a.b"
    assert clean(text, repeated_punctuation=[","]) == "真的……——//@某人: !!, http://a.b"
    assert clean("[[哈] [12]]", brackets=True) == "哈 12"


def test_emoji_become_the_words_of_a_table_of_ones_own(tmp_path) -> None:
    table = tmp_path / "emoji.json"
    table.write_text('{"😂": "笑哭", "❤️": "心"}', encoding="utf8")
    assert clean("好😂❤️👍", emoji=str(table)) == "好笑哭心👍"
    (tmp_path / "again.json").write_text('{"😂": "[😂]"}', encoding="utf8")
    with pytest.raises(ConfigError, match="be a JSON object of emoji"):
        clean("😂", emoji=str(tmp_path / "again.json"))


def test_of_rows_with_the_same_texts_and_label_the_first_stays() -> None:
    rows = DataFrame(
        [("0", "a", "b", "1"), ("1", "a", "b", "1"), ("2", "a", "b", "0"), ("3", "a", "c", "1"), ("4", "a", "b", "1")],
        columns=["id", "text", "text_b", "label"],
    )
    assert drop_duplicates(rows)["id"].tolist() == ["0", "2", "3"]


def test_the_same_texts_have_the_same_number_in_all_tasks() -> None:
    groups = text_groups_of(
        {
            "one": DataFrame({"text": ["a", "b", "a"]}),
            "pair": DataFrame({"text": ["a", "b", "b"], "text_b": ["", "a", "a"]}),
            "none": DataFrame({"text": [], "text_b": []}, dtype="str"),
        }
    )
    assert {name: numbers.tolist() for name, numbers in groups.items()} == {
        "one": [0, 1, 0],
        "pair": [0, 2, 2],
        "none": [],
    }
