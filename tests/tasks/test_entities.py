"""Entities in tags: as seqeval finds and counts them, the best legal path, thresholds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2

from tutti.tasks.kinds.entities import ABSENT, UNKNOWN, best_paths, entities_of, repaired, sureness, tag_names, without
from tutti.tasks.kinds.entity_thresholds import tune_entities
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS

NAMES = tag_names(["LOC", "ORG", "PER"])
CASES = range(200)


def random_tags(rng: np.random.Generator, rows: int = 4, units: int = 9) -> np.ndarray:
    """Tags of which half are O, legal or not; rows differ in length."""
    tags = np.where(rng.random((rows, units)) < 0.5, 0, rng.integers(1, len(NAMES), (rows, units)))
    tags[np.arange(units) >= rng.integers(1, units + 1, rows)[:, None]] = ABSENT
    return tags


def spelled(tags: np.ndarray) -> list[list[str]]:
    return [[NAMES[tag] for tag in row if tag >= 0] for row in tags]


def test_entities_are_those_of_seqeval():
    for seed in CASES:
        tags = random_tags(np.random.default_rng(seed))
        found = entities_of(tags)
        ours = list(zip(found.row, found.type, found.start, found.end - 1, strict=True))
        theirs = [
            (row, ["LOC", "ORG", "PER"].index(kind), start, end)
            for row, own in enumerate(spelled(tags))
            for kind, start, end in get_entities(own)
        ]
        assert ours == theirs
        again = entities_of(repaired(tags))
        assert np.array_equal(again.keys, found.keys)


def test_f_scores_are_those_of_seqeval_by_both_of_its_rules():
    for seed in CASES:
        rng = np.random.default_rng(seed)
        labels = random_tags(rng)
        tags = np.where(rng.random(labels.shape) < 0.6, labels, random_tags(rng))
        tags = np.where(labels == ABSENT, ABSENT, np.maximum(tags, 0))
        labels, tags = repaired(labels), repaired(tags)
        true, found = spelled(labels), spelled(tags)
        if not any({*row} - {"O"} for row in (*true, *found)):
            continue
        for average, name in (("micro", "entity_f1"), ("macro", "entity_macro_f1")):
            score = METRICS[name].score(labels, tags, outputs=len(NAMES))
            assert score == pytest.approx(f1_score(true, found, average=average, zero_division=0))
            strict = f1_score(true, found, average=average, mode="strict", scheme=IOB2, zero_division=0)
            assert score == pytest.approx(strict)
        precision, recall = (each(true, found, zero_division=0) for each in (precision_score, recall_score))
        beyond = 26 * precision * recall / max(25 * precision + recall, 1e-12)
        assert METRICS["entity_f5"].score(labels, tags, outputs=len(NAMES)) == pytest.approx(beyond)


def test_metrics_of_units_count_tags_and_types():
    labels = np.array([[1, 2, 0, 3, -1], [0, 5, -2, 0, 0]])
    tags = np.array([[1, 1, 0, 4, 7], [0, 5, 3, 3, 0]])
    score = {name: METRICS[name].score(labels, tags, outputs=7) for name in METRICS if "tokens" in METRICS[name].kinds}
    assert score["tag_accuracy"] == pytest.approx(5 / 8)
    assert score["tag_f1"] == pytest.approx(2 * 2 / (4 + 5))
    assert score["token_f1"] == pytest.approx(2 * 4 / (4 + 5))
    assert score["token_jaccard"] == pytest.approx((3 / 3 + 1 / 2) / 2)
    assert score["token_row_f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert score["entity_exact_match"] == 0
    assert METRICS["entity_exact_match"].score(labels, np.where(labels < 0, 0, labels), outputs=7) == 1


def test_the_best_path_is_the_likeliest_of_all_legal_ones():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(5), (40, 4)).astype(np.float32)
    probabilities[::3, 3] = np.nan
    paths = best_paths(probabilities)
    legal = np.array(
        [path for path in itertools.product(range(5), repeat=4) if (repaired(np.array([path])) == path).all()]
    )
    for row, path in zip(probabilities, paths, strict=True):
        units = int((~np.isnan(row[:, 0])).sum())
        scores = np.log(row[np.arange(units), legal[:, :units]]).sum(axis=1)
        assert np.array_equal(path[:units], legal[scores.argmax(), :units])
        assert (path[units:] == ABSENT).all()


def test_an_outside_below_zero_finds_more_entities():
    probabilities = np.array([[[0.6, 0.4, 0.0], [0.9, 0.1, 0.0]]])
    assert best_paths(probabilities).tolist() == [[0, 0]]
    assert best_paths(probabilities, -0.7).tolist() == [[1, 0]]


def test_unsure_entities_are_taken_out_whole():
    tags = np.array([[1, 2, 0, 3]], dtype=np.int16)
    probabilities = np.zeros((1, 4, 5))
    probabilities[0, [0, 1, 3], [1, 2, 3]] = (0.9, 0.3, 0.8)
    found = entities_of(tags)
    sure = sureness(probabilities, found)
    np.testing.assert_allclose(sure, [0.6, 0.8])
    assert without(tags, found, sure < 0.7).tolist() == [[0, 0, 0, 3]]


@pytest.mark.parametrize("metric", ["entity_f1", "entity_macro_f1", "entity_f5"])
def test_tuned_decisions_of_a_model_that_finds_too_little_score_better(metric):
    rng = np.random.default_rng(1)
    labels = repaired(random_tags(rng, rows=60))
    noise = rng.dirichlet(np.full(len(NAMES), 0.3), labels.shape)
    outputs = (0.35 * np.eye(len(NAMES))[np.maximum(labels, 0)] + 0.65 * noise).astype(np.float32)
    outputs[..., 0] += 0.4  # a model that says O too often
    outputs /= outputs.sum(axis=-1, keepdims=True)
    outputs[labels == ABSENT] = np.nan
    kind = KINDS["tokens"]
    decision = kind.tuner(metric)(outputs, labels)

    def score(parameters):
        return METRICS[metric].score(labels, kind.decide(outputs, parameters), outputs=len(NAMES))

    assert decision is not None
    assert score(decision) > score(None) + 0.02
    assert decision[0] < 0


def test_unknown_tags_never_make_tuned_decisions_worse_than_plain_ones():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = repaired(random_tags(rng, rows=30))
        outputs = rng.dirichlet(np.full(len(NAMES), 0.3), labels.shape).astype(np.float32)
        outputs[labels == ABSENT] = np.nan
        labels[(labels >= 0) & (rng.random(labels.shape) < 0.3)] = UNKNOWN
        kind, metric = KINDS["tokens"], METRICS["entity_f1"]
        decision = tune_entities(outputs, labels, beta=1, macro=False)
        tuned, plain = (
            metric.score(labels, kind.decide(outputs, each), outputs=len(NAMES)) for each in (decision, None)
        )
        assert tuned >= plain


def test_perfect_predictions_need_no_parameters():
    labels = repaired(random_tags(np.random.default_rng(2), rows=20))
    outputs = np.eye(len(NAMES), dtype=np.float32)[np.maximum(labels, 0)]
    outputs[labels == ABSENT] = np.nan
    assert tune_entities(outputs, labels, beta=1, macro=False) is None
