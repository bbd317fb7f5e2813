"""Which two submissions to choose for a competition's final score, by local and public scores and their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import erf, exp, pi, sqrt

from tutti.ensembling.nested import Estimate, Judged
from tutti.errors import counted

_CLEAR = 2.0  # standard errors beyond which a difference is no chance
_LEAST_ERROR = 1e-9
_LITTLE = 0.1  # of the best one's standard error: a gain of less is not worth a thought


@dataclass(frozen=True)
class Submission:
    """A submission that may be chosen.

    Attributes:
        name: of its folder.
        local: its nested estimate, on rows that had no part in choosing it.
        judged: by task, the scores that this is the mean of, with those of resamples.
        public: the competition's score; None where it is not known.
    """

    name: str
    local: Estimate
    judged: Mapping[str, Judged]
    public: float | None = None


@dataclass(frozen=True)
class Pair:
    """Two submissions.

    Attributes:
        expected: of the better one of both, on the private rows.
        correlation: of their errors.
        difference: local, first over second, with its error.
    """

    first: Submission
    second: Submission
    expected: float
    correlation: float
    difference: Estimate


@dataclass(frozen=True)
class Choice:
    """The pair with the best expected private score.

    Attributes:
        pairs: best first.
        expected: by submission, its own expected private score.
        shift: how much higher public scores are than local ones, the mean over submissions; None without any.
        warnings: where public and local scores disagree by more than chance, one sentence each.
        reasons: why this pair, one sentence each.
    """

    pairs: tuple[Pair, ...]
    expected: Mapping[str, float]
    shift: float | None
    warnings: tuple[str, ...]
    reasons: tuple[str, ...]


def choose(
    submissions: Sequence[Submission],
    *,
    overlap: Sequence[Sequence[float]],
    weights: Sequence[float],
    validation_rows: int,
    public_rows: int,
    private_rows: int,
) -> Choice:
    """Ranks all pairs of submissions by the expected score of the better one on the private rows.

    Local and public rows are both samples of what a submission is worth: each counts by its number of rows, after the
    shift that all public scores share. The error of a difference is that of paired resamples of the local rows, scaled
    to the private ones: two submissions that err alike gain little from each other.

    Args:
        submissions: at least two.
        overlap, weights: of the tasks, as in ``Estimate.mean``.
    """
    known = [each for each in submissions if each.public is not None]
    shifts = [each.public - each.local.score for each in submissions if each.public is not None]
    shift = sum(shifts) / len(shifts) if shifts else None
    expected = {
        each.name: _expected(each, shift or 0.0, validation_rows=validation_rows, public_rows=public_rows)
        for each in submissions
    }
    pairs = []
    for one, other in combinations(submissions, 2):
        gains = [one.judged[task].over(other.judged[task]) for task in one.judged]
        difference = Estimate.mean(gains, overlap, weights)
        if all(one.judged[task] is other.judged[task] for task in one.judged):  # of one recipe: nothing differs
            difference = Estimate(0.0, 0.0)
        rows = validation_rows + (public_rows if None not in (one.public, other.public) else 0)
        error = difference.error * sqrt(validation_rows / rows + validation_rows / max(private_rows, 1))
        first, second = sorted((one, other), key=lambda each: -expected[each.name])
        best = _best_of_two(expected[first.name], expected[second.name], max(error, _LEAST_ERROR))
        spread = max(2 * one.local.error * other.local.error, _LEAST_ERROR)
        correlation = (one.local.error**2 + other.local.error**2 - difference.error**2) / spread
        signed = difference if first is one else Estimate(-difference.score, difference.error)
        pairs.append(Pair(first, second, best, max(min(correlation, 1.0), -1.0), signed))
    pairs.sort(key=lambda pair: -pair.expected)
    scale = sqrt(validation_rows / max(public_rows, 1))
    warnings = tuple(_disagreements(known, pairs, shift, scale=scale))
    return Choice(tuple(pairs), expected, shift, warnings, tuple(_reasons(pairs, expected, shift, len(known))))


def _expected(submission: Submission, shift: float, *, validation_rows: int, public_rows: int) -> float:
    local = submission.local.score + shift
    if submission.public is None:
        return local
    return (validation_rows * local + public_rows * submission.public) / (validation_rows + public_rows)


def _best_of_two(one: float, other: float, error: float) -> float:
    """The expected maximum of two normal scores whose difference has this standard error (Clark 1961)."""
    z = (one - other) / error
    above = (1 + erf(z / sqrt(2))) / 2
    return one * above + other * (1 - above) + error * exp(-z * z / 2) / sqrt(2 * pi)


def _disagreements(
    known: Sequence[Submission], pairs: Sequence[Pair], shift: float | None, *, scale: float
) -> Iterator[str]:
    """Where public scores contradict local ones by more than chance.

    Args:
        scale: how many times larger the errors of public scores are.
    """
    if shift is not None:
        error = max(each.local.error for each in known) * sqrt(1 + scale**2)
        if abs(shift) > _CLEAR * error:
            higher = "higher" if shift > 0 else "lower"
            chance = f"where chance explains {_CLEAR * error:.4f}"
            yield (
                f"Public scores are {abs(shift):.4f} {higher} than local ones, {chance}: the test rows differ from the "
                "training rows, or rows that belong together were held out apart (split.group)"
            )
    for pair in pairs:
        first, second = pair.first.public, pair.second.public
        if first is None or second is None:
            continue
        public, error = first - second, pair.difference.error
        if (public > 0) == (pair.difference.score > 0) or error <= _LEAST_ERROR:
            continue
        apart = abs(public - pair.difference.score)
        if apart > _CLEAR * error * sqrt(1 + scale**2):
            better, worse = (pair.first, pair.second) if pair.difference.score > 0 else (pair.second, pair.first)
            by = f"by {abs(pair.difference.score):.4f}, publicly worse by {abs(public):.4f}"
            yield f"Locally {better.name} is better than {worse.name} {by}: more than chance explains"


def _reasons(pairs: Sequence[Pair], expected: Mapping[str, float], shift: float | None, known: int) -> Iterator[str]:
    best = pairs[0]
    first, second = best.first.name, best.second.name
    alone = expected[first]
    yield f"{first} has the best expected score of the two, {alone:.4f}, {second} {expected[second]:.4f}"
    gain = best.expected - alone
    yield (
        f"The better one of both is expected at {best.expected:.4f}, {gain:+.4f} over {first} alone: their errors have "
        f"a correlation of {best.correlation:.2f}"
    )
    if gain < _LITTLE * best.first.local.error:
        yield (
            f"The second one hardly matters: it adds {gain:.4f}, and chance alone moves a score by "
            f"{best.first.local.error:.4f}"
        )
    likeliest = sorted(expected, key=lambda name: -expected[name])[:2]
    if {first, second} != {*likeliest}:
        yield (
            f"{' and '.join(likeliest)} have the highest expected scores, but err more alike: together "
            f"{next(p.expected for p in pairs if {p.first.name, p.second.name} == {*likeliest}):.4f}"
        )
    if shift is None:
        yield "No public score is known: add them with `tutti leaderboard add`"
    else:
        yield f"{counted(known, 'submission')} with a public score; the mean shift to local scores is {shift:+.4f}"
