"""Computes a greedy soup of a study's trials on one worker of the cluster: each step depends on the previous one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.config.folder import StudyFolder
from tutti.data.prepared import load_prepared
from tutti.orchestration.after.inference import Slots, check_one_node, worker_faults
from tutti.records import TextLimit

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart
    from tutti.ensembling.nested import Fold
    from tutti.training.tricks.soup import Soup


def averageable(candidates: Mapping[str, Sequence[Path]]) -> dict[str, Sequence[Path]]:
    """The candidates, each a checkpoint or those of its folds, whose weights can be averaged with the first one's.

    Raises:
        StorageError: if one cannot be read.
    """
    from tutti.modeling.average import shape_of

    shapes = {key: [shape_of(folder) for folder in folders] for key, folders in candidates.items()}
    first = next(iter(shapes.values()))
    return {key: folders for key, folders in candidates.items() if shapes[key] == first}


def compute_soup(
    folder: StudyFolder,
    candidates: Sequence[str],
    *,
    weights: Mapping[str, Sequence[Path]],
    folds: Sequence[Fold] | None,
    into: Path,
    training: Mapping[str, Any],
    slot: Slots,
) -> Soup:
    """Runs ``greedy_soup`` on the Ray that this process is connected to.

    Args:
        into: folder for the checkpoint, or a folder of it for each fold, visible to every node.
        training: the study's training keys, which may rule out a precision.

    Raises:
        StorageError, BackboneError: if a checkpoint does not load, or a file cannot be written.
        TrialError: if predictions are not finite.
        ClusterError: if the worker dies repeatedly.
    """
    import ray

    check_one_node(folder.path)

    def compute(folds: Sequence[Fold] | None) -> Soup:  # an argument: Ray limits the size of what a function captures
        from tutti.data.encode import load_parts
        from tutti.training.tricks.soup import greedy_soup

        prepared = load_prepared(folder.data)
        fold_of_rows = None
        if prepared.settings["split"].get("folds"):
            of_train = {task.name: prepared.folds(task.name) for task in prepared.tasks}
            fold_of_rows = {task: own[own >= 0] for task, own in of_train.items()}
        alone = {task: {"validation": by_part["validation"]} for task, by_part in prepared.parts.items()}
        prepared = replace(prepared, parts=alone)

        @cache
        def parts(limit: TextLimit) -> dict[str, EncodedPart]:
            tokenizer = str(weights[candidates[0]][0])
            loaded = load_parts(prepared, tokenizer=tokenizer, limit=limit, cache=folder.encoded)
            return {task: by_part["validation"] for task, by_part in loaded.items()}

        return greedy_soup(
            candidates,
            weights=weights,
            parts=parts,
            folder=into,
            threads=slot.cpus,
            folds=folds,
            training=training,
            fold_of_rows=fold_of_rows,
        )

    with worker_faults():
        return ray.get(ray.remote(compute).options(num_cpus=slot.cpus, num_gpus=slot.gpus, max_retries=2).remote(folds))
