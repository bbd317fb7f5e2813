"""At most one span of a row: the best of all, none below a threshold, and answers scored as by SQuAD's script."""

from __future__ import annotations

import collections
import itertools
import json
import re
import string

import numpy as np
import pytest

from tutti.tasks.kinds.entities import ABSENT, UNKNOWN, entities_of, sure_parts
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.kinds.span import best_spans
from tutti.tasks.layouts.tagged import Tagged
from tutti.tasks.layouts.tags import piece_of
from tutti.tasks.metrics import METRICS
from tutti.tasks.metrics.answers import answer_scores, squad_scores

SPAN, TOKENS = KINDS["span"], KINDS["tokens"]


def outputs_of(rows: int, units: int, *, types: int = 2, seed: int = 0) -> np.ndarray:
    """Rows of several lengths."""
    rng = np.random.default_rng(seed)
    outputs = rng.dirichlet(np.ones(2 * types + 1), (rows, units)).astype(np.float32)
    outputs[np.arange(units) >= rng.integers(1, units + 1, rows)[:, None]] = np.nan
    return outputs


def test_the_best_span_is_that_of_the_highest_product_relative_to_none():
    outputs = outputs_of(40, 6)
    scores, found = best_spans(outputs)
    for row, own in enumerate(outputs):
        length = int((~np.isnan(own[:, 0])).sum())
        logs = np.log(own[:length].astype(np.float64))
        every = {
            (start, end, kind): (logs[start, 2 * kind + 1] - logs[start, 0])
            + (logs[start + 1 : end, 2 * kind + 2] - logs[start + 1 : end, 0]).sum()
            for start, end in itertools.combinations(range(length + 1), 2)
            for kind in range(2)
        }
        best = max(every, key=every.__getitem__)
        assert (found.start[row], found.end[row], found.type[row]) == best
        assert scores[row] == pytest.approx(every[best], abs=1e-4)


def test_rows_without_a_word_have_no_span():
    nothing = np.empty((2, 0, 3), dtype=np.float32)
    assert best_spans(nothing)[0].tolist() == [-np.inf, -np.inf]
    assert SPAN.decide(nothing).shape == TOKENS.decide(nothing).shape == (2, 0)


def test_decisions_have_one_span_where_it_is_likelier_than_none_by_the_threshold():
    outputs = outputs_of(50, 7)
    scores, _ = best_spans(outputs)
    for threshold in (None, np.array([-np.inf]), np.array([0.7])):
        decided = SPAN.decide(outputs, threshold)
        spans = np.bincount(entities_of(decided).row, minlength=50)
        np.testing.assert_array_equal(spans, scores > (0 if threshold is None else threshold[0]))
        np.testing.assert_array_equal(decided == ABSENT, np.isnan(outputs[..., 0]))


@pytest.mark.parametrize("metric", ["token_row_f1", "token_jaccard", "entity_exact_match"])
def test_no_threshold_is_better_than_the_tuned_one(metric):
    outputs = outputs_of(60, 5, types=1)
    labels = SPAN.decide(outputs_of(60, 5, types=1, seed=1), np.array([0.3]))
    labels = np.where(np.isnan(outputs[..., 0]), ABSENT, np.maximum(labels, 0))
    tuned = SPAN.tuner(metric)(outputs, labels)

    def score(decision: np.ndarray | None) -> float:
        return METRICS[metric].score(labels, SPAN.decide(outputs, decision), outputs=3)

    scores, _ = best_spans(outputs)
    best = max(score(np.array([each])) for each in (-np.inf, *scores, np.inf))
    assert score(tuned) == pytest.approx(best)


def test_of_entities_all_units_are_kept_or_none():
    probabilities = np.array([[[0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]]])
    tags = np.array([[1, 2, 0, 1]])
    assert sure_parts(probabilities, tags, 0.8, marks=True).tolist() == [[1, 2, UNKNOWN, UNKNOWN]]
    assert sure_parts(probabilities, tags, 0.65, marks=False).tolist() == [[1, 2, UNKNOWN, UNKNOWN]]


# As the rules of the script of SQuAD 2.0 say it.


def reference(given: str, golds: list[str]) -> tuple[float, float]:
    def normalize(text: str) -> str:
        text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
        return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", text).split())

    def f1(prediction: str, gold: str) -> float:
        found, true = normalize(prediction).split(), normalize(gold).split()
        same = sum((collections.Counter(found) & collections.Counter(true)).values())
        if len(found) == 0 or len(true) == 0:
            return float(found == true)
        if same == 0:
            return 0
        precision, recall = same / len(found), same / len(true)
        return 2 * precision * recall / (precision + recall)

    golds = [gold for gold in golds if normalize(gold)]
    if not golds:
        golds = [""]
    return max(float(normalize(given) == normalize(gold)) for gold in golds), max(f1(given, gold) for gold in golds)


def test_answers_are_scored_as_by_the_script_of_squad():
    words = ["The", "the", "a", "An", "U.S.", "army", "Army", "1,000", "—", "!", "of", "wine", "vin d'été", "", "  "]
    every = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        answers = [" ".join(rng.choice(words, rng.integers(0, 5))) for _ in range(rng.integers(1, 5))]
        given, golds = answers[0], answers[1:]
        assert answer_scores(given, golds) == pytest.approx(reference(given, golds))
        every.append((given, golds))
    means = np.mean([reference(*case) for case in every], axis=0)
    assert squad_scores(*map(list, zip(*every, strict=True))) == pytest.approx(tuple(means))


def test_a_file_as_squad_is_published_has_its_questions_as_rows(tmp_path):
    context = "Paris is the capital of France."
    answer, none = {"text": "Paris", "answer_start": 0}, {"id": "q2", "question": "Which river?", "answers": []}
    first = {"id": "q1", "question": "Which capital?", "answers": [answer, {**answer, "text": "Paris is"}]}
    data = {
        "version": "v2.0",
        "data": [{"title": "France", "paragraphs": [{"context": context, "qas": [first, none]}]}],
    }
    (tmp_path / "train.json").write_text(json.dumps(data))
    rows = Tagged("piece", "context", "answers", "question").read(str(tmp_path / "train.json"), labelled=True)
    assert rows["id"].tolist() == ["q1", "q2"]
    assert rows["text_b"].tolist() == ["Which capital?", "Which river?"]
    assert [piece_of(text, "piece", tags) for text, tags in zip(rows["text"], rows["label"], strict=True)] == [
        "Paris",
        "",
    ]
    assert list(map(json.loads, rows["answers"])) == [["Paris", "Paris is"], []]


def test_tags_that_mark_no_spans_are_read_and_written_as_they_are(tmp_path):
    lines = "The\tDET\ncat\tNOUN\nsleeps\tB-VERB\n\nIt\tPRON\n"
    (tmp_path / "train.conll").write_text(lines)
    (tmp_path / "test.conll").write_text("The\ncat\nsleeps\n\nIt\n")
    layout = Tagged("word", marks=False)
    cells = layout.read(str(tmp_path / "train.conll"), labelled=True)["label"].tolist()
    kind = KINDS["tags"]
    names = kind.names_of(cells)
    assert names == ("B-VERB", "DET", "NOUN", "PRON")
    labels = kind.parse(cells, names)
    assert kind.cells(labels, names) == cells
    written = layout.tagged(
        str(tmp_path / "test.conll"), list(map(json.loads, cells)), like=str(tmp_path / "train.conll")
    )
    assert written == (".conll", lines.encode())


def test_the_macro_f1_of_tags_is_that_of_all_known_units():
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    labels, tags = rng.integers(-2, 4, (30, 6)), rng.integers(0, 5, (30, 6))
    expected = f1_score(labels[labels >= 0], tags[labels >= 0], average="macro", zero_division=0)
    assert METRICS["tag_macro_f1"].score(labels, tags, outputs=5) == pytest.approx(expected)
