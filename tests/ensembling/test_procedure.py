from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scorers import of_classes, of_values
from sklearn.metrics import f1_score

from tutti.ensembling.calibrate import expected_calibration_error
from tutti.ensembling.methods.registry import METHODS, Entry
from tutti.ensembling.procedure import Ballot, Procedure, auto_methods, out_of_fold
from tutti.ensembling.select import Selection
from tutti.tasks.kinds.registry import KINDS
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task

TUNE = KINDS["classes"].tuner("macro_f1")


@of_classes
def accuracy(labels: np.ndarray, decisions: np.ndarray) -> float:
    return float((labels == decisions).mean())


@of_classes
def macro_f1(labels: np.ndarray, decisions: np.ndarray) -> float:
    return float(f1_score(labels, decisions, labels=[0, 1, 2], average="macro", zero_division=0))


@of_values
def pearson(labels: np.ndarray, values: np.ndarray) -> float:
    return float(np.corrcoef(labels, values)[0, 1])


def ballot(seed: int = 0, *, members: int = 6, rows: int = 200, skill: float = 1.5, shared: float = 0.0) -> Ballot:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=rows)
    logits = rng.normal(size=(members, rows, 3)) + shared * rng.normal(size=(rows, 3))
    logits[:, np.arange(rows), labels] += skill
    exp = np.exp(logits)
    return Ballot((exp / exp.sum(axis=2, keepdims=True)).astype(np.float32), labels, accuracy, np.arange(len(labels)))


def procedure(of: Ballot, *methods: str, top: int | None = None, **changes) -> Procedure:
    plain = {"standing": of.scores, "share": 1.0, "methods": methods or ("uniform",)}
    return Procedure(**{"selection": Selection(top), **plain, **changes})


@pytest.mark.parametrize("name", METHODS)
def test_uninformative_members_score_at_chance_however_they_are_chosen(name):
    """The worst case for optimism: many members, few rows, random labels."""
    honest, optimistic = [], []
    for seed in range(6):
        votes = ballot(seed, members=30, rows=60, skill=0)
        rule = procedure(votes, name, top=5)
        ensemble = rule.fit(votes)
        optimistic.append(accuracy(votes.labels, ensemble.decide(ensemble.combine(votes.votes[ensemble.voters]))))
        honest.append(votes.judge(out_of_fold(rule, votes).decisions).score)
    assert np.mean(honest) == pytest.approx(1 / 3, abs=0.06)
    assert np.mean(optimistic) > 1 / 3 + 0.08


def test_the_honest_score_of_the_best_member_is_that_of_new_rows_and_its_own_score_is_not():
    honest, own, new = [], [], []
    for seed in range(20):
        every = ballot(seed, members=20, rows=2100, skill=1.0)
        votes = Ballot(every.votes[:, :100], every.labels[:100], accuracy, np.arange(100))
        rule = procedure(votes, top=1)
        best = int(rule.fit(votes).voters[0])
        own.append(votes.scores[best])
        honest.append(votes.judge(out_of_fold(rule, votes).decisions).score)
        new.append(accuracy(every.labels[100:], every.decisions[best, 100:]))
    assert np.mean(honest) == pytest.approx(np.mean(new), abs=0.02)
    assert np.mean(own) > np.mean(new) + 0.04


def test_texts_held_out_in_one_task_have_no_part_in_the_ranking_by_another():
    """Every trial errs on the same texts in both tasks, and all trials are equally good."""
    flattery = []
    for seed in range(40):
        first = ballot(seed, members=20, rows=100, skill=1.0)
        twin = Ballot(first.votes[:, ::-1], first.labels[::-1], accuracy, first.groups[::-1])  # its rows lie otherwise
        standing = (first.scores + twin.scores) / 2
        rule = procedure(first, top=1, standing=standing, share=0.5, others=partial(list, [twin]))
        flattery.append(first.judge(out_of_fold(rule, first).decisions).score - first.scores.mean())
        alone = Ballot(twin.votes, twin.labels, accuracy, twin.groups + 100)
        texts_of_its_own = procedure(first, top=1, standing=standing, share=0.5, others=partial(list, [alone]))
        ensembles = [each.fit(first, np.arange(80)) for each in (rule, texts_of_its_own)]
        by_twins = first.scores_on(np.arange(80))
        assert by_twins[ensembles[0].voters[0]] == by_twins.max()
        assert ensembles[1].voters[0] == np.argmax((by_twins + alone.scores) / 2)
    assert np.mean(flattery) == pytest.approx(0, abs=0.025)


def test_trials_are_ranked_on_fewer_rows_as_the_tasks_are_weighed():
    for seed in range(10):
        first, second = (ballot(seed + shift, members=20, rows=100, skill=1.0) for shift in (0, 100))
        other = replace(second, weight=0.25)
        standing = (3 * first.scores + other.weight * second.scores) / 3.25
        rule = procedure(first, top=1, standing=standing, share=1 / 3.25, weight=3.0, others=partial(list, [other]))
        kept = np.arange(80)
        expected = 3 * first.scores_on(kept) + other.weight * second.scores_on(kept)
        assert expected[rule.fit(first, kept).voters[0]] == pytest.approx(expected.max())


def test_a_task_of_which_all_texts_are_held_out_ranks_as_on_all_rows():
    first = ballot(members=6, rows=100)
    other = Ballot(first.votes[:, 80:], first.labels[80:], accuracy, first.groups[80:])
    alone, both = (procedure(first, others=others).fit(first, np.arange(80)) for others in (tuple, lambda: [other]))
    assert both.voters.tolist() == alone.voters.tolist()


def test_a_correlation_is_not_lowered_where_the_folds_choose_trials_of_different_scales():
    flattery = {False: [], True: []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        labels = rng.normal(2.5, 1.2, size=300).astype(np.float32)
        noise = 0.55 * rng.normal(size=300) + 0.35 * rng.normal(size=(5, 300))
        scales = np.array([[1, 0.8, 0.6, 0.9, 0.7], [0.3, -0.3, 0.2, -0.2, 0]]).T[:, :, None]
        for different, values in ((False, labels + noise), (True, scales[:, 0] * (labels + noise) + scales[:, 1])):
            votes = Ballot(values.astype(np.float32), labels, pearson, np.arange(300))
            honest = votes.judge(out_of_fold(procedure(votes, top=1), votes).scored).score
            flattery[different].append(honest - votes.scores.mean())
    assert np.mean(flattery[True]) == pytest.approx(np.mean(flattery[False]), abs=1e-6)
    assert np.mean(flattery[True]) == pytest.approx(0, abs=0.004)


def test_the_folds_of_one_trial_alone_have_together_its_own_correlation():
    labels, noise = np.random.default_rng(0).normal(size=(2, 60)).astype(np.float32)
    votes = Ballot((labels + noise)[None], labels, pearson, np.arange(60))
    assert votes.judge(out_of_fold(procedure(votes), votes).scored).score == pytest.approx(votes.scores[0], abs=1e-6)


@pytest.mark.parametrize(("kind", "classes"), [("labels", 3), ("classes", 2)])
def test_the_folds_of_one_trial_alone_have_together_its_own_area_under_the_curve(kind, classes):
    rng = np.random.default_rng(
        0
    )  # so hesitant that the folds' temperatures move a probability by more than a row does
    raised = rng.integers(2, size=(120, 3)) if kind == "labels" else np.eye(2)[rng.integers(2, size=120)]
    votes = (0.3 + 1e-5 * (raised + rng.normal(size=raised.shape))).astype(np.float32)
    if kind == "classes":
        votes = np.stack([1 - votes[:, 1], votes[:, 1]], axis=1)
    labels = raised.astype(np.float32) if kind == "labels" else raised.argmax(axis=1)
    task = Task("x", tuple("abc"[:classes]), pair=False, metric="roc_auc", submission="csv", kind_name=kind)
    score = Scorer.of(task)
    of = Ballot(votes[None], labels, score, np.arange(120))
    assert of.judge(out_of_fold(procedure(of), of).scored).score == pytest.approx(of.scores[0], abs=1e-6)


def test_auto_with_offsets_is_judged_on_rows_that_chose_neither():
    honest = []
    for seed in range(3):
        votes = ballot(seed, members=10, rows=60, skill=0)
        rule = procedure(votes, "uniform", "greedy", "hard", top=5, tune=TUNE)
        honest.append(votes.judge(out_of_fold(rule, votes).decisions).score)
    assert np.mean(honest) == pytest.approx(1 / 3, abs=0.08)


def one_knows() -> Ballot:
    votes = ballot(rows=300, members=6, skill=0)
    rng = np.random.default_rng(1)
    votes.votes[0] = np.where(np.eye(3)[votes.labels] == 1, 0.6, 0.2)  # one knows, the others are sure of anything
    votes.votes[1:] = rng.dirichlet([0.01] * 3, (5, 300))
    return Ballot(votes.votes, votes.labels, accuracy, votes.groups)


def test_auto_takes_a_clearly_better_method():
    votes = one_knows()
    assert procedure(votes, "uniform", "greedy").fit(votes).method == "greedy"
    assert procedure(votes, "hard", "uniform", "greedy", "stacking").fit(votes).method in ("greedy", "stacking")


def test_auto_judges_a_method_by_all_foldings_and_not_by_the_last_alone(monkeypatch):
    votes, moods = one_knows(), iter(["greedy", "greedy", "uniform", "greedy"])  # three foldings, and all rows
    monkeypatch.setitem(METHODS, "moody", Entry(make=lambda score: METHODS[next(moods)].make(score)))
    assert procedure(votes, "uniform", "moody", margin=0).fit(votes).method == "moody"


def test_auto_rejects_a_method_that_overfits():
    """With many weak members stacking fits its own rows better than new ones."""
    for seed in range(5):
        votes = ballot(seed, members=50, rows=100, skill=0.2)
        stacking, uniform = (
            METHODS[name].make(accuracy).fit(votes.votes, votes.labels) for name in ("stacking", "uniform")
        )
        known = [accuracy(votes.labels, each.combine(votes.votes).argmax(axis=1)) for each in (stacking, uniform)]
        assert known[0] > known[1] + 0.02
        assert procedure(votes, "uniform", "stacking").fit(votes).method == "uniform"


def test_auto_leaves_its_default_only_for_a_gain_that_is_more_than_chance():
    """Of members that are equally good no method is better, though on some rows one looks so."""
    left = []
    for seed in range(20):
        votes = ballot(seed, members=5, rows=300, shared=1.0)
        left.append(procedure(votes, *auto_methods(KINDS["classes"], texts=300)).fit(votes).method != "stacking")
    assert np.mean(left) < 0.1


def test_auto_breaks_ties_by_order():
    votes = ballot(members=1)
    assert procedure(votes, "uniform", "score", "greedy").fit(votes).method == "uniform"


def test_auto_never_tries_greedy_selection_on_fewer_than_300_rows():
    assert "greedy" not in auto_methods(KINDS["classes"], texts=299)
    assert "greedy" in auto_methods(KINDS["classes"], texts=300)


def test_auto_takes_the_mean_of_ranks_for_values_alone():
    assert "rank" in auto_methods(KINDS["value"], texts=100)
    assert "rank" not in auto_methods(KINDS["classes"], texts=100)


@pytest.mark.parametrize(("kind", "default"), [("value", "uniform"), ("classes", "stacking"), ("labels", "stacking")])
def test_auto_prefers_stacking_of_probabilities_and_the_mean_of_values(kind, default):
    tried = auto_methods(KINDS[kind], texts=300)
    assert tried[0] == default
    assert set(tried) < set(METHODS)
    assert auto_methods(KINDS[kind], texts=19) == ("uniform",)


def test_without_a_margin_the_best_of_all_options_is_used_however_little_better_it_is():
    """Of members that are equally good, which method looks best is chance."""
    used = {
        procedure(votes, "uniform", "stacking", "greedy", margin=0).fit(votes).method
        for votes in (ballot(seed, members=5, rows=100, shared=1.0) for seed in range(10))
    }
    assert len(used) > 1


def test_on_fewer_rows_the_standing_moves_by_the_score_s_share_in_it():
    votes = ballot(members=2, rows=40)
    right = np.array([[1] * 30 + [0] * 10, [0] * 15 + [1] * 25], dtype=bool)
    votes.votes[:] = 0.1
    for member in range(2):
        votes.votes[member, np.arange(40), np.where(right[member], votes.labels, (votes.labels + 1) % 3)] = 0.8
    votes = Ballot(votes.votes, votes.labels, accuracy, votes.groups)
    late = np.arange(20, 40)  # there the second member is the better one, by a half
    by_score = procedure(votes, top=1)
    assert by_score.fit(votes).voters.tolist() == [0]
    assert by_score.fit(votes, late).voters.tolist() == [1]
    for ahead, expected in ((0.15, 1), (0.3, 0)):
        of_three = procedure(votes, top=1, standing=np.array([0.5 + ahead, 0.5]), share=1 / 3)
        assert of_three.fit(votes, late).voters.tolist() == [expected]


def test_who_is_a_near_copy_is_judged_on_the_rows_that_choose_alone():
    votes = ballot(members=2, rows=100)
    votes.votes[1, :80] = votes.votes[0, :80]
    rule = procedure(votes, selection=Selection(diversity=0.01))
    assert len(rule.fit(votes, np.arange(80)).voters) == 1
    assert len(rule.fit(votes).voters) == 2


def test_a_candidate_with_standing_nan_never_votes():
    votes = ballot(members=3)
    assert procedure(votes, standing=np.array([np.nan, 0.2, 0.1])).fit(votes).voters.tolist() == [1, 2]


def skewed_ballot() -> Ballot:
    """A rare class that members are slow to say."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, size=600, p=[0.7, 0.22, 0.08])
    logits = rng.normal(size=(4, 600, 3)) * 2 + rng.normal(size=(600, 3)) + 1.5 * np.eye(3)[labels]
    exp = np.exp(logits + 2 * np.log([0.7, 0.22, 0.08]))
    return Ballot((exp / exp.sum(axis=2, keepdims=True)).astype(np.float32), labels, macro_f1, np.arange(len(labels)))


def test_offsets_are_used_unless_they_change_nothing_or_clearly_lose():
    skewed = skewed_ballot()
    assert procedure(skewed, tune=TUNE).fit(skewed).decision is not None
    assert procedure(skewed, tune=None).fit(skewed).decision is None
    right = np.full((2, 90, 3), 0.1, dtype=np.float32)
    right[:, np.arange(90), np.arange(90) % 3] = 0.8
    clear = Ballot(right, np.arange(90) % 3, macro_f1, np.arange(90))
    assert procedure(clear, tune=TUNE).fit(clear).decision is None
    other = Ballot(
        skewed.votes, skewed.labels, of_classes(lambda labels, said: float(np.mean(said == 0))), skewed.groups
    )
    assert procedure(other, tune=TUNE).fit(other).decision is None


def test_offsets_from_few_rows_do_no_harm_where_the_argmax_is_best():
    differences = []
    for seed in range(20):
        known = ballot(seed, members=1, rows=1060, skill=1.5)
        votes = Ballot(known.votes[:, :60], known.labels[:60], macro_f1, np.arange(60))
        ensemble = procedure(votes, tune=TUNE).fit(votes)
        combined, labels = ensemble.combine(known.votes[:, 60:]), known.labels[60:]
        differences.append(macro_f1(labels, ensemble.decide(combined)) - macro_f1(labels, combined.argmax(axis=1)))
    assert np.mean(differences) > -0.005


def test_offsets_are_used_with_the_method_that_they_win_with():
    skewed = skewed_ballot()
    ensemble = procedure(skewed, "uniform", "hard", tune=TUNE).fit(skewed)
    assert (ensemble.method, ensemble.decision is not None) == ("uniform", True)


def test_out_of_fold_agreement_counts_only_members_with_weight():
    votes = ballot(members=5, rows=60, skill=0.5)
    assert len(set(votes.decisions[:, 0].tolist())) > 1
    known = np.where(np.eye(3)[votes.labels] == 1, 0.98, 0.01)  # one knows everything
    votes = replace(votes, votes=np.concatenate([known[None], votes.votes[1:]]).astype(np.float32))
    assert (out_of_fold(procedure(votes, "greedy"), votes).agreement == 1).all()
    assert (out_of_fold(procedure(votes, "uniform"), votes).agreement < 1).any()


def test_the_temperature_is_fitted_after_averaging():
    votes = ballot(members=8, rows=2000, skill=2.0)
    rule = procedure(votes)
    ensemble = rule.fit(votes)
    assert ensemble.temperature < 0.9  # independent errors make the mean underconfident
    predicted = out_of_fold(rule, votes)
    after, before = (
        expected_calibration_error(each, votes.labels) for each in (predicted.calibrated, predicted.probabilities)
    )
    assert after < before / 2


def test_copies_of_texts_do_not_change_the_temperature():
    once = ballot(rows=40)
    copied = np.repeat(np.arange(40), 20)
    copies = Ballot(once.votes[:, copied], once.labels[copied], accuracy, copied)
    temperature = procedure(once).fit(once).temperature
    assert procedure(copies).fit(copies).temperature == pytest.approx(temperature)


class ByHeart:
    """Is sure of the right class in the rows that it was fitted on, and has the mean for others."""

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> ByHeart:
        self.known = {row.tobytes(): label for row, label in zip(votes[0], labels, strict=True)}
        self.weights = np.full(len(votes), 1 / len(votes))
        return self

    def combine(self, votes: np.ndarray) -> np.ndarray:
        mean = votes.mean(axis=0)
        for index, row in enumerate(votes[0]):
            if row.tobytes() in self.known:
                mean[index] = np.eye(mean.shape[1])[self.known[row.tobytes()]]
        return mean


def test_temperature_and_offsets_are_fitted_on_rows_that_the_method_was_not_fitted_on(monkeypatch):
    monkeypatch.setitem(METHODS, "by heart", Entry(make=lambda score: ByHeart()))
    votes = skewed_ballot()
    told, plain = (procedure(votes, name, tune=TUNE).fit(votes) for name in ("by heart", "uniform"))
    assert told.temperature == pytest.approx(plain.temperature)
    assert told.decision == pytest.approx(plain.decision)


@pytest.mark.parametrize("name", METHODS)
def test_the_temperature_makes_no_method_s_confidence_worse_on_new_rows(name):
    """Where members are many and rows few, a method looks surest of the rows that it was fitted on."""
    before, after = [], []
    for seed in range(6):
        every = ballot(seed, members=30, rows=4200, skill=0.5, shared=1.0)
        votes = Ballot(every.votes[:, :200], every.labels[:200], accuracy, np.arange(200))
        ensemble = procedure(votes, name).fit(votes)
        combined = ensemble.combine(every.votes[ensemble.voters][:, 200:])
        before.append(expected_calibration_error(combined, every.labels[200:]))
        after.append(expected_calibration_error(ensemble.calibrated(combined), every.labels[200:]))
    assert np.mean(after) < np.mean(before) + 0.02


def test_values_have_neither_temperature_nor_offsets():
    rng = np.random.default_rng(0)
    labels = rng.normal(size=120).astype(np.float32)
    values = Ballot(
        (labels + rng.normal(size=(4, 120))).astype(np.float32),
        labels,
        pearson,
        np.arange(120),
    )
    rule = procedure(values, *auto_methods(KINDS["value"], texts=120), tune=KINDS["value"].tuner("pearson"))
    ensemble = rule.fit(values)
    assert (ensemble.temperature, ensemble.decision) == (1, None)
    combined = ensemble.combine(values.votes[ensemble.voters])
    assert ensemble.decide(combined) is combined
    predicted = out_of_fold(rule, values)
    assert predicted.probabilities is None
    assert predicted.decisions.shape == (5, 120)


def test_with_too_few_rows_the_simplest_choices_are_made():
    votes = ballot(rows=6)
    ensemble = procedure(votes, *auto_methods(KINDS["classes"], texts=6), tune=TUNE).fit(votes)
    assert (ensemble.method, ensemble.decision, ensemble.temperature) == ("uniform", None, 1)


def test_the_same_ballot_gives_the_same_answer():
    votes = ballot(rows=40)
    rule = procedure(votes, "uniform", "stacking", tune=TUNE)
    assert np.array_equal(out_of_fold(rule, votes).decisions, out_of_fold(rule, votes).decisions)


class Memory:
    """A method that knows the label of every vote that it was fitted on."""

    def fit(self, votes: np.ndarray, labels: np.ndarray) -> Memory:
        self.weights = np.ones(1)
        self.known = dict(zip(map(bytes, votes[0]), labels, strict=True))
        return self

    def combine(self, votes: np.ndarray) -> np.ndarray:
        return np.array([np.eye(3, dtype=np.float32)[self.known.get(bytes(vote), 0)] for vote in votes[0]])


def test_copies_of_a_text_are_predicted_by_an_ensemble_that_did_not_see_it(monkeypatch):
    monkeypatch.setitem(METHODS, "memory", Entry(make=lambda score: Memory()))
    texts = np.repeat(np.arange(40), 3)
    drawn = ballot(members=1, rows=40)
    for groups, knows in ((texts, False), (np.arange(120), True)):  # as if the rows had different texts
        votes = Ballot(drawn.votes[:, texts], drawn.labels[texts], accuracy, groups)
        predicted = out_of_fold(procedure(votes, "memory"), votes)
        assert (predicted.decisions.any(axis=0) == (knows & (votes.labels > 0))).all()
    few = Ballot(votes.votes, votes.labels, accuracy, texts // 3)
    assert (few.texts, procedure(few, "uniform", tune=TUNE).fit(few).temperature) == (14, 1)


def test_copies_of_few_texts_choose_no_method():
    for seed in range(5):
        drawn, texts = ballot(seed, members=5, rows=14, skill=0.5), np.repeat(np.arange(14), 3)
        copies = Ballot(drawn.votes[:, texts], drawn.labels[texts], accuracy, texts)
        assert procedure(copies, "uniform", "greedy", "stacking", margin=0).fit(copies).method == "uniform"


def test_rows_of_one_group_are_different_evidence_and_only_copies_of_a_text_are_not():
    """Groups of three different texts, whose labels lie in the order of the file: the first one of each is class 0."""
    rng = np.random.default_rng(0)
    labels = np.tile(np.arange(3), 200)
    logits = np.eye(3)[labels] * 2 + rng.normal(0, 1, (600, 3))
    votes = np.exp(3 * logits) / np.exp(3 * logits).sum(axis=1, keepdims=True)  # too sure of themselves
    procedure = Procedure(Selection(), np.array([1.0]), share=1, methods=("uniform",), tune=TUNE)
    apart = Ballot(votes[None].astype(np.float32), labels, macro_f1, np.arange(600))
    grouped = replace(apart, groups=np.arange(600) // 3, texts_of=np.arange(600))
    plain, ours = procedure.fit(apart), procedure.fit(grouped)
    assert ours.temperature == pytest.approx(plain.temperature, rel=0.02)
    assert ours.decision is None or np.abs(ours.decision).max() < 0.5


def test_an_ensemble_of_labels_decides_at_thresholds_whatever_the_recipe_says_of_offsets():
    labels = (np.random.default_rng(0).random((400, 4)) < 0.1).astype(np.float32)
    faint = (0.02 + 0.2 * labels + np.random.default_rng(1).uniform(0, 0.1, (3, 400, 4))).astype(np.float32)
    task = Task("tags", ("a", "b", "c", "d"), pair=False, metric="macro_f1", submission="csv", kind_name="labels")
    scorer = Scorer.of(task)
    ballot = Ballot(faint, labels, scorer, np.arange(400))
    procedure = Procedure(Selection(), ballot.scores, share=1, methods=("uniform",), tune=scorer.tuner)
    assert ballot.scores.min() > 0.9
    assert ballot.judge(out_of_fold(procedure, ballot).scored).estimate.score > 0.9
