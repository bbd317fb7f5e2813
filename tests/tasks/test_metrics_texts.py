"""Metrics of texts equal those of the libraries, and perplexity its definition."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from tutti.errors import ConfigError
from tutti.tasks.kinds.text import texts_array
from tutti.tasks.metrics import METRICS, check_fits, texts

WORDS = ["the", "cats", "running", "ran", "好", "天气", "3.5", "it's", "a", "of,", "to", "Über", "…"]


def cases(count: int = 200, seed: int = 0) -> tuple[list[str], list[str]]:
    """Labels, and texts that keep most of their words."""
    rng = random.Random(seed)
    labels, written = [], []
    for _ in range(count):
        words = rng.choices(WORDS, k=rng.randint(1, 12))
        other = [rng.choice(WORDS) if rng.random() < 0.3 else word for word in words]
        labels.append(" ".join(words))
        written.append(" ".join(other[rng.randint(0, 1) :]))
    return labels, written


def score(name: str, labels: list[str], written: list[str]) -> float:
    return METRICS[name].score(texts_array(labels), texts_array(written), outputs=1)


@pytest.mark.parametrize(("name", "variant"), [("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL")])
def test_rouge_is_the_mean_f1_of_rouge_score(name: str, variant: str) -> None:
    labels, written = cases()
    scorer = RougeScorer([variant], use_stemmer=True)
    each = [scorer.score(one, other)[variant].fmeasure for one, other in zip(labels, written, strict=True)]
    assert score(name, labels, written) == pytest.approx(np.mean(each), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "reference"), [("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)], ids=["bleu", "chrf"]
)
def test_bleu_and_chrf_are_those_of_sacrebleu_over_all_rows(name: str, reference) -> None:
    for seed, count in ((0, 200), (1, 7), (2, 200)):
        labels, written = cases(count, seed)
        assert score(name, labels, written) == pytest.approx(reference(written, [labels]).score, abs=1e-9)


def test_bleu_of_one_row_is_that_of_a_sentence() -> None:
    for label, written in zip(*cases(50, seed=3), strict=True):
        expected = sacrebleu.sentence_bleu(written, [label]).score
        assert score("bleu", [label], [written]) == pytest.approx(expected, abs=1e-9)


def test_a_match_is_exact_apart_from_white_space_around_it() -> None:
    assert score("exact_match", ["a b", "c", "d"], [" a b\n", "C", "d e"]) == pytest.approx(1 / 3)


def test_perplexity_is_that_of_all_tokens_and_better_where_it_is_lower() -> None:
    likelihoods = np.array([[-6.0, 3], [-1.0, 4]], dtype=np.float32)
    found = METRICS["perplexity"].score(texts_array(["a", "b"]), likelihoods, outputs=1)
    assert found == pytest.approx(-np.exp(7 / 7))
    assert METRICS["perplexity"].raw(found) == pytest.approx(np.e)


def test_bits_of_a_character_do_not_depend_on_the_number_of_tokens() -> None:
    metric, labels = METRICS["bits_per_character"], texts_array(["abc", "d"])
    for tokens in (3, 30):
        found = metric.raw(metric.score(labels, np.array([[-6.0, tokens], [-1.0, 4]], np.float32), outputs=1))
        assert found == pytest.approx(7 / np.log(2) / 4)


@pytest.mark.parametrize("name", ["rouge_1", "rouge_2", "rouge_l", "bleu", "chrf", "exact_match"])
def test_texts_that_are_right_have_the_highest_score_and_empty_ones_the_lowest(name: str) -> None:
    metric, labels = METRICS[name], ["one two three four five", "six seven eight nine"]
    assert score(name, labels, labels) == pytest.approx(metric.highest)
    assert score(name, labels, ["", ""]) == metric.lowest == 0


@pytest.mark.parametrize(("name", "package"), [("rouge_l", "rouge_score.rouge_scorer"), ("chrf", "sacrebleu.metrics")])
def test_a_package_that_is_missing_is_told_before_anything_is_trained(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for made in (texts._rouge, texts._counts, texts._rouge_scorer, texts._corpus_metric):
        made.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"must have the package .* pip install 'tutti\[text\]'"):
        check_fits(METRICS[name], "text", outputs=1, what="tasks.answers.report")
