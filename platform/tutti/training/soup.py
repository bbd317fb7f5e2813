"""Greedy model soups (Wortsman et al. 2022, arXiv 2203.05482): the weights of several fine-tunings, averaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tutti.data.encode import EncodedPart
from tutti.ensembling.nested import Fold
from tutti.modeling.average import shape_of, write_mean, write_scores
from tutti.modeling.checkpoint import load_checkpoint, read_metadata
from tutti.tasks.metrics import score_decided
from tutti.training.precision import with_precision
from tutti.training.predict import predict

Parts = Callable[[int], Mapping[str, EncodedPart]]
"""Per task its validation rows, of at most so many tokens."""


@dataclass(frozen=True)
class Taste:
    """What became of one candidate.

    Attributes:
        score: of the soup with it: the mean of ``task_scores``, each task's metric on the validation rows.
        kept: whether it is in the soup: the score did not fall.
    """

    key: str
    score: float
    task_scores: Mapping[str, float]
    kept: bool


@dataclass(frozen=True)
class Soup:
    """What came of all candidates.

    Attributes:
        tastes: in the order of tasting.
        held: per task ``(1, rows)`` class indices or values, what soups say about rows that chose nothing in them; none
            without folds.
    """

    tastes: list[Taste]
    held: Mapping[str, np.ndarray] | None


def greedy_soup(
    candidates: Sequence[str],
    *,
    weights: Mapping[str, Path],
    parts: Parts,
    folder: Path,
    threads: int,
    folds: Sequence[Fold] | None,
) -> Soup:
    """Adds one candidate after the other to the mean of weights, and keeps each with which the score does not fall.

    The soup is a checkpoint in ``folder``; one that was tried in vain leaves nothing. Takes memory for one model.

    Args:
        candidates: keys, the best first, which is always kept; all of one shape.
        weights: key to checkpoint, of all candidates and of all voters of the folds.
        threads: to compute with on a CPU.
        folds: for the soup's honest score, which takes a soup for each: of the fold's voters, chosen on the same rows.

    Raises:
        StorageError, BackboneError: where a checkpoint does not load or the file system refuses.
    """
    torch.set_num_threads(threads)
    kitchen = _Kitchen(weights, parts, folder.with_name(f"{folder.name}-tried"))
    tastes = kitchen.greedy(candidates)
    kept = [taste for taste in tastes if taste.kept]
    held = None if folds is None else _held(kitchen, folds)
    write_mean(folder, [weights[taste.key] for taste in kept], key="+".join(taste.key for taste in kept))
    write_scores(folder, score=kept[-1].score, task_scores=kept[-1].task_scores)
    return Soup(tastes, held)


def _held(kitchen: _Kitchen, folds: Sequence[Fold]) -> dict[str, np.ndarray]:
    """What is said of each fold's held rows by a soup of its voters that was chosen on the others."""
    said: dict[str, np.ndarray] = {}
    for fold in folds:
        alone = {key: kitchen.taste([key], fold.chosen_on).score for key in fold.voters}
        order = sorted(alone, key=lambda key: alone[key], reverse=True)
        alike = [key for key in order if kitchen.shapes[key] == kitchen.shapes[order[0]]]
        kept = [taste.key for taste in kitchen.greedy(alike, fold.chosen_on) if taste.kept]
        for name, answers in kitchen.decided(kept).items():
            held = fold.held_out[name]
            said.setdefault(name, np.empty((1, len(answers)), dtype=answers.dtype))[0, held] = answers[held]
    return said


class _Kitchen:
    """Says what each mean of weights answers, each computed once."""

    def __init__(self, weights: Mapping[str, Path], parts: Parts, tried: Path) -> None:
        self._weights, self._parts, self._tried = weights, parts, tried
        self.shapes = {key: shape_of(folder) for key, folder in weights.items()}
        known = read_metadata(next(iter(weights.values())))
        self._tasks = known.tasks
        self._known: dict[frozenset[str], dict[str, np.ndarray]] = {}
        self._labels: dict[str, np.ndarray] = {}
        for task in self._tasks:
            labels = parts(known.max_length)[task.name].labels
            assert labels is not None
            self._labels[task.name] = labels

    def greedy(self, order: Sequence[str], rows: Mapping[str, np.ndarray] | None = None) -> list[Taste]:
        """The soup that is chosen on some rows of each task, or on all."""
        tastes: list[Taste] = []
        kept: list[str] = []
        best = -np.inf
        for key in order:
            taste = self.taste([*kept, key], rows)
            if good := not kept or taste.score >= best:
                kept, best = [*kept, key], taste.score
            tastes.append(replace(taste, kept=good))
        return tastes

    def taste(self, mixed: Sequence[str], rows: Mapping[str, np.ndarray] | None = None) -> Taste:
        """The scores of the mean of some candidates on some rows of each task, or on all."""
        said, scores = self.decided(mixed), {}
        for task in self._tasks:
            which = slice(None) if rows is None else rows[task.name]
            labels, decided = self._labels[task.name][which], said[task.name][which]
            scores[task.name] = score_decided(task.metric, labels=labels, decided=decided, classes=task.outputs)
        return Taste(mixed[-1], float(np.mean(list(scores.values()))), scores, kept=True)

    def decided(self, mixed: Sequence[str]) -> dict[str, np.ndarray]:
        """Per task ``(rows,)`` class indices or values, what the mean of some candidates says."""
        if (known := self._known.get(frozenset(mixed))) is None:
            write_mean(self._tried, [self._weights[key] for key in mixed], key="+".join(mixed))
            known = self._known[frozenset(mixed)] = self._predicted()
            shutil.rmtree(self._tried)
        return known

    def _predicted(self) -> dict[str, np.ndarray]:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, metadata = load_checkpoint(self._tried, device=device)
        model.to(device)
        chosen = with_precision({}, cpu=device.type == "cpu")
        kind = torch.float16 if chosen.get("fp16") else torch.bfloat16
        found = {}
        with torch.autocast(device.type, dtype=kind, enabled=bool(chosen.get("fp16") or chosen.get("bf16"))):
            parts = self._parts(metadata.max_length)
            for task in metadata.tasks:
                said = predict(model, parts[task.name], task=task.name, batch_size=64, device=device)
                found[task.name] = said if said.ndim == 1 else said.argmax(axis=1)
        return found
