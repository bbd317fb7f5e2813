"""Predicts with many checkpoints: workers on the cluster each predict shards of rows with some of the checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.config.study import Resources
from tutti.copies import address_of, attach, origin_of
from tutti.data.flat_rows import MAX_TOKENS
from tutti.data.flat_rows import SHARD as SHARD
from tutti.errors import ClusterError, Fault, TrialError, TrialMemoryError, TuttiError, first_line
from tutti.orchestration.after.encodings import Checkpoint, Encodings
from tutti.orchestration.after.weights import bring
from tutti.orchestration.worker.cpus import private_cpus
from tutti.orchestration.worker.memory import is_out_of_memory

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import DataFrame

    from tutti.data.encode import EncodedPart
    from tutti.tasks.task import Task

_WITHOUT_TRIAL_REMEDY = "take the trial out of the recipe with `members: {filter: }`, or name another --checkpoint"
_JOBS_PER_WORKER = 2  # in flight, so that no worker is idle while the next shard is tokenized


@dataclass(frozen=True)
class Slots:
    """The number of concurrent workers, and the CPUs and GPUs of each."""

    workers: int
    cpus: int
    gpus: float


def slot_size(resources: Resources) -> tuple[int, float]:
    """CPUs and GPUs per worker: those of a trial's worker, limited on a private Ray to what it has."""
    if os.environ.get("RAY_ADDRESS"):
        return resources.cpus_per_worker, resources.gpus_per_worker
    import torch

    gpus = resources.gpus_per_worker if torch.cuda.device_count() >= resources.gpus_per_worker else 0
    return min(resources.cpus_per_worker, private_cpus()), gpus


def check_one_node(place: Path) -> None:
    """Refuses several nodes to what writes into a folder of a study on object storage: only this one has a copy of it.

    Raises:
        ClusterError: if the cluster has others.
    """
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if (address := address_of(place)) and len(nodes) > 1:
        rule, remedy = f"be one machine where the study is in {address}", "run the command without RAY_ADDRESS"
        raise ClusterError(Fault("the cluster", rule, f"{len(nodes)} nodes", remedy))


class Predictor:
    """A worker that predicts with some of the checkpoints. It keeps as many of them loaded as its memory holds.

    Args:
        folders: folder of each checkpoint, by its number.
        threads: number of CPU threads.
        origins: of studies on object storage, as of ``copies.attach``.
        settings: by number, those of its ``Checkpoint``.
    """

    def __init__(
        self,
        folders: Mapping[int, Path],
        threads: int,
        origins: Iterable[tuple[Path, str]] = (),
        settings: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        import torch

        for origin in origins:
            attach(*origin)
        torch.set_num_threads(threads)
        self._folders, self._settings = dict(folders), dict(settings)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._models: dict[int, Any] = {}
        self._tokenizers: dict[int, Any] = {}

    def load(self, training: Mapping[str, Any]) -> str:
        """Loads the checkpoints and returns the precision in which this worker is fastest: bf16, fp16 or float32.

        It is float32 if one of the checkpoints cannot be computed in another.

        Args:
            training: as in ``fastest``.

        Raises:
            StorageError, BackboneError: if a checkpoint does not load.
            TrialMemoryError: if one does not fit into memory by itself.
        """
        from tutti.training.machine.precision import fastest

        types = [self._model(number).config.model_type for number in self._folders]
        precisions = {fastest(self._device, model_type=each, training=training) for each in types}
        return precisions.pop() if len(precisions) == 1 else "float32"

    def predict(
        self,
        number: int,
        task: str,
        encoded: pa.Table,
        pad_token_id: int,
        precision: str,
        swapped: pa.Table | None = None,
    ) -> np.ndarray:
        """Predicts ``(rows, classes)`` float32 probabilities, or ``(rows,)`` values or texts, in the order of the rows.

        In float32 if one of them is not finite in another precision. With ``swapped`` pairs, the mean of both orders.

        Raises:
            TrialError: if a prediction is not finite.
            TrialMemoryError: if the checkpoint and one row do not fit into memory.
        """
        from tutti.data.encode import part_of
        from tutti.data.known_tokens import check_known
        from tutti.modeling.layers import token_types, tokens
        from tutti.training.predict import are_finite

        rows, model = np.arange(encoded.num_rows), self._model(number)
        part = part_of(rows, encoded, pad_token_id=pad_token_id, swapped=swapped)
        check_known(
            part,
            where=None,
            backbone=str(self._folders[number]),
            tokens=tokens(model.encoder),
            token_types=None if model.head(task).is_bi_encoder else token_types(model.encoder),
            remedy=f"take the rows with it out, or {_WITHOUT_TRIAL_REMEDY}",
        )
        for each in dict.fromkeys((precision, "float32")):
            predictions = self._predict(number, task, part, each)
            if are_finite(predictions, self._model(number).tasks[task].kind):
                return predictions
        what = f"what {self._folders[number]} predicts"
        raise TrialError(Fault(what, "be finite", "NaN or infinity", _WITHOUT_TRIAL_REMEDY))

    def _predict(self, number: int, task: str, part: EncodedPart, precision: str) -> np.ndarray:
        from tutti.training.machine.precision import autocast
        from tutti.training.predict import predict

        tokenizer = self._tokenizer(number) if self._model(number).tasks[task].kind.generative else None
        model, max_tokens = self._model(number), MAX_TOKENS[self._device.type]
        if settings := self._settings.get(number):
            model.tasks[task] = model.tasks[task].written_under(settings)
        while True:
            try:
                with autocast(self._device, precision):
                    return predict(
                        model,
                        part,
                        task=task,
                        tokenizer=tokenizer,
                        batch_size=1,
                        device=self._device,
                        max_tokens=max_tokens,
                    )
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if max_tokens >= part.lengths.max():
                    max_tokens //= 2
                else:
                    self._make_room(number, error)

    def _tokenizer(self, number: int) -> Any:
        from tutti.data.encode import load_tokenizer

        if number not in self._tokenizers:
            self._tokenizers[number] = load_tokenizer(str(self._folders[number]))
        return self._tokenizers[number]

    def _model(self, number: int) -> Any:
        """The checkpoint's model. If memory does not hold it beside the loaded ones, it takes the place of some."""
        from tutti.modeling.checkpoint import load_checkpoint

        while number not in self._models:
            bring(self._folders[number])
            try:
                self._models[number] = load_checkpoint(self._folders[number], device=self._device)[0].to(self._device)
            except Exception as error:
                if not is_out_of_memory(error.__cause__ or error):  # the cause of a BackboneError
                    raise
                self._make_room(number, error.__cause__ or error)
        return self._models[number]

    def _make_room(self, number: int, error: BaseException) -> None:
        """Drops the model that was loaded first, but not that of the checkpoint which memory is needed for."""
        oldest = next((each for each in self._models if each != number), None)
        if oldest is None:
            what, rule = f"the checkpoint {self._folders[number]}", "fit into a worker's memory with its longest row"
            remedy = f"predict where workers have more memory, {_WITHOUT_TRIAL_REMEDY}"
            raise TrialMemoryError(Fault(what, rule, first_line(error), remedy)) from error
        del self._models[oldest]


class LocalPredictor:
    """Predicts with checkpoints in this process, without Ray; they stay loaded as far as memory holds them.

    Args:
        task: that they predict.
        training: as in ``predict_shards``.

    Raises:
        StorageError, BackboneError, TrialMemoryError: as ``Predictor.load`` does.
    """

    def __init__(self, checkpoints: Sequence[Checkpoint], task: Task, *, training: Mapping[str, Any]) -> None:
        import torch

        self._checkpoints, self._encodings = range(len(checkpoints)), Encodings(checkpoints, task)
        folders = {number: each.folder for number, each in enumerate(checkpoints)}
        settings = {number: each.settings for number, each in enumerate(checkpoints)}
        self._predictor = Predictor(folders, torch.get_num_threads(), settings=settings)
        self._precision, self._task = self._predictor.load(training), task.name

    def predict(self, shard: DataFrame) -> list[np.ndarray]:
        """The predictions of every checkpoint for one shard, as ``Predictor.predict`` returns and raises them."""
        encoded = dict(self._encodings.encoded(shard))
        found = []
        for checkpoint in self._checkpoints:
            key, pad = self._encodings.of(checkpoint)
            first, other = encoded[key]
            found.append(self._predictor.predict(checkpoint, self._task, first, pad, self._precision, other))
        return found


def spread(checkpoints: int, workers: int) -> list[range]:
    """The range of checkpoints of each worker: the line of all checkpoints is cut into pieces of equal length.

    Two workers share a checkpoint that is cut. So all workers do the same amount of work, and at most
    ``checkpoints + workers - 1`` checkpoints are loaded.
    """
    return [
        range(number * checkpoints // workers, -(-(number + 1) * checkpoints // workers)) for number in range(workers)
    ]


def predict_shards(
    shards: Iterable[tuple[int, DataFrame]],
    *,
    checkpoints: Sequence[Checkpoint],
    task: Task,
    slots: Slots,
    training: Mapping[str, Any],
    precision: str | None,
    started: Callable[[str], None],
    done: Callable[[int, DataFrame, list[np.ndarray]], None],
) -> None:
    """Predicts with every checkpoint on the Ray that this process is connected to. Takes memory for a few shards.

    Each shard is tokenized once for all checkpoints that share tokenizer and limit. A worker that dies is
    restarted, and its prediction repeated.

    Args:
        shards: each with its number; read only as needed.
        training: the study's training keys, which may rule out a precision.
        precision: bf16, fp16 or float32; by default the fastest of all workers, or float32 if they differ.
        started: called with the precision once the workers have loaded their checkpoints.
        done: called with each shard's number, rows, and the predictions of every checkpoint as ``Predictor.predict``
            returns them. Shards come in any order.

    Raises:
        StorageError, BackboneError: if a checkpoint does not load.
        TrialError: if a prediction is not finite, or a checkpoint does not fit into memory.
        ClusterError: if workers die repeatedly.
    """
    import ray

    ranges = spread(len(checkpoints), slots.workers)
    folders, settings = [each.folder for each in checkpoints], [each.settings for each in checkpoints]
    origins = {origin for each in checkpoints if (origin := origin_of(each.folder))}
    actor = ray.remote(Predictor).options(num_cpus=slots.cpus, num_gpus=slots.gpus, max_restarts=3, max_task_retries=3)
    with worker_faults():
        workers = [
            actor.remote({n: folders[n] for n in numbers}, slots.cpus, origins, {n: settings[n] for n in numbers})
            for numbers in ranges
        ]
        fastest = set(ray.get([worker.load.remote(training) for worker in workers]))
        precision = precision or (fastest.pop() if len(fastest) == 1 else "float32")
        started(precision)
        queue = _Queue(shards, checkpoints, ranges, task)
        running: dict[Any, tuple[int, _Shard, int]] = {}  # by result: worker, shard, checkpoint
        while True:
            loads = [sum(owner == number for owner, _, _ in running.values()) for number in range(len(workers))]
            for number in sorted(range(len(workers)), key=loads.__getitem__):
                while loads[number] < _JOBS_PER_WORKER and (job := queue.take(number)):
                    shard, checkpoint = job
                    encoding, pad_token_id = queue.encodings.of(checkpoint)
                    rows, other = shard.encoded[encoding]
                    result = workers[number].predict.remote(checkpoint, task.name, rows, pad_token_id, precision, other)
                    running[result] = (number, shard, checkpoint)
                    loads[number] += 1
            if not running:
                return
            for result in ray.wait(list(running))[0]:
                _, shard, checkpoint = running.pop(result)
                shard.predictions[checkpoint] = ray.get(result)
                if len(shard.predictions) == len(checkpoints):
                    queue.drop(shard)
                    done(shard.number, shard.rows, [shard.predictions[each] for each in range(len(checkpoints))])


@dataclass(eq=False)
class _Shard:
    """A shard in flight.

    Attributes:
        encoded: references to the encoded rows, and to those with swapped texts or None, by encoding.
        unassigned: checkpoints that no worker has been assigned for this shard.
        predictions: results so far, by checkpoint.
    """

    number: int
    rows: DataFrame
    encoded: Mapping[str, Any]
    unassigned: set[int]
    predictions: dict[int, np.ndarray] = field(default_factory=dict)


class _Queue:
    """Assigns each worker the earliest shard for one of its checkpoints. Reads further shards as needed.

    Attributes:
        encodings: of the checkpoints.
    """

    def __init__(
        self,
        shards: Iterable[tuple[int, DataFrame]],
        checkpoints: Sequence[Checkpoint],
        ranges: Sequence[range],
        task: Task,
    ) -> None:
        self.encodings = Encodings(checkpoints, task)
        self._shards = iter(shards)
        self._ranges = ranges
        self._worker_counts = [sum(number in numbers for numbers in ranges) for number in range(len(checkpoints))]
        self._in_flight: list[_Shard] = []

    def take(self, worker: int) -> tuple[_Shard, int] | None:
        """A shard and a checkpoint for a worker; none if no shard is left, or too many are in flight."""
        while True:
            for shard in self._in_flight:
                if candidates := shard.unassigned.intersection(self._ranges[worker]):
                    # Checkpoints that few workers hold come first, so that workers who share one finish together.
                    checkpoint = min(candidates, key=lambda number: (self._worker_counts[number], number))
                    shard.unassigned.remove(checkpoint)
                    return shard, checkpoint
            if len(self._in_flight) > 2 * _JOBS_PER_WORKER * len(self._ranges) or not self._read():
                return None

    def drop(self, shard: _Shard) -> None:
        self._in_flight.remove(shard)

    def _read(self) -> bool:
        import ray

        number, rows = next(self._shards, (None, None))
        if number is None or rows is None:
            return False
        encoded = {
            encoding: (ray.put(table), None if other is None else ray.put(other))
            for encoding, (table, other) in self.encodings.encoded(rows)
        }
        self._in_flight.append(_Shard(number, rows, encoded, set(range(len(self._worker_counts)))))
        return True


@contextmanager
def worker_faults() -> Iterator[None]:
    """Re-raises a worker's own TuttiError unchanged, and errors of Ray as a ClusterError."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, TuttiError):
            raise error.cause from None
        raise
    except RayError as error:
        remedy = "check that no node runs out of memory, and run the command again: it goes on"
        raise ClusterError(Fault("the workers that predict", "live on", first_line(error), remedy)) from error
