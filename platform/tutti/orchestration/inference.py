"""Inference over checkpoints: shards of rows go to workers on the cluster, and what each checkpoint says comes back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tutti.config.folder import StudyFolder
from tutti.config.study import Resources
from tutti.errors import ClusterError, Fault, StudyError, TrialError, TuttiError
from tutti.orchestration.folds import fold_name
from tutti.orchestration.memory import is_out_of_memory

if TYPE_CHECKING:
    import pyarrow as pa
    from pandas import DataFrame

    from tutti.tasks.task import Task

SHARD = 1024
"""Rows that are tokenized, sorted by length, predicted and kept together. The same on every machine, so that what comes
out does not depend on how many workers there are."""

_MAX_TOKENS = {"cpu": 1024, "cuda": 32768}  # of a batch, padding included: what keeps a core's caches, or a GPU, busy
_FEWER = "name a recipe whose members have theirs (a smaller `members: {top: }` takes the best), or train it again"
_AHEAD = 2  # jobs that wait with each worker, so that none stands still while the next shard is tokenized


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to predict with.

    Attributes:
        folder: that every node sees.
        max_length: most tokens of a row that it was trained on.
    """

    folder: Path
    max_length: int


@dataclass(frozen=True)
class Slots:
    """Workers that run at a time, and what each takes."""

    workers: int
    cpus: int
    gpus: float


def slot_size(resources: Resources) -> tuple[int, float]:
    """CPUs and GPUs of a worker: what a trial's has, or as much of it as this machine has where it works alone."""
    if os.environ.get("RAY_ADDRESS"):
        return resources.cpus_per_worker, resources.gpus_per_worker
    import torch

    gpus = resources.gpus_per_worker if torch.cuda.device_count() >= resources.gpus_per_worker else 0
    return min(resources.cpus_per_worker, os.cpu_count() or 1), gpus


def weights_of(
    folder: StudyFolder, keys: Sequence[str], *, folds: int | None, tasks: Sequence[Task]
) -> dict[str, list[Path]]:
    """The checkpoints of each trial, one, or one for each fold, whose mean is what the trial says.

    Raises:
        StudyError: where the weights of some are not there, naming each.
        StorageError: where one is damaged.
    """
    found: dict[str, list[Path]] = {}
    faults: list[Fault] = []
    for key in keys:
        trial = folder.trial(key)
        places = [trial / fold_name(fold) for fold in range(folds)] if folds else [trial]
        found[key] = [place / "best" for place in places]
        try:
            for place in found[key]:
                check_predicts(place, tasks, what=f"trial {key}", remedy=_FEWER)
        except StudyError as error:
            faults += error.faults
    if faults:
        raise StudyError(*faults)
    return found


def check_predicts(folder: Path, tasks: Sequence[Task], *, what: str, remedy: str) -> None:
    """Sees that a checkpoint is there and knows the tasks.

    Args:
        what: names it in a message.
        remedy: where it is not there.

    Raises:
        StudyError: where it is not, or does not.
        StorageError: where its metadata cannot be read.
    """
    from tutti.modeling.checkpoint import METADATA, is_pruned, read_metadata

    rule = f"have weights, in {folder}, to predict with"
    try:
        there = (folder / METADATA).is_file()
        got = "ones that were pruned to keep within storage.max_gigabytes" if is_pruned(folder) else "none"
    except OSError as error:  # not allowed to look, or a name that is too long
        raise StudyError(Fault(what, rule, error.strerror or str(error), remedy)) from error
    if not there:
        raise StudyError(Fault(what, rule, got, remedy))
    known = read_metadata(folder).tasks
    for task in tasks:
        if task not in known:
            rule = f"predict the task {task.name} as the study has it, with {_shape(task)}"
            got = ", ".join(f"{each.name} with {_shape(each)}" for each in known)
            raise StudyError(Fault(what, rule, got, "name a checkpoint of this study"))


def _shape(task: Task) -> str:
    return f"{'two texts' if task.pair else 'one text'} and " + (f"{task.outputs} classes", "values")[task.regression]


class Predictor:
    """A worker: holds some checkpoints, each loaded when it is first used, and predicts with them.

    Args:
        folders: number to folder of each checkpoint.
        threads: that it computes with on a CPU.
    """

    def __init__(self, folders: Mapping[int, Path], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._folders = dict(folders)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._models: dict[int, Any] = {}

    def fastest(self) -> str:
        """Loads its checkpoints, and names the precision that it predicts fastest in: bf16, fp16 or float32.

        Raises:
            StorageError, BackboneError: where one does not load.
        """
        from tutti.training.precision import with_precision

        for number in self._folders:
            self._model(number)
        chosen = with_precision({}, cpu=self._device.type == "cpu")
        return next((name for name in ("bf16", "fp16") if chosen.get(name)), "float32")

    def predict(self, number: int, task: str, encoded: pa.Table, pad_token_id: int, precision: str) -> np.ndarray:
        """``(rows, classes)`` float32 probabilities, or ``(rows,)`` values, in the order of the rows.

        Raises:
            TrialError: where they are not finite.
        """
        import torch

        from tutti.data.encode import part_of
        from tutti.training.predict import predict

        part = part_of(np.arange(encoded.num_rows), encoded, pad_token_id=pad_token_id)
        model, tokens = self._model(number), _MAX_TOKENS[self._device.type]
        kind = torch.float16 if precision == "fp16" else torch.bfloat16
        while True:
            try:
                with torch.autocast(self._device.type, dtype=kind, enabled=precision != "float32"):
                    said = predict(model, part, task=task, batch_size=1, device=self._device, max_tokens=tokens)
                break
            except Exception as error:
                if not is_out_of_memory(error) or tokens < part.lengths.max():
                    raise
                tokens //= 2
        if not np.isfinite(said).all():
            remedy = "set `bf16: false` in the study's training keys, or take the trial out of the recipe"
            raise TrialError(Fault(f"what {self._folders[number]} predicts", "be finite", "NaN or infinity", remedy))
        return said

    def _model(self, number: int) -> Any:
        from tutti.modeling.checkpoint import load_checkpoint

        if number not in self._models:
            model, _ = load_checkpoint(self._folders[number], device=self._device)
            self._models[number] = model.to(self._device)
        return self._models[number]


def spread(checkpoints: int, workers: int) -> list[range]:
    """Which checkpoints each worker holds: all are laid on a line, which is cut into equal pieces.

    So no two workers have to do unlike amounts of work, and at most ``checkpoints + workers - 1`` are loaded.
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
    precision: str | None,
    started: Callable[[str], None],
    done: Callable[[int, DataFrame, list[np.ndarray]], None],
) -> None:
    """Predicts with every checkpoint on the Ray that is connected. Takes memory for a few shards.

    Each shard is tokenized once for all checkpoints of one tokenizer and max_length. A worker that dies is started
    again, and what it was predicting is predicted again.

    Args:
        shards: each with its number; read as they are needed.
        precision: bf16, fp16 or float32; by default float32 unless all workers are faster in another.
        started: called with the precision once the workers have loaded their checkpoints.
        done: called for each shard, in whatever order they are ready, with what each checkpoint says about its rows,
            as ``Predictor.predict`` gives it.

    Raises:
        StorageError, BackboneError: where a checkpoint does not load.
        TrialError: where what one says is not finite.
        ClusterError: where workers die again and again.
    """
    import ray

    holding = spread(len(checkpoints), slots.workers)
    worker = ray.remote(Predictor).options(num_cpus=slots.cpus, num_gpus=slots.gpus, max_restarts=3, max_task_retries=3)
    with worker_faults():
        workers = [
            worker.remote({number: checkpoints[number].folder for number in held}, slots.cpus) for held in holding
        ]
        fastest = set(ray.get([each.fastest.remote() for each in workers]))
        precision = precision or (fastest.pop() if len(fastest) == 1 else "float32")
        started(precision)
        queue = _Queue(shards, checkpoints, holding)
        running: dict[Any, tuple[int, _Shard, int]] = {}
        while True:
            loads = [sum(owner == number for owner, _, _ in running.values()) for number in range(len(workers))]
            for number in sorted(range(len(workers)), key=loads.__getitem__):
                while loads[number] < _AHEAD and (job := queue.take(number)):
                    shard, model = job
                    kind = queue.kinds[model]
                    rows, pad_token_id = shard.encoded[kind], queue.tokenizers[kind][0].pad_token_id
                    ref = workers[number].predict.remote(model, task.name, rows, pad_token_id, precision)
                    running[ref] = (number, shard, model)
                    loads[number] += 1
            if not running:
                return
            for ref in ray.wait(list(running))[0]:
                _, shard, model = running.pop(ref)
                shard.said[model] = ray.get(ref)
                if len(shard.said) == len(checkpoints):
                    queue.drop(shard)
                    done(shard.number, shard.rows, [shard.said[each] for each in range(len(checkpoints))])


@dataclass(eq=False)
class _Shard:
    """Rows in flight: what is still to be given out, and what has come back.

    Attributes:
        encoded: references to the encoded rows, by the kind of encoding.
        open: checkpoints that no worker has been given yet.
    """

    number: int
    rows: DataFrame
    encoded: Mapping[str, Any]
    open: set[int]
    said: dict[int, np.ndarray] = field(default_factory=dict)


class _Queue:
    """Gives each worker the earliest shard for a checkpoint that it holds, and reads on where there is none.

    Attributes:
        kinds: of each checkpoint, what tells its encoding from others.
        tokenizers: of each kind, the tokenizer and max_length.
    """

    def __init__(
        self, shards: Iterable[tuple[int, DataFrame]], checkpoints: Sequence[Checkpoint], holding: Sequence[range]
    ) -> None:
        from tutti.data.encode import encoding_key, load_tokenizer

        self.kinds: list[str] = []
        self.tokenizers: dict[str, tuple[Any, int]] = {}
        for each in checkpoints:
            tokenizer = load_tokenizer(str(each.folder))
            self.kinds.append(encoding_key("", tokenizer, each.max_length))
            self.tokenizers.setdefault(self.kinds[-1], (tokenizer, each.max_length))
        self._left = iter(shards)
        self._holding = holding
        # What few others can do comes first, so that workers who share a checkpoint end together.
        self._holders = [sum(number in held for held in holding) for number in range(len(checkpoints))]
        self._open: list[_Shard] = []

    def take(self, worker: int) -> tuple[_Shard, int] | None:
        """A job, or none where nothing is left, or too much is in flight already."""
        while True:
            for shard in self._open:
                if mine := shard.open.intersection(self._holding[worker]):
                    model = min(mine, key=lambda number: (self._holders[number], number))
                    shard.open.remove(model)
                    return shard, model
            if len(self._open) > 2 * _AHEAD * len(self._holding) or not self._read():
                return None

    def drop(self, shard: _Shard) -> None:
        self._open.remove(shard)

    def _read(self) -> bool:
        import pyarrow as pa
        import ray

        from tutti.data.encode import encode_rows

        number, rows = next(self._left, (None, None))
        if number is None or rows is None:
            return False
        texts = pa.table({name: pa.array(rows[name], pa.string()) for name in ("text", "text_b") if name in rows})
        encoded = {
            kind: ray.put(encode_rows(texts, tokenizer=tokenizer, max_length=length))
            for kind, (tokenizer, length) in self.tokenizers.items()
        }
        self._open.append(_Shard(number, rows, encoded, set(range(len(self._holders)))))
        return True


@contextmanager
def worker_faults() -> Iterator[None]:
    """Raises a worker's own error as it was, and Ray's as a ClusterError."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, TuttiError):
            raise error.cause from None
        raise
    except RayError as error:
        got = next(iter(str(error).splitlines()), type(error).__name__)
        remedy = "see that no node runs out of memory, and run the command again: it goes on"
        raise ClusterError(Fault("the workers that predict", "live on", got, remedy)) from error
