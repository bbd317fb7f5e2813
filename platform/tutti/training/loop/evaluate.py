"""What a model predicts of each task's validation rows, and how that scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase, TrainingArguments

from tutti.data.encode import EncodedPart
from tutti.data.prepared import REPORTED
from tutti.modeling.model import MultiTaskModel
from tutti.tasks.scorer import Scorer
from tutti.tasks.task import Task
from tutti.training.generate import generate
from tutti.training.loop.measure import measure, measure_answers, measure_texts
from tutti.training.machine.precision import autocast, name_of
from tutti.training.machine.ranks import rank, world_size
from tutti.training.predict import answers, are_finite, likelihoods, predict

Parts = Mapping[str, Mapping[str, EncodedPart]]


@dataclass(frozen=True, eq=False)
class Reader:
    """Predicts in the precision of training, on all ranks together.

    Attributes:
        tokenizer: that tasks of texts write with.
    """

    args: TrainingArguments
    model: MultiTaskModel
    tokenizer: PreTrainedTokenizerBase

    def predict(self, task: Task, part: EncodedPart) -> np.ndarray:
        """The outputs of the task's kind."""
        with autocast(self.args.device, name_of(self.args)):
            return predict(self.model, part, tokenizer=self.tokenizer, **self._options(task))

    def written(self, task: Task, part: EncodedPart) -> tuple[np.ndarray, np.ndarray]:
        """The texts of a task of texts, and their log-probabilities."""
        options = {name: value for name, value in self._options(task).items() if name != "batch_size"}
        with autocast(self.args.device, name_of(self.args)):
            return generate(self.model, part, tokenizer=self.tokenizer, **options)

    def likelihoods(self, task: Task, part: EncodedPart) -> np.ndarray:
        with autocast(self.args.device, name_of(self.args)):
            return likelihoods(self.model, part, **self._options(task))

    def answers(self, task: Task, part: EncodedPart) -> np.ndarray:
        with autocast(self.args.device, name_of(self.args)):
            return answers(self.model, part, **self._options(task))

    def _options(self, task: Task) -> dict[str, Any]:
        return {
            "task": task.name,
            "batch_size": self.args.per_device_eval_batch_size,
            "device": self.args.device,
            "rank": rank(),
            "world": world_size(),
        }


@dataclass(eq=False)
class Evaluation:
    """An evaluation of all tasks.

    Attributes:
        scores: by task, its score; higher is better.
        set_scores: by ``TASK/SET``, that of each report set that was evaluated.
        metrics: by ``TASK/METRIC`` what is logged.
        outputs: by task the outputs for its validation rows; none of texts that were not written.
        log_probabilities: by task of texts, those of the outputs.
        measured: by task what its loss is computed of: the outputs, of texts the likelihoods.
        not_finite: the first task that has outputs which are no finite numbers.
    """

    scores: dict[str, float] = field(default_factory=dict)
    set_scores: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    log_probabilities: dict[str, np.ndarray] = field(default_factory=dict)
    measured: dict[str, np.ndarray] = field(default_factory=dict)
    not_finite: str | None = None

    def decisions(self, tasks: Sequence[Task], parts: Parts) -> dict[str, list[float]]:
        """The decisions at which the validation rows are scored, of tasks that have any."""
        decisions = {}
        for task in tasks:
            labels = parts[task.name]["validation"].labels
            assert labels is not None
            if (
                task.kind.tuned_alone
                and (decision := Scorer.of(task.as_voted).alone(labels, self.outputs[task.name])) is not None
            ):
                decisions[task.name] = decision.tolist()
        return decisions


def evaluate(tasks: Sequence[Task], parts: Parts, reader: Reader, *, last: bool) -> Evaluation:
    """Evaluates all tasks; stops at the first with outputs that are not finite.

    Args:
        last: whether it may be the last evaluation of a stage, at which all sets of questions are answered.
    """
    found = Evaluation()
    for task in tasks:
        part = parts[task.name]["validation"]
        if task.generation is None:
            outputs = found.outputs[task.name] = found.measured[task.name] = reader.predict(task, part)
            if not are_finite(outputs, task.kind):
                found.not_finite = task.name
                break
            found.scores[task.name], metrics = measure(task, part, outputs)
            for name, further in parts[task.name].items():
                if name.startswith(REPORTED):  # a set that is logged beside the one that decides
                    of = name.removeprefix(REPORTED)
                    found.set_scores[f"{task.name}/{of}"], own = measure(task, further, reader.predict(task, further))
                    metrics |= {key.replace("/", f"/{of}/", 1): value for key, value in own.items()}
        else:
            likely = found.measured[task.name] = reader.likelihoods(task, part)
            if not are_finite(likely, task.kind):
                found.not_finite = task.name
                break
            if task.generation.at_evaluations:
                found.outputs[task.name], found.log_probabilities[task.name] = reader.written(task, part)
            found.scores[task.name], metrics = measure_texts(task, part, likely, found.outputs.get(task.name))
            for name, when in task.generation.report_sets.items():
                if when == "end" and not last:
                    continue
                questions = parts[task.name][REPORTED + name]
                accuracy, by_group = measure_answers(questions, reader.answers(task, questions))
                metrics[f"{task.name}/{name}"] = found.set_scores[f"{task.name}/{name}"] = accuracy
                metrics |= {f"{task.name}/{name}/{group}": value for group, value in by_group.items()}
                if name == task.generation.decided_by:
                    found.scores[task.name] = accuracy
        found.metrics |= metrics
    return found
