"""The task: a small value object that all later rooms share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from os.path import normpath, relpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.metric_facts import FACTS, OF_WORDS, Needs
from tutti.records import TextLimit
from tutti.tasks.kinds.protocol import Kind
from tutti.tasks.kinds.registry import KINDS

if TYPE_CHECKING:
    from tutti.config.columns import AnswerForm
    from tutti.config.study import OwnMetric

VOTED = "rouge_l"
"""The metric by which texts vote where the study file names none of texts."""


@dataclass(frozen=True)
class Generation:
    """How texts are written, in a task of texts.

    Attributes:
        settings: fields of ``transformers.GenerationConfig``.
        at_evaluations: whether texts are written at each evaluation; otherwise once, by the best checkpoint.
        chat: whether prompts are JSON lists of messages, for the chat template of the backbone's tokenizer.
        report_sets: names of the sets of questions, with ``evaluations`` or ``end``, when they are answered.
        decided_by: the set of questions whose accuracy is the score; None where the metric is.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    at_evaluations: bool = False
    chat: bool = False
    report_sets: Mapping[str, str] = field(default_factory=dict)
    decided_by: str | None = None


@dataclass(frozen=True)
class Task:
    """One labelled problem.

    Attributes:
        name: the task's key in the study file.
        names: what its outputs are, in their order: classes or labels as written in the task's files, or columns of
            numbers. Empty for a single number.
        pair: whether a row has two texts.
        metric: the name of the one that decides, as in ``tutti.tasks.metrics``; of the user's own that of its function.
        submission: one of ``competition``, ``glue``, ``csv``.
        kind_name: a name of ``KINDS``; by default ``classes``, or ``value`` without ``names``.
        report: names of metrics that are logged beside it.
        own_metric: where ``metric`` is the user's own; its file is the copy beside the study's prepared data.
        weight: of its score in the study's, see ``tutti.tasks.objective``.
        generation: of a task of texts; None for others.
        unit: what has a tag, as of ``tutti.tasks.units``; ``text`` where each text of a row has a value; empty where
            rows have labels as a whole.
        orders: whether a row's text holds a pair; its ``text_b`` is the text with the pair in the other order, which is
            read in place of it where pairs are predicted in both.
        answers: of a task with candidates, what the labels of its training file are, as ``columns.answers``; else None.
    """

    name: str
    names: tuple[str, ...]
    pair: bool
    metric: str
    submission: str
    kind_name: str = ""
    report: tuple[str, ...] = ()
    own_metric: OwnMetric | None = None
    weight: float = 1.0
    generation: Generation | None = None
    unit: str = ""
    answers: AnswerForm | None = None
    orders: bool = False

    def __post_init__(self) -> None:
        if not self.kind_name:
            object.__setattr__(self, "kind_name", default_kind(self.names))

    @property
    def kind(self) -> Kind:
        """What its labels and predictions are."""
        return KINDS[self.kind_name]

    @property
    def needs(self) -> Needs:
        """What the metric that decides compares with the labels."""
        return FACTS[self.metric].needs if self.own_metric is None else self.own_metric.needs

    @property
    def outputs(self) -> int:
        """Number of predicted values of a row: one for each of its names, or 1."""
        return len(self.names) or 1

    def limit(self, limit: TextLimit) -> TextLimit:
        """A limit of a model as it is for this task's rows, with ``unit`` and ``lanes``."""
        by_letters = limit.letters and self.kind.exchangeable
        lanes = len(self.names) // 2 if self.kind.spans == "overlapping" else 1
        unit = "letters" if by_letters else self.unit
        return replace(limit, letters=False, unit=unit, lanes=lanes, first_alone=self.orders)

    def swaps(self, limit: TextLimit) -> bool:
        """Whether its rows are predicted in both orders by a model with a limit."""
        return limit.swap and (self.pair or self.orders) and not (self.unit or self.kind.exchangeable)

    @property
    def scored_otherwise(self) -> bool:
        """Whether its score is of what predictions lack: the likelihood, pieces of texts, or answers to questions."""
        by_questions = self.generation is not None and self.generation.decided_by is not None
        return self.needs == "likelihood" or self._of_pieces or by_questions

    @property
    def _of_pieces(self) -> bool:
        return self.own_metric is None and self.metric in OF_WORDS

    @property
    def as_voted(self) -> Task:
        """The task as ensembles score it: by a metric of texts where its own is of the likelihood alone, and by one of
        words where its own is of pieces of texts.
        """
        if self._of_pieces:
            return replace(self, metric=OF_WORDS[self.metric])
        if self.needs != "likelihood":
            return self
        of_texts = [name for name in self.report if FACTS[name].needs == "texts"]
        return replace(self, metric=of_texts[0] if of_texts else VOTED, own_metric=None)

    def written_under(self, settings: Mapping[str, Any]) -> Task:
        """A task of texts that are written under other settings of generation."""
        assert self.generation is not None
        return replace(self, generation=replace(self.generation, settings=settings))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path) -> Task:
        """The inverse of ``to_dict``, from JSON too, which has lists for tuples."""
        metric = values["own_metric"]
        if metric:
            from tutti.config.study import OwnMetric  # not for a bundle, which has no metric

            metric = OwnMetric(**{**metric, "file": Path(normpath(folder.absolute() / metric["file"]))})
        listed = {"names": tuple(values["names"]), "report": tuple(values["report"])}
        generation = values["generation"] and Generation(**values["generation"])
        return cls(**{**values, **listed, "own_metric": metric, "generation": generation})

    def to_dict(self, folder: Path) -> dict[str, Any]:
        """As JSON in a file of the folder, which may be moved with the study: it names a file relative to itself."""
        content = asdict(self)
        if self.own_metric is not None:
            content["own_metric"] = self.own_metric.model_dump() | {"file": relpath(self.own_metric.file, folder)}
        return content


def default_kind(names: tuple[str, ...]) -> str:
    """The kind of tasks and predictions that do not say it."""
    return "classes" if names else "value"
