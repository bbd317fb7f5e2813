"""The kinds' own arrays: shapes, missing labels, decisions and their tuning, units of probability, texts of labels."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tutti.tasks.kinds.cells import LabelCells
from tutti.tasks.kinds.choice import possible
from tutti.tasks.kinds.probabilities import known
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.metrics import METRICS
from tutti.tasks.metrics.registry import Metric
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task

NAMES = {
    "classes": ("a", "b", "c"),
    "ordered": ("1", "2", "3"),
    "choice": ("A", "B", "C"),
    "labels": ("joy", "love, deep", "怒"),
    "value": (),
    "values": ("valence", "arousal"),
    "preference": ("better", "worse"),
    "text": (),
    "tokens": ("O", "B-a", "I-a"),
    "overlapping": ("O", "B-a", "I-a"),  # of one type, as many units as words
    "span": ("O", "B-a", "I-a"),
    "tags": ("DET", "NOUN", "VERB"),
}
NUMBERS = ("value", "values", "preference")
PROBABILISTIC = [name for name, kind in KINDS.items() if kind.probabilistic]
floats = st.floats(-1e6, 1e6, width=32)


def outputs_of(kind: str, rows: int = 6, *, members: int | None = None, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    front = () if members is None else (members,)
    if KINDS[kind].sequential:
        return rng.dirichlet([1, 1, 1], (*front, rows, 4)).astype(np.float32)
    shape = (*front, *KINDS[kind].shape(rows, len(NAMES[kind]) or 1))
    if kind == "text":
        return rng.choice(np.array(["a", "b c", "d e f"], dtype=object), size=shape)
    if kind == "labels":
        return rng.random(shape, dtype=np.float32)
    if kind in NUMBERS:
        return rng.normal(size=shape).astype(np.float32)
    return rng.dirichlet([1, 1, 1], shape[:-1]).astype(np.float32)


def labels_of(kind: str, rows: int = 6, *, seed: int = 1) -> np.ndarray:
    if kind == "preference":
        return np.zeros(rows, dtype=np.int64)
    decided = KINDS[kind].decide(outputs_of(kind, rows, seed=seed))
    numbers = not (KINDS[kind].exclusive or KINDS[kind].generative or KINDS[kind].sequential)
    labels = decided.astype(np.float32) if numbers else decided
    if kind in ("labels", "values"):
        labels[0, 1] = np.nan
    return labels


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_labels_of_the_kind_s_shape_have_no_fault(kind):
    outputs, labels, names = outputs_of(kind), labels_of(kind), NAMES[kind]
    assert KINDS[kind].fault(outputs, labels, names) is None
    assert KINDS[kind].fault(outputs, None, names) is None
    assert KINDS[kind].fault(np.full_like(outputs, np.nan), labels, names)
    assert KINDS[kind].fault(outputs[:, None], None, names)
    assert KINDS[kind].fault(outputs, labels[:-1], names)
    if KINDS[kind].probabilistic:
        assert KINDS[kind].fault(outputs + 1, None, names)


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_have_the_shape_of_labels_with_members_in_front(kind):
    own = KINDS[kind]
    shape = (6, 2) if own.comparative else labels_of(kind).shape
    assert own.decide(outputs_of(kind)).shape == shape
    votes = outputs_of(kind, members=4)
    decided = own.decide(votes)
    assert decided.shape == (4, *shape)
    assert np.array_equal(decided[2], own.decide(votes[2]))


@pytest.mark.parametrize("kind", KINDS)
def test_members_differ_by_nothing_from_themselves_and_by_more_from_others(kind):
    own, votes = KINDS[kind], outputs_of(kind, 50, members=2)
    one, other = own.decide(votes)
    assert own.difference(one, one) == pytest.approx(0, abs=1e-6)
    assert 0 < own.difference(one, other) <= (2 if kind in NUMBERS else 1)
    disagreement = own.disagreement(votes)
    assert disagreement.shape == (50,)
    assert (disagreement > 0).any()
    np.testing.assert_allclose(own.disagreement(votes[[0, 0]]), 0, atol=1e-6)
    assert own.same(votes[[0, 0]]).all() == (kind not in ("value", "values"))


@pytest.mark.parametrize("kind", PROBABILISTIC)
def test_units_of_probability_go_back_to_outputs(kind):
    own, outputs = KINDS[kind], outputs_of(kind)
    units = own.distributions(outputs)
    np.testing.assert_allclose(units.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_array_equal(own.from_distributions(units, len(outputs)), outputs)
    votes = outputs_of(kind, members=3)
    np.testing.assert_array_equal(own.from_distributions(own.distributions(votes), 6), votes)


@pytest.mark.parametrize("kind", PROBABILISTIC)
def test_truths_say_which_alternative_of_each_unit_is_right_and_what_is_unknown(kind):
    own, labels = KINDS[kind], labels_of(kind)
    held = np.eye(3)[labels] if own.sequential else own.held(labels, 3)
    units, truths = own.distributions(held.astype(np.float32)), own.truths(labels)
    assert len(truths) == len(units)
    assert (units[truths >= 0].argmax(axis=1) == truths[truths >= 0]).all()
    assert (truths < 0).sum() == (1 if kind == "labels" else 0)
    assert (~known(own, labels)).sum() == (truths < 0).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_missing_labels_do_not_count_for_the_loss(kind):
    own, outputs, labels = KINDS[kind], outputs_of(kind), labels_of(kind)
    loss = own.loss(outputs, labels)
    assert np.isfinite(loss)
    if kind in ("labels", "values"):
        changed = outputs.copy()
        changed[0, 1] = 0.01
        assert own.loss(changed, labels) == pytest.approx(loss)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_can_be_dealt_by_strata(kind):
    own, labels = KINDS[kind], labels_of(kind, 40)
    assert own.strata(labels).shape == (40,)
    assert np.isfinite(own.strata(labels)).all()
    indicators = own.indicators(labels)
    assert indicators.shape[0] == 40
    assert set(np.unique(indicators)) <= {0, 1}
    counted = own.counted_strata(labels)
    assert (counted is None) == (kind in (*NUMBERS, "text", "tokens", "overlapping", "span", "tags"))


# What files have


@given(arrays(np.int8, st.tuples(st.integers(1, 8), st.just(3)), elements=st.integers(0, 1)))
def test_several_labels_are_read_as_they_were_written(decided):
    own, names = KINDS["labels"], NAMES["labels"]
    cells = own.cells(decided, names)
    assert all(own.cell_fault(cell) is None for cell in cells)
    assert own.names_of(cells) == names
    np.testing.assert_array_equal(own.parse(cells, names), decided)


@given(arrays(np.float32, st.tuples(st.integers(1, 8), st.just(2)), elements=floats))
def test_several_numbers_are_read_as_they_were_written(values):
    own, names = KINDS["values"], NAMES["values"]
    cells = own.cells(values, names)
    assert all(own.cell_fault(cell) is None for cell in cells)
    assert own.names_of(cells) == names
    np.testing.assert_array_equal(own.parse(cells, names), values)
    assert [list(row.values()) for row in own.spell(values, names)] == [[float(str(x)) for x in row] for row in values]


@given(arrays(np.float32, st.integers(1, 8), elements=floats))
def test_numbers_are_read_as_they_were_written(values):
    own = KINDS["value"]
    np.testing.assert_array_equal(own.parse(own.cells(values, ()), ()), values)


@given(arrays(np.int64, st.integers(1, 8), elements=st.integers(0, 2)))
def test_classes_are_read_as_they_were_written(decided):
    for kind in ("classes", "ordered"):
        own, names = KINDS[kind], NAMES[kind]
        np.testing.assert_array_equal(own.parse(own.cells(decided, names), names), decided)


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_no_rows_are_no_cells(kind):
    own, names = KINDS[kind], NAMES[kind]
    empty = np.empty((0, len(names)), dtype=np.float32)
    assert own.cells(empty, names) == own.spell(own.decide(empty), names) == []
    assert own.parse([], names).shape == empty.shape


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_an_empty_cell_is_a_missing_label(kind):
    own, names = KINDS[kind], NAMES[kind]
    cell = json.dumps(dict.fromkeys(names, "") | {names[0]: "1"})
    assert own.cell_fault(cell) is None
    np.testing.assert_array_equal(own.parse([cell], names), [[1, *[np.nan] * (len(names) - 1)]])
    np.testing.assert_array_equal(own.parse(own.cells(own.parse([cell], names), names), names)[0, 1:], np.nan)


def test_a_list_has_the_labels_that_it_names():
    own = KINDS["labels"]
    cells = ['["joy", "fear"]', "[]", '["fear"]']
    assert own.names_of(cells) == ("fear", "joy")
    assert own.parse(cells, ("fear", "joy")).tolist() == [[1, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize(("kind", "cell", "rule"), [("labels", "2", "0, 1 or nothing"), ("values", "x", "a number")])
def test_a_cell_that_is_no_label_is_a_fault_that_names_its_column(kind, cell, rule):
    fault = KINDS[kind].cell_fault(json.dumps({"joy": cell}))
    assert fault is not None
    assert rule in fault[0]
    assert "'joy'" in fault[0]


@pytest.mark.parametrize("kind", ["labels", "values"])
def test_a_column_with_one_label_throughout_is_a_fault(kind):
    cells = [json.dumps({"a": "1", "b": str(row % 2)}) for row in range(4)]
    (fault,) = KINDS[kind].label_faults(LabelCells("train.csv", cells), ("a", "b"))
    assert "'a'" in str(fault)


# Parameters of decisions


def simulated(rows: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of three rare labels that are known with noise, and the labels, of which one in ten is missing."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-2.2, 1.2, (rows, 3))
    labels = (rng.random((rows, 3)) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    labels[rng.random((rows, 3)) < 0.1] = np.nan
    return (1 / (1 + np.exp(-logits))).astype(np.float32), labels


@pytest.mark.parametrize("metric", ["macro_f1", "micro_f1", "samples_f1", "macro_f2", "weighted_f1"])
def test_thresholds_raise_the_score_of_labels_on_other_rows(metric):
    own, function = KINDS["labels"], METRICS[metric]
    probabilities, labels = simulated(1000, seed=0)
    tune = own.tuner(metric)
    assert tune is not None
    decision = tune(probabilities, labels)
    fresh, truth = simulated(3000, seed=1)
    plain, tuned = (function.score(truth, own.decide(fresh, each), outputs=3) for each in (None, decision))
    assert tuned > plain + 0.02


@pytest.mark.parametrize("name", ["macro_f1_score", "macro_f1", "macro_fbeta"])
def test_a_metric_of_the_users_own_tunes_no_thresholds_whatever_its_name(name):
    own = Metric(
        name=name,
        needs="decisions",
        kinds=("labels",),
        higher_is_better=True,
        lowest=None,
        highest=None,
        compute=lambda labels, decided, *, outputs: 0.5,
    )
    task = Task("tags", ("a", "b", "c"), pair=False, metric=name, submission="csv", kind_name="labels")
    assert Scorer.of(task, own).tuner is None


def test_micro_f1_of_classes_needs_no_offsets_as_it_is_the_accuracy():
    assert KINDS["classes"].tuner("micro_f1") is None


def test_a_model_of_labels_alone_is_scored_at_the_thresholds_that_fit_its_rows():
    task = Task("tags", ("a", "b", "c"), pair=False, metric="macro_f1", submission="csv", kind_name="labels")
    probabilities, labels = simulated(1000, seed=0)
    faint = (probabilities / 3).astype(np.float32)  # as good a model, but none of its probabilities is near 0.5
    scorer = Scorer.of(task)
    assert scorer(labels, scorer.judged(faint)) < 0.01
    assert scorer.score(labels, faint) == pytest.approx(scorer.score(labels, probabilities), abs=0.01)
    assert scorer.score(labels, faint) > scorer(labels, scorer.judged(probabilities))


def test_cut_points_raise_kappa_of_ordered_classes_on_other_rows():
    own, function = KINDS["ordered"], METRICS["quadratic_kappa"]

    def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        labels = rng.choice(4, rows, p=[0.7, 0.15, 0.1, 0.05])
        seen = labels + rng.normal(0, 1, rows)
        likelihood = np.exp(-0.5 * (seen[:, None] - np.arange(4)) ** 2) * [0.7, 0.15, 0.1, 0.05]
        return (likelihood / likelihood.sum(axis=1, keepdims=True)).astype(np.float32), labels

    tune = own.tuner("quadratic_kappa")
    assert tune is not None
    decision = tune(*drawn(1500, 0))
    assert decision is not None
    assert decision.shape == (3,)
    fresh, truth = drawn(4000, 1)
    plain, tuned = (function.score(truth, own.decide(fresh, each), outputs=4) for each in (None, decision))
    assert tuned > plain + 0.02
    names = ("low", "mid", "high", "top")
    assert list(own.decision_by_name(names, decision)) == ["low | mid", "mid | high", "high | top"]
    assert own.decision_text(names, decision).startswith("cut points of the mean index: low | mid 0.")


def test_a_card_says_how_decisions_are_made():
    labels, names = KINDS["labels"], tuple(f"l{number}" for number in range(8))
    assert labels.decision_text(names, None) == "each label from 0.5 on"
    assert labels.decision_text(names, np.full(8, 0.31)) == "each label from 0.31 on"
    few = labels.decision_text(names, np.linspace(0.1, 0.8, 8))
    assert few == "thresholds: l0 0.1, l1 0.2, l2 0.3, l3 0.4, l4 0.5, and 3 more"
    assert KINDS["classes"].decision_text(("a", "b"), np.array([0.0, 0.25])) == "offsets: b +0.25"
    assert KINDS["ordered"].decision_text(("a", "b"), None) == "the likeliest"
    assert KINDS["values"].decision_text(("a",), None) == "the values"


def test_candidates_that_no_member_gives_a_probability_have_none_in_any_vote():
    votes = np.array([[[0.5, 0.5, 0], [0.2, 0.3, 0.5]], [[1, 0, 0], [0.1, 0.2, 0.7]]], dtype=np.float32)
    mixed = np.array([[0.4, 0.4, 0.2], [0.2, 0.2, 0.6]])
    np.testing.assert_allclose(possible(mixed, votes), [[0.5, 0.5, 0], [0.2, 0.2, 0.6]])
