"""Frozen value types that travel between rooms."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Scalar = str | int | float | bool | None


class TrialState(StrEnum):
    """The states of a trial, in the order of its life. Values are shown to users.

    The broker knows what becomes of a trial in a run of its study. For the study's store and tracker, which outlive
    the run, a trial is running from ``QUEUED`` to ``WAITING``.
    """

    QUEUED = "queued"  # for a pool of workers
    ASSIGNED = "assigned"  # to a pool whose workers have not begun it yet
    RUNNING = "running"
    WAITING = "waiting"  # for the rest of its population, without workers
    FINISHED = "finished"
    STOPPED = "stopped early"
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # nobody trains it; it goes on once it is submitted again

    @property
    def is_over(self) -> bool:
        """Whether nobody trains a trial in this state any further."""
        return self in (TrialState.FINISHED, TrialState.STOPPED, TrialState.FAILED, TrialState.INTERRUPTED)

    def to(self, state: TrialState) -> TrialState:
        """The next state. A RuntimeError, for an error in the code, where it cannot follow this one."""
        if state not in _NEXT.get(self, ()):
            raise RuntimeError(f"a trial that is {self} cannot become {state}")
        return state


_NEXT: Mapping[TrialState, AbstractSet[TrialState]] = {
    TrialState.QUEUED: {TrialState.ASSIGNED, TrialState.INTERRUPTED},
    TrialState.ASSIGNED: {TrialState.RUNNING, TrialState.QUEUED, TrialState.INTERRUPTED},
    TrialState.RUNNING: set(TrialState) - {TrialState.ASSIGNED, TrialState.RUNNING},
    TrialState.WAITING: {TrialState.QUEUED, TrialState.INTERRUPTED},
    TrialState.INTERRUPTED: {TrialState.QUEUED},
}
"""What may follow each state; nothing follows an end. ``QUEUED`` follows a state in which a trial lost its workers."""


TRIAL_KEY = re.compile(r"t\d+")
"""Of trials; whatever else votes, a guest, has another one."""


@dataclass(frozen=True)
class TextLimit:
    """How many tokens a model reads at once, and what becomes of longer rows.

    Attributes:
        max_length: maximum number of tokens, special tokens included.
        truncation: ``longest_first`` (longer rows keep their first tokens; of pairs, the longer text is cut first),
            ``only_first``, ``only_second`` (of pairs that text is cut), ``tail`` (their last tokens), ``head_tail``
            (their first and their last), or ``windows`` (they become several inputs, whose states are averaged).
        stride: least number of tokens that two windows have in common; 0 without windows.
        swap: whether pairs to predict are read in both orders.
        target_max_len: maximum number of tokens of a text to be written, in tasks of texts; ``max_length`` is then of
            the prompt.
        train_on_source: whether the prompt's tokens are learnt too.
        letters: whether rows with candidates are one prompt, in which candidates have letters.
        unit: what has a tag, in tasks of words or characters with tags, as of ``tutti.tasks.units``; ``text`` in tasks
            whose rows have a value for each text, ``letters`` in those of such prompts; empty in others.
        first_alone: whether of two texts only the first is read, as where the second is the same pair in another order.
        lanes: how many tags each word or character has: one of each type where entities may overlap.
    """

    max_length: int
    truncation: str = "longest_first"
    stride: int = 0
    swap: bool = False
    target_max_len: int = 256
    train_on_source: bool = False
    letters: bool = False
    unit: str = ""
    lanes: int = 1
    first_alone: bool = False


@dataclass(frozen=True)
class Usage:
    """What training steps took, without evaluations and predictions. Sums are those of consecutive trainings.

    Attributes:
        rows, tokens: that were trained on, over all workers; without padding.
        seconds: wall time.
        memory, gpu_memory: peaks in bytes, of the worker that needed most; 0 where it is not known, or without a GPU.
    """

    rows: int = 0
    tokens: int = 0
    seconds: float = 0.0
    memory: int = 0
    gpu_memory: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            rows=self.rows + other.rows,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
            memory=max(self.memory, other.memory),
            gpu_memory=max(self.gpu_memory, other.gpu_memory),
        )

    @property
    def metrics(self) -> dict[str, float]:
        """Speed and memory by the names of transformers and MLflow, as far as they are known."""
        rates: dict[str, float] = {}
        if self.seconds and self.rows:
            rates["train_samples_per_second"] = self.rows / self.seconds
            rates["train_tokens_per_second"] = self.tokens / self.seconds
        peaks = {"peak_memory_megabytes": self.memory, "peak_gpu_memory_megabytes": self.gpu_memory}
        return rates | {name: peak / 1e6 for name, peak in peaks.items() if peak}


@dataclass(frozen=True)
class TrialRecord:
    """One trial as stored with its study.

    Attributes:
        key: the one identity that binds the Optuna trial, the Ray trial, the MLflow run and the checkpoint: ``t0007``.
        number: zero-based index among the study's trials. It equals Optuna's number, except in a study with a warm
            start, where Optuna counts the older studies' trials first.
        score: the best reported score, or None before the first report; of a finished trial that of the checkpoint that
            it kept. For an ended trial with folds, the score of its out-of-fold predictions, or the mean over its
            completed folds if it did not finish.
        task_scores: metric of each task at the report with ``score``.
        parameters: the sampled values of the search space.
        scores_by_epoch: every reported score by epoch, or by evaluation where an epoch has several. With folds, the
            mean over the folds completed so far, by their number.
        last_task_scores: metric of each task at the last report.
        seconds: wall time from start to end, or None while running. For a trial resumed in a later run of its study,
            the sum over all runs, each up to its last report.
        ended: Unix time of its end, or None while running.
        reason: why it failed or was stopped, in one sentence.
        exchanges: with the scheduler ``pbt``, every time the trial continued from another trial's checkpoint: the
            ``epoch``, the key of the ``donor``, and its own ``parameters`` from then on.
        measured: objective values of a finished trial by name, with its score, in a study with other objectives than
            the score: see ``search.objectives``.
        speed: ``Usage.metrics`` of its training steps up to its last report, over all runs.
        set_scores: by ``TASK/SET``, the score of each report set at the report with ``score``, or else at the last that
            has any.
    """

    key: str
    number: int
    state: TrialState
    score: float | None = None
    task_scores: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    scores_by_epoch: Mapping[int, float] = field(default_factory=dict)
    last_task_scores: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    ended: float | None = None
    reason: str | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    exchanges: tuple[Mapping[str, Any], ...] = ()
    speed: Mapping[str, float] = field(default_factory=dict)
    set_scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def best_parameters(self) -> Mapping[str, Scalar]:
        """The parameters at its best score: those of the last exchange before it, else ``parameters``."""
        best = max(self.scores_by_epoch, key=lambda epoch: (self.scores_by_epoch[epoch], -epoch), default=0)
        exchanged = [exchange["parameters"] for exchange in self.exchanges if exchange["epoch"] < best]
        return exchanged[-1] if exchanged else self.parameters

    @property
    def exploited_from(self) -> str:
        """The trials that it continued from, and when, in words; empty without exchanges."""
        return ", ".join(f"{exchange['donor']} after epoch {exchange['epoch']}" for exchange in self.exchanges)


@dataclass(frozen=True)
class CheckpointRecord:
    """The best checkpoint of one trial, as listed in the bank.

    Attributes:
        key: the trial's key.
        path: folder that ``from_pretrained`` loads, or None once the weights were pruned. For a trial with folds, the
            trial's folder, with such a folder ``fold-N/best`` for each fold N (zero-based): all folds together are one
            member of an ensemble.
        epoch: the epoch or evaluation, counted from 1, after which it was saved; for a trial with folds, the number
            of folds.
        score: the study's score on the validation rows; with folds on all rows, each predicted out of fold.
        task_scores: metric of each task on the validation rows.
        parameters: number of weights trained in the last stage; None where that is unknown.
        usage: what its training steps took; None where that is unknown. Equal checkpoints may differ in it.
        source: of a guest, whose predictions are no trial's, where they come from; None for a trial.
        writer: of a guest whose texts a trial has written, the trial's key.
        settings: of generation, over those of the study, under which they were written.
    """

    key: str
    number: int
    epoch: int
    score: float
    task_scores: Mapping[str, float]
    path: str | None
    parameters: int | None = None
    usage: Usage | None = field(default=None, compare=False)
    source: str | None = None
    writer: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Repair:
    """An automatic repair of what a Finding describes.

    Attributes:
        outcome: its result, worded to follow "to be": ``removed``.
        run: performs it, after the repairs of the findings before it; raises a TuttiError where it fails.
    """

    outcome: str
    run: Callable[[], object]


@dataclass(frozen=True)
class Finding:
    """An inconsistency in a study's folder or stores.

    Attributes:
        what: the place: a trial, a run, a file.
        found: what is wrong there.
        remedy: its repair; where none is automatic, what the user can do, in the imperative.
    """

    what: str
    found: str
    remedy: Repair | str


def best_trial(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The finished trial with the best score. Only finished trials have a checkpoint for an ensemble."""
    finished = [record for record in records if record.state is TrialState.FINISHED and record.score is not None]
    return max(finished, key=lambda record: record.score or 0.0, default=None)


def varied_parameters(records: Sequence[TrialRecord]) -> list[str]:
    """Names of the parameters in which trials differ, in their order; all of a single trial."""
    names = dict.fromkeys(name for record in records for name in record.parameters)
    missing = object()
    if len(records) < 2:
        return [*names]
    return [name for name in names if len({str(record.parameters.get(name, missing)) for record in records}) > 1]
