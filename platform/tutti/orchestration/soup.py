"""A soup of a study's trials, stirred by one worker on the cluster: each step needs the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.config.folder import StudyFolder
from tutti.data.prepare import load_prepared
from tutti.orchestration.inference import Slots, worker_faults

if TYPE_CHECKING:
    from tutti.data.encode import EncodedPart
    from tutti.ensembling.nested import Fold
    from tutti.training.soup import Soup


def alike(candidates: Mapping[str, Path]) -> dict[str, Path]:
    """The candidates that can be mixed with the first one.

    Raises:
        StorageError: where one cannot be read.
    """
    from tutti.modeling.average import shape_of

    shapes = {key: shape_of(folder) for key, folder in candidates.items()}
    first = next(iter(shapes.values()))
    return {key: folder for key, folder in candidates.items() if shapes[key] == first}


def stir(
    folder: StudyFolder,
    candidates: Sequence[str],
    *,
    weights: Mapping[str, Path],
    folds: Sequence[Fold] | None,
    backbone: str,
    into: Path,
    slot: Slots,
) -> Soup:
    """A greedy soup, as ``greedy_soup`` makes it, on the Ray that is connected.

    Args:
        into: where the checkpoint is written, in a folder that every node sees.

    Raises:
        StorageError, BackboneError: where a checkpoint does not load or the file system refuses.
        ClusterError: where the worker dies again and again.
    """
    import ray

    with worker_faults():
        task = ray.remote(_stir).options(num_cpus=slot.cpus, num_gpus=slot.gpus, max_retries=2)
        return ray.get(task.remote(folder, candidates, weights, folds, backbone, into, slot.cpus))


def _stir(
    folder: StudyFolder,
    candidates: Sequence[str],
    weights: Mapping[str, Path],
    folds: Sequence[Fold] | None,
    backbone: str,
    into: Path,
    threads: int,
) -> Soup:
    from tutti.data.encode import load_part
    from tutti.training.soup import greedy_soup

    prepared = load_prepared(folder.data)

    @cache
    def parts(max_length: int) -> dict[str, EncodedPart]:
        return {
            task.name: load_part(
                prepared,
                task=task.name,
                part="validation",
                tokenizer=backbone,
                max_length=max_length,
                cache=folder.encoded,
            )
            for task in prepared.tasks
        }

    return greedy_soup(candidates, weights=weights, parts=parts, folder=into, threads=threads, folds=folds)
