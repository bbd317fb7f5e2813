"""A soup of a study's trials, stirred by one worker on the cluster: each step needs the one before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tutti.config.folder import StudyFolder
from tutti.data.prepare import load_prepared
from tutti.orchestration.inference import Slots, worker_faults

if TYPE_CHECKING:
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


def stir(folder: StudyFolder, candidates: Mapping[str, Path], *, backbone: str, into: Path, slot: Slots) -> Soup:
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
        return ray.get(task.remote(folder, candidates, backbone, into, slot.cpus))


def _stir(folder: StudyFolder, candidates: Mapping[str, Path], backbone: str, into: Path, threads: int) -> Soup:
    from tutti.data.encode import load_part
    from tutti.modeling.checkpoint import read_metadata
    from tutti.training.soup import greedy_soup

    prepared = load_prepared(folder.data)
    max_length = read_metadata(next(iter(candidates.values()))).max_length
    parts = {
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
    return greedy_soup(candidates, parts=parts, folder=into, threads=threads)
