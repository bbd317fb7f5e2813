"""Entities of several types that overlap: read, written back, decided by type and scored together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti.tasks.kinds.entities import ABSENT, UNKNOWN, tag_names
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.layouts.tagged import Tagged
from tutti.tasks.metrics import METRICS

KIND, PLAIN = KINDS["overlapping"], KINDS["tokens"]
NAMES = tag_names(("LOC", "ORG"))
TEXT = "Bank of New York opens"
SPANS = [[0, 16, "ORG"], [8, 16, "LOC"]]
FORMS = {
    "lists": SPANS,
    "objects": [{"start": start, "end": end, "labels": [name]} for start, end, name in SPANS],
    "nested": {"LOC": {"New York": [[8, 15]]}, "ORG": {"Bank of New York": [[0, 15]]}},
    "tags": ["B-ORG", "I-ORG", "B-LOC|I-ORG", "I-LOC|I-ORG", "O"],
    "tags of BIOES": ["B-ORG", "I-ORG", "B-LOC|I-ORG", "E-LOC|E-ORG", "O"],
}
READ = [["B-ORG"], ["I-ORG"], ["B-LOC", "I-ORG"], ["I-LOC", "I-ORG"], []]


@pytest.mark.parametrize("form", FORMS)
def test_overlapping_entities_are_read_and_written_as_they_came(tmp_path, form):
    layout = Tagged("piece", text="text", label="marked", overlapping=True)
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    train.write_text(json.dumps({"text": TEXT, "marked": FORMS[form]}) + "\n" + json.dumps({"text": "a", "marked": []}))
    if form.startswith("tags"):
        train.write_text(json.dumps({"text": TEXT, "marked": FORMS[form]}))
    test.write_text(json.dumps({"text": TEXT}))
    cell = layout.read(str(train), labelled=True)["label"][0]
    assert json.loads(cell) == READ
    assert layout.notices(str(train)) == ()
    suffix, content = layout.tagged(str(test), [json.loads(cell)], like=str(train))
    (back,) = map(json.loads, content.decode().splitlines())
    by_place = sorted(back["marked"]) if form == "lists" else back["marked"]
    assert (suffix, by_place) == (".jsonl", sorted(FORMS[form]) if form == "lists" else FORMS[form])


def test_a_word_a_line_has_its_tags_with_a_bar_between(tmp_path):
    layout = Tagged("word", overlapping=True)
    (tmp_path / "train.conll").write_text("Bank B-ORG\nYork B-LOC|I-ORG\nopens O\n")
    (tmp_path / "test.conll").write_text("Bank\nYork\nopens\n")
    cells = layout.read(str(tmp_path / "train.conll"), labelled=True)["label"].tolist()
    assert cells == ['[["B-ORG"], ["B-LOC", "I-ORG"], []]']
    tags = [json.loads(cell) for cell in cells]
    _, content = layout.tagged(str(tmp_path / "test.conll"), tags, like=str(tmp_path / "train.conll"))
    assert content.decode() == "Bank B-ORG\nYork B-LOC|I-ORG\nopens O\n"


def test_of_one_type_overlapping_spans_are_left_out_and_counted(tmp_path):
    layout = Tagged("piece", overlapping=True)
    spans = [*SPANS, [12, 22, "ORG"]]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": TEXT, "label": spans}))
    assert json.loads(layout.read(str(tmp_path / "rows.jsonl"), labelled=True)["label"][0]) == READ
    (notice,) = layout.notices(str(tmp_path / "rows.jsonl"))
    assert "has 1 span overlapping an earlier one" in notice


@st.composite
def labelled_rows(draw: st.DrawFn) -> np.ndarray:
    words = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    rows = []
    for count in words:
        tags = [
            draw(st.sampled_from([0, 2 * lane + 1, 2 * lane + 2, UNKNOWN])) for lane in (0, 1) for _ in range(count)
        ]
        rows.append(tags)
    return KIND._legal(KIND._padded(rows))


@given(labelled_rows())
def test_labels_come_back_from_their_cells(labels):
    np.testing.assert_array_equal(KIND.parse(KIND.cells(labels, NAMES), NAMES), labels)


def test_each_type_is_decided_by_itself_and_all_entities_are_scored_together():
    rng = np.random.default_rng(0)
    alone = rng.dirichlet(np.ones(3), (2, 30, 5)).astype(np.float32)  # of two types
    outputs = np.zeros((30, 10, 5), dtype=np.float32)
    for lane, own in enumerate(alone):
        outputs[:, 5 * lane : 5 * lane + 5, [0, 2 * lane + 1, 2 * lane + 2]] = own
    decided = KIND.decide(outputs)
    by_type = [PLAIN.decide(own) for own in alone]
    for lane, own in enumerate(by_type):
        part = decided[:, 5 * lane : 5 * lane + 5]
        np.testing.assert_array_equal(np.where(part > 0, part - 2 * lane, 0), own)
    labels = KIND.decide(outputs[rng.permutation(30)])
    metric = METRICS["entity_macro_f1"]
    scores = [
        METRICS["entity_f1"].score(
            np.where(labels > 0, labels - 2 * lane, 0)[:, 5 * lane : 5 * lane + 5], own, outputs=3
        )
        for lane, own in enumerate(by_type)
    ]
    assert metric.score(labels, decided, outputs=5) == pytest.approx(np.mean(scores))


def test_entities_are_told_with_the_words_of_each():
    decided = np.array([0, 1, 2, 3, 4, 4, ABSENT])
    assert KIND.text(decided, NAMES) == "LOC 2-3, ORG 1-3"
    assert KIND.spell(decided[None], NAMES) == ["B-ORG B-LOC|I-ORG I-LOC|I-ORG"]
