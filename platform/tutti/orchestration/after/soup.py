"""Computes a greedy soup of a study's trials on one worker of the cluster: each step depends on the previous one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.data.prepared import load_prepared
from tutti.orchestration.after.inference import Slots, worker_faults
from tutti.records import TextLimit

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart
    from tutti.ensembling.nested import Fold
    from tutti.training.tricks.soup import Soup


def averageable(candidates: Mapping[str, Path]) -> dict[str, Path]:
    """The candidates whose weights can be averaged with the first one's.

    Raises:
        StorageError: if one cannot be read.
    """
    from tutti.modeling.average import shape_of

    shapes = {key: shape_of(folder) for key, folder in candidates.items()}
    first = next(iter(shapes.values()))
    return {key: folder for key, folder in candidates.items() if shapes[key] == first}


def compute_soup(
    folder: StudyFolder,
    candidates: Sequence[str],
    *,
    weights: Mapping[str, Path],
    folds: Sequence[Fold] | None,
    into: Path,
    training: Mapping[str, Any],
    slot: Slots,
) -> Soup:
    """Runs ``greedy_soup`` on the Ray that this process is connected to.

    Args:
        into: folder for the checkpoint, visible to every node.
        training: the study's training keys, which may rule out a precision.

    Raises:
        StorageError, BackboneError: if a checkpoint does not load, or a file cannot be written.
        TrialError: if predictions are not finite.
        ClusterError: if the worker dies repeatedly.
    """
    import ray

    def compute(folds: Sequence[Fold] | None) -> Soup:  # an argument: Ray limits the size of what a function captures
        from tutti.data.encode import load_parts
        from tutti.training.tricks.soup import greedy_soup

        prepared = load_prepared(folder.data)
        alone = {task: {"validation": by_part["validation"]} for task, by_part in prepared.parts.items()}
        prepared = replace(prepared, parts=alone)

        @cache
        def parts(limit: TextLimit) -> dict[str, EncodedPart]:
            loaded = load_parts(prepared, tokenizer=str(weights[candidates[0]]), limit=limit, cache=folder.encoded)
            return {task: by_part["validation"] for task, by_part in loaded.items()}

        return greedy_soup(
            candidates, weights=weights, parts=parts, folder=into, threads=slot.cpus, folds=folds, training=training
        )

    with worker_faults():
        return ray.get(ray.remote(compute).options(num_cpus=slot.cpus, num_gpus=slot.gpus, max_retries=2).remote(folds))
