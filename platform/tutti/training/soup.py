"""Greedy model soups (Wortsman et al. 2022, arXiv 2203.05482): the weights of several fine-tunings, averaged."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tutti.data.encode import EncodedPart
from tutti.modeling.average import write_mean, write_scores
from tutti.modeling.checkpoint import load_checkpoint
from tutti.tasks.metrics import score as score_of
from tutti.training.precision import with_precision
from tutti.training.predict import predict


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


def greedy_soup(
    candidates: Mapping[str, Path], *, parts: Mapping[str, EncodedPart], folder: Path, threads: int
) -> list[Taste]:
    """Adds one candidate after the other to the mean of weights, and keeps each with which the score does not fall.

    The soup is a checkpoint in ``folder``; one that was tried in vain leaves nothing. Takes memory for one model.

    Args:
        candidates: key to checkpoint, the best first, which is always kept; all of one shape.
        parts: per task its validation rows.
        threads: to compute with on a CPU.

    Raises:
        StorageError, BackboneError: where a checkpoint does not load or the file system refuses.
    """
    torch.set_num_threads(threads)
    tastes: list[Taste] = []
    kept: list[str] = []
    tried = folder.with_name(f"{folder.name}-tried")
    for key in candidates:
        mixed = [*kept, key]
        write_mean(tried, [candidates[each] for each in mixed], key="+".join(mixed))
        task_scores = _scores(tried, parts)
        score = float(np.mean(list(task_scores.values())))
        good = not kept or score >= max(taste.score for taste in tastes if taste.kept)
        tastes.append(Taste(key, score, task_scores, good))
        if good:
            kept = mixed
            write_scores(tried, score=score, task_scores=task_scores)
            _remove(folder)
            tried.rename(folder)
    _remove(tried)
    return tastes


def _scores(folder: Path, parts: Mapping[str, EncodedPart]) -> dict[str, float]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, metadata = load_checkpoint(folder, device=device)
    model.to(device)
    chosen = with_precision({}, cpu=device.type == "cpu")
    kind = torch.float16 if chosen.get("fp16") else torch.bfloat16
    scores = {}
    with torch.autocast(device.type, dtype=kind, enabled=bool(chosen.get("fp16") or chosen.get("bf16"))):
        for task in metadata.tasks:
            part = parts[task.name]
            assert part.labels is not None
            said = predict(model, part, task=task.name, batch_size=64, device=device)
            scores[task.name] = score_of(task.metric, labels=part.labels, predicted=said)
    return scores


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
