"""Greedy model soups (Wortsman et al. 2022, arXiv 2203.05482): averages of several checkpoints' weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tutti.config.folder import fold_name
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.ensembling.nested import Fold, on_label_scale
from tutti.errors import Fault, TrialError
from tutti.modeling.average import shape_of, write_mean, write_scores
from tutti.modeling.checkpoint import load_checkpoint, read_metadata
from tutti.records import TextLimit
from tutti.tasks.objective import study_score
from tutti.tasks.scorer import Scorer
from tutti.training.machine.precision import autocast, fastest
from tutti.training.predict import are_finite, predict

Parts = Callable[[TextLimit], Mapping[str, EncodedPart]]
"""Maps a maximum length in tokens to each task's validation rows."""

Weights = Mapping[str, Path | Sequence[Path]]
"""By key, the folder of a checkpoint, or those of a trial's folds, of which each is averaged with its like."""


@dataclass(frozen=True)
class Ingredient:
    """The result of trying one candidate.

    Attributes:
        key: the candidate.
        score: score of the soup including the candidate: the mean of ``task_scores``, weighted as the tasks are.
        task_scores: each task's metric on the validation rows.
        kept: whether the candidate stays in the soup, since the score did not fall.
        decisions: by task, the decisions that were scored, of tasks that are scored at fitted ones.
    """

    key: str
    score: float
    task_scores: Mapping[str, float]
    kept: bool
    decisions: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Soup:
    """The results of all candidates.

    Attributes:
        ingredients: in the order in which the candidates were tried.
        held_out: per task ``(1, rows)`` class indices or values, predicted by soups that were selected without these
            rows; None without folds.
    """

    ingredients: list[Ingredient]
    held_out: Mapping[str, np.ndarray] | None


def greedy_soup(
    candidates: Sequence[str],
    *,
    weights: Weights,
    parts: Parts,
    folder: Path,
    threads: int,
    folds: Sequence[Fold] | None,
    training: Mapping[str, Any],
    fold_of_rows: Mapping[str, np.ndarray] | None = None,
) -> Soup:
    """Adds candidates in turn to the mean of weights, and keeps each one that does not lower the score.

    The soup is saved as a checkpoint in ``folder``, or of trials with folds as one for each fold in ``folder/fold-N``;
    rejected soups leave nothing. Needs memory for one model.

    Args:
        candidates: keys, best first; the first is always kept. All checkpoints have the same shape.
        weights: key to checkpoint folder, for all candidates and all voters of the folds.
        threads: number of CPU threads.
        folds: for the soup's unbiased score. Each fold gets a soup of its voters, selected on the fold's other rows.
        training: as in ``fastest``.
        fold_of_rows: by task ``(validation rows,)``, the fold whose soup predicts each row; None without folds.

    Raises:
        StorageError, BackboneError: if a checkpoint does not load or the file system refuses.
        TrialError: if predictions are not finite.
    """
    torch.set_num_threads(threads)
    tried = folder.with_name(f"{folder.name}-tried")
    evaluator = _SoupEvaluator(weights, parts, tried, training, fold_of_rows)
    ingredients = evaluator.select(candidates)
    kept = [each for each in ingredients if each.kept]
    held_out = None if folds is None else _held_out_decisions(evaluator, folds)
    best = kept[-1]
    for fold in range(evaluator.folds):
        place = folder / fold_name(fold) if fold_of_rows is not None else folder
        evaluator.write(place, [each.key for each in kept], fold)
        write_scores(place, score=best.score, task_scores=best.task_scores, decisions=best.decisions)
    return Soup(ingredients, held_out)


def _held_out_decisions(evaluator: _SoupEvaluator, folds: Sequence[Fold]) -> dict[str, np.ndarray]:
    """Decisions for each fold's held-out rows, by a soup of its voters selected on the other rows."""
    decisions: dict[str, np.ndarray] = {}
    for fold in folds:
        single_scores = {key: evaluator.score([key], fold.chosen_on).score for key in fold.voters}
        order = sorted(single_scores, key=lambda key: single_scores[key], reverse=True)
        compatible = [key for key in order if evaluator.shapes[key] == evaluator.shapes[order[0]]]
        kept = [each.key for each in evaluator.select(compatible, fold.chosen_on) if each.kept]
        for name, outputs in evaluator.outputs(kept).items():
            rows, labels = fold.held_out[name], evaluator.labels[name]
            scorer, known = evaluator.scorers[name], fold.chosen_on[name]
            decided = scorer.judged(outputs, scorer.alone(labels[known], outputs[known]))
            rescaled = scorer.scale_free and not scorer.kind.probabilistic
            scaled = on_label_scale(decided, labels) if rescaled else decided
            decisions.setdefault(name, np.empty((1, *scaled.shape), dtype=scaled.dtype))[0, rows] = scaled[rows]
    return decisions


class _SoupEvaluator:
    """Predicts and scores means of checkpoints' weights; computes each mean once."""

    def __init__(
        self,
        weights: Weights,
        parts: Parts,
        trial_folder: Path,
        training: Mapping[str, Any],
        fold_of_rows: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self._weights = {key: [own] if isinstance(own, Path) else [*own] for key, own in weights.items()}
        self._parts, self._trial_folder, self._training = parts, trial_folder, training
        self._fold_of_rows = fold_of_rows
        self.shapes = {key: shape_of(own[0]) for key, own in self._weights.items()}
        first = next(iter(self._weights.values()))
        self.folds = len(first)
        metadata = read_metadata(first[0])
        self._tasks = metadata.tasks
        self.scorers = {task.name: Scorer.of(task.as_voted) for task in self._tasks}
        self._outputs: dict[frozenset[str], dict[str, np.ndarray]] = {}
        self.labels: dict[str, np.ndarray] = {}
        for task in self._tasks:
            labels = parts(metadata.limit)[task.name].labels
            assert labels is not None
            self.labels[task.name] = labels

    def select(self, order: Sequence[str], rows: Mapping[str, np.ndarray] | None = None) -> list[Ingredient]:
        """Greedy selection by the score on the given rows of each task, or on all rows."""
        ingredients: list[Ingredient] = []
        members: list[str] = []
        best = -np.inf
        for key in order:
            ingredient = self.score([*members, key], rows)
            if not_worse := not members or ingredient.score >= best:
                members, best = [*members, key], ingredient.score
            ingredients.append(replace(ingredient, kept=not_worse))
        return ingredients

    def score(self, members: Sequence[str], rows: Mapping[str, np.ndarray] | None = None) -> Ingredient:
        """Scores of the members' mean on the given rows of each task, or on all rows. The last member is tried."""
        outputs, scores, decisions = self.outputs(members), {}, {}
        for task in self._tasks:
            selection = slice(None) if rows is None else rows[task.name]
            labels, predicted = self.labels[task.name][selection], outputs[task.name][selection]
            scorer = self.scorers[task.name]
            decision = scorer.alone(labels, predicted)
            scores[task.name] = scorer(labels, scorer.judged(predicted, decision))
            if decision is not None:
                decisions[task.name] = decision.tolist()
        return Ingredient(members[-1], study_score(scores, self._tasks), scores, kept=True, decisions=decisions)

    def outputs(self, members: Sequence[str]) -> dict[str, np.ndarray]:
        """Per task, what the members' mean predicts."""
        if (outputs := self._outputs.get(frozenset(members))) is None:
            by_fold = []
            for fold in range(self.folds):
                self.write(self._trial_folder, members, fold)
                by_fold.append(self._predict(members))
                shutil.rmtree(self._trial_folder)
            outputs = self._outputs[frozenset(members)] = self._together(by_fold)
        return outputs

    def write(self, folder: Path, members: Sequence[str], fold: int) -> None:
        """Writes the members' mean, of their models of one fold."""
        write_mean(folder, [self._weights[key][fold] for key in members], key="+".join(members))

    def _together(self, by_fold: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """By task, each row's outputs of the fold's soup that did not train on it."""
        outputs = {task: own.copy() for task, own in by_fold[0].items()}
        for task, own in (self._fold_of_rows or {}).items():
            for fold, predicted in enumerate(by_fold):
                outputs[task][own == fold] = predicted[task][own == fold]
        return outputs

    def _predict(self, members: Sequence[str]) -> dict[str, np.ndarray]:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, metadata = load_checkpoint(self._trial_folder, device=device)
        model.to(device)
        parts, tokenizer = self._parts(metadata.limit), load_tokenizer(str(self._trial_folder))
        predicted = {}
        precision = fastest(device, model_type=model.config.model_type, training=self._training)
        for task in metadata.tasks:
            for each in dict.fromkeys((precision, "float32")):
                with autocast(device, each):
                    outputs = predict(
                        model, parts[task.name], task=task.name, tokenizer=tokenizer, batch_size=64, device=device
                    )
                if are_finite(outputs, task.kind):
                    break
            else:
                what = f"what the mean of {', '.join(members)} predicts in {task.name}"
                remedy = f"take {members[-1]} out of the recipe with `members: {{filter: }}`"  # the last one tried
                raise TrialError(Fault(what, "be finite", "NaN or infinity", remedy))
            predicted[task.name] = outputs
        return predicted
