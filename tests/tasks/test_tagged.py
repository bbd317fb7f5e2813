"""The layout ``tokens``: files of tags and of spans, read and written back."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.errors import TaskFileError
from tutti.tasks.layouts.tagged import Tagged, natural_unit
from tutti.tasks.layouts.tags import in_scheme, plain_tags, scheme_of, spans_of_tags, tags_of_spans
from tutti.tasks.units import joined, spans_of, units_of

TEXT = "Anna Smith met Bob (of ACME) in Oslo."
SPANS = [(0, 10, "PER"), (15, 18, "PER"), (23, 27, "ORG"), (32, 36, "LOC")]
SCHEMES = ("", "BI", "BIES", "BMES", "BILU")
TYPES = st.sampled_from(["PER", "ORG", "a type", "B-x"])


def file(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


def rows(layout: Tagged, source: str, *, labelled: bool = True) -> list[tuple[str, list[str] | None]]:
    frame = layout.read(source, labelled=labelled)
    tags = map(json.loads, frame["label"]) if labelled else [None] * len(frame)
    return list(zip(frame["text"], tags, strict=True))


CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\nBlackburn NNP I-PER\n"
READ = [("EU rejects", ["B-ORG", "O"]), ("Peter Blackburn", ["B-PER", "I-PER"])]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.conll", CONLL),
        ("a.txt", CONLL.replace(" ", "\t").replace("\n", "\r\n")),
        ("a.tsv", "EU\tS-ORG\nrejects\tO\n\nPeter\tB-PER\nBlackburn\tE-PER\n\n\n"),
        ("a.bio", "EU ORG\nrejects O\n\nPeter PER\nBlackburn PER"),
        ("a.conll", "EU I-ORG\nrejects O\n\nPeter I-PER\nBlackburn I-PER"),
    ],
)
def test_a_word_a_line_with_its_tag_is_read_in_any_scheme(tmp_path, name, content):
    source = file(tmp_path, name, content)
    assert rows(Tagged(), source) == READ
    assert rows(Tagged(), source, labelled=False) == [(text, None) for text, _ in READ]


def test_columns_of_lines_have_numbers(tmp_path):
    source = file(tmp_path, "a.conll", "1\tEU\tB-ORG\tx\n2\trejects\tO\tx\n")
    assert rows(Tagged(text="2", label="3"), source) == READ[:1]


def test_characters_a_line_are_joined_without_spaces(tmp_path):
    source = file(tmp_path, "a.conll", "男\tO\n \tO\n北\tB-LOC\n京\tE-LOC\n")
    assert rows(Tagged("character"), source) == [("男 北京", ["O", "O", "B-LOC", "I-LOC"])]


ROWS = {
    "tokens": {"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]},
    "text of spaces": {"words": ["EU", "rejects"], "tags": "B-ORG O"},
    "lists": {"text": TEXT, "label": [list(span) for span in SPANS]},
    "objects": {"text": TEXT, "entities": [{"start": a, "end": b, "label": kind} for a, b, kind in SPANS]},
    "Label Studio": {"text": TEXT, "label": [{"start": a, "end": b, "labels": [kind]} for a, b, kind in SPANS]},
    "SQuAD": {"context": TEXT, "answers": {"text": ["Bob"], "answer_start": [15]}},
    "answer": {"text": "I like it O so much", "selected_text": "like it O"},
    "CLUENER": {
        "text": TEXT,
        "label": {
            "PER": {"Anna Smith": [[0, 9]], "Bob": [[15, 17]]},
            "ORG": {"ACME": [[23, 26]]},
            "LOC": {"Oslo": [[32, 35]]},
        },
    },
}


@pytest.mark.parametrize("form", ROWS)
def test_rows_of_json_are_read_and_predictions_are_written_as_they_came(tmp_path, form):
    row = ROWS[form]
    source = file(tmp_path, "a.jsonl", json.dumps(row) + "\n")
    named = {"text": "context", "label": "answers"} if form == "SQuAD" else {}
    named |= {"label": "selected_text"} if form == "answer" else {}
    layout = Tagged(natural_unit(source, named.get("text")), **named)
    ((text, tags),) = rows(layout, source)
    if form in ("SQuAD", "answer"):
        ((start, end, kind),) = spans_of_tags(spans_of(text, "piece"), tags)
        assert (text[start:end], kind) == ("Bob" if form == "SQuAD" else "like it O", "answer")
    elif "text" in row:
        assert text == TEXT
        assert spans_of_tags(spans_of(text, "piece"), tags) == SPANS
    else:
        assert (text, tags) == READ[0]
    label = next(name for name in row if name not in ("text", "tokens", "words", "context"))
    test = file(tmp_path, "test.jsonl", json.dumps({name: cell for name, cell in row.items() if name != label}))
    suffix, content = layout.tagged(test, [tags], like=source)
    expected = {**row, label: row[label].split(" ")} if form == "text of spaces" else row
    assert (suffix, json.loads(content)) == (".jsonl", expected)


@pytest.mark.parametrize("separator", ["\t", " "])
def test_a_test_file_of_lines_gets_tags_in_the_scheme_of_the_training_file(tmp_path, separator):
    train = file(tmp_path, "train.conll", f"EU{separator}S-ORG\n\nPeter{separator}B-PER\nBlackburn{separator}E-PER\n")
    test = file(tmp_path, "test.conll", "Anna\nSmith\n\nsings\n\nOslo\n")
    _, content = Tagged().tagged(test, [["B-PER", "I-PER"], ["O"], ["B-ORG"]], like=train)
    expected = "Anna B-PER\nSmith E-PER\n\nsings O\n\nOslo S-ORG\n"
    assert content.decode() == expected.replace(" ", separator)


def test_a_data_set_s_numbers_are_read_by_their_names(tmp_path):
    names = ["O", "B-ORG", "I-ORG", "B-PER", "I-PER"]
    features = datasets.Features(
        {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(datasets.ClassLabel(names=names))}
    )
    data = datasets.Dataset.from_dict(
        {"tokens": [["EU", "rejects"], ["Peter", "Blackburn"]], "ner_tags": [[1, 0], [3, 4]]}, features=features
    )
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "set"))
    layout = Tagged(dataset=str(tmp_path / "set"))
    assert rows(layout, "train") == READ
    assert len(layout.fingerprint("train")) == 64
    assert layout.tagged("train", [["O", "O"], ["O", "O"]], like="train")[0] == ".jsonl"


@pytest.mark.parametrize("unit", ["word", "character", "piece"])
def test_written_rows_come_back_with_tags_that_are_not_known(tmp_path, unit):
    text = {"word": "EU rejects it", "character": "男 北", "piece": "EU rejects."}[unit]
    frame = Tagged(unit).read(
        file(tmp_path, "a.jsonl", json.dumps({"text": text, "tags": ["B-ORG", None, "O"]})), labelled=True
    )
    Tagged(unit).write(frame, tmp_path / "b.jsonl")
    assert rows(Tagged(unit), str(tmp_path / "b.jsonl")) == [(text, ["B-ORG", None, "O"])]


@given(
    st.lists(st.tuples(st.sampled_from("BIO"), TYPES), min_size=1, max_size=12),
    st.sampled_from(["", "BI", "BIES", "BMES", "BILU"]),
)
def test_tags_written_in_a_scheme_are_read_equal(drawn, scheme):
    tags = plain_tags([role if role == "O" else f"{role}-{kind}" for role, kind in drawn])
    written = in_scheme(tags, scheme)
    again = plain_tags(written)
    if scheme:
        assert again == tags
        assert scheme_of(written) in (scheme, "BI", "BIES", "")
    else:  # neighbours of one type become one, and types that look like tags are taken for these
        assert [tag == "O" for tag in again] == [tag == "O" for tag in tags]


@given(st.data())
def test_marked_spans_of_whole_units_come_back(data):
    words = data.draw(st.lists(st.text("abç1男北.,", min_size=1, max_size=4), min_size=1, max_size=8))
    text = " ".join(words)
    units = spans_of(text, "piece")
    spans, first = [], 0
    while first < len(units):
        last = data.draw(st.integers(first, len(units) - 1))
        if data.draw(st.booleans()):
            spans.append((int(units[first, 0]), int(units[last, 1]), data.draw(TYPES)))
        first = last + 1
    tags, odd = tags_of_spans(units, spans, len(text))
    assert spans_of_tags(units, tags) == spans
    assert not any(odd.values())


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6))
def test_listed_words_come_back_from_their_text(words):
    assert units_of(joined(words, "word"), "word") == [word.replace(" ", "\u00a0") for word in words]


def test_of_several_answers_the_first_counts(tmp_path):
    row = {"text": TEXT, "answers": {"text": ["Anna Smith", "Smith"], "answer_start": [0, 5]}}
    ((_, tags),) = rows(Tagged("piece", label="answers"), file(tmp_path, "a.jsonl", json.dumps(row)))
    assert tags[:3] == ["B-answer", "I-answer", "O"]


def test_only_plain_spaces_and_tabs_stand_between_columns(tmp_path):
    source = file(tmp_path, "a.conll", "10\u00a0000 NUM B-QTY\n\u3000 X O\n")
    assert rows(Tagged(), source) == [("10\u00a0000 \u3000", ["B-QTY", "O"])]


def test_a_text_that_begins_with_a_bracket_is_a_text(tmp_path):
    source = file(tmp_path, "a.jsonl", json.dumps({"text": "[1] Anna", "label": [[4, 8, "PER"]]}))
    assert natural_unit(source, None) == "piece"
    assert rows(Tagged("character"), source)[0][0] == "[1] Anna"


def test_columns_of_a_file_to_predict_that_look_like_labels_are_passed_over(tmp_path):
    source = file(tmp_path, "a.jsonl", json.dumps({"tokens": ["Anna", "sings"], "label": "news"}))
    assert Tagged().notices(source) == ()


def test_lines_get_tags_where_the_training_file_has_spans(tmp_path):
    train = file(tmp_path, "a.jsonl", json.dumps({"text": TEXT, "label": [list(span) for span in SPANS]}))
    test = file(tmp_path, "a.conll", "Anna\nsings\n")
    assert Tagged("piece").tagged(test, [["B-PER", "O"]], like=train)[1] == b"Anna\tB-PER\nsings\tO\n"


def test_what_was_repaired_is_told(tmp_path):
    lines = file(tmp_path, "a.conll", "a I-PER\nb O\nc B-LOC\nd I-PER\n")
    assert Tagged().notices(lines) == (
        f"{lines} has 2 tags going on where no entity of the type has begun: each begins one",
    )
    spans = [[0, 3, "PER"], [2, 9, "PER"], [10, 11, "X"], [12, 14, "LOC"]]
    marked = file(tmp_path, "a.jsonl", json.dumps({"text": "abc defghi  jkl mno", "label": spans}))
    notices = Tagged("piece").notices(marked)
    assert [notice.removeprefix(f"{marked} has ") for notice in notices] == [
        "1 span overlapping an earlier one, left out: `spans: overlapping` keeps those of other types",
        "1 span beginning or ending within a word: the whole word is marked",
        "1 span of white space alone, left out",
    ]


FAULTS = {
    "a tag too few": ({"tokens": ["a", "b"], "tags": ["O"]}, "have a tag for each word; got 1 tags for 2"),
    "outside of the text": ({"text": "abc", "label": [[1, 9, "X"]]}, "have spans within the text"),
    "backwards": ({"text": "abc", "label": [[2, 1, "X"]]}, "the end after the start"),
    "no type": ({"text": "abc", "label": [[0, 1]]}, "have spans as [start, end, type]"),
    "a number": ({"tokens": ["a"], "tags": [3]}, "have the names of tags; got 3"),
    "no labels": ({"tokens": ["a"]}, "have labels; got none"),
    "no text": ({"title": "a", "tags": ["O"]}, "have one of the columns tokens, words, text"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_rows_that_cannot_be_read_are_told_with_their_place(tmp_path, case):
    row, said = FAULTS[case]
    source = file(tmp_path, "a.jsonl", json.dumps(row))
    with pytest.raises(TaskFileError) as caught:
        Tagged(natural_unit(source, None)).read(source, labelled=True)
    assert said in str(caught.value)


def test_a_line_without_a_tag_is_told(tmp_path):
    source = file(tmp_path, "a.conll", "a O\nb\n")
    with pytest.raises(TaskFileError, match=r"line 2 must have a tag beside each word"):
        Tagged().read(source, labelled=True)


def test_whole_numbers_beside_empty_ids_are_spelled_as_whole(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"id": 7.0, "tokens": ["a"], "tags": ["O"]}\n', encoding="utf8")
    assert Tagged().read(str(tmp_path / "rows.jsonl"), labelled=False)["id"].tolist() == ["7"]
