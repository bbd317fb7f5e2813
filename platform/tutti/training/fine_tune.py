"""Fine-tunes one encoder on several tasks, from the backbone to the best checkpoint and its predictions."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments, set_seed

from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.errors import Fault, TrialError
from tutti.files import storage_faults
from tutti.modeling.checkpoint import METADATA, load_checkpoint, save_checkpoint
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.records import CheckpointRecord, Predictions
from tutti.tasks.metrics import score as score_of
from tutti.tasks.task import Task
from tutti.training.options import FIXED, split_training
from tutti.training.predict import predict
from tutti.training.ranks import from_rank_zero, rank, world_size
from tutti.training.report import EpochReport, FineTuned
from tutti.training.resume import load_average, newest_state, save_state
from tutti.training.trainer import MultiTaskTrainer

Parts = Mapping[str, Mapping[str, EncodedPart]]


def fine_tune(
    *,
    backbone: str,
    tasks: Sequence[Task],
    parts: Parts,
    training: Mapping[str, Any],
    folder: Path,
    on_epoch: Callable[[EpochReport], None],
    key: str = "",
    number: int = 0,
) -> FineTuned:
    """Trains, evaluates after each epoch on the parts "validation", and predicts all but "train" with the best.

    Runs in a plain process, or on every rank of an initialised process group whose RANK, WORLD_SIZE and LOCAL_RANK
    are in the environment. The best checkpoint lies in ``folder/best``, the newest two states to go on from in
    ``folder/resume``: a run on the same folder goes on from the newest whole one. Only rank 0 writes.

    Args:
        training: the user's training keys with the trial's parameters laid over them.
        on_epoch: called on every rank, after the epoch's state is on disk. What it raises ends the run.

    Raises:
        BackboneError: where the backbone or its tokenizer does not load.
        TrialError: where the loss is not finite, or the training keys do not fit this machine.
        StorageError: where a file cannot be written or read back.
    """
    options, arguments = split_training(training)
    threads = torch.get_num_threads()
    args = _training_arguments(arguments, folder)
    from_rank_zero(lambda: _make_folder(folder))
    try:
        set_seed(args.seed)
        model = MultiTaskModel(
            encoder=load_encoder(backbone),
            classes={task.name: len(task.class_names) for task in tasks},
            pooling=options.pooling,
            head_dropout=options.head_dropout,
        )
        run = _Run(tasks, parts, folder, key, number, load_tokenizer(backbone), on_epoch)
        trainer = _trainer(model, args, run, training=training, ema_decay=options.ema_decay)
        torch.set_num_threads(threads)  # accelerate takes every core where OMP_NUM_THREADS is not set
        state = newest_state(folder / "resume")
        if state is not None:
            if (
                folder / "best" / METADATA
            ).is_file():  # else a kill fell between two renames, and it is to be kept anew
                run.best_score = state.best_score
            load_average(state, trainer)
        if state is None or not state.done:
            with _fits_the_machine(ImportError):  # such as an optimizer whose library is not installed
                trainer.train(resume_from_checkpoint=None if state is None else str(state.folder))
        return run.finish(trainer)
    finally:
        torch.set_num_threads(threads)


@dataclass
class _Run:
    """What goes on around the trainer's steps."""

    tasks: Sequence[Task]
    parts: Parts
    folder: Path
    key: str
    number: int
    tokenizer: PreTrainedTokenizerBase
    on_epoch: Callable[[EpochReport], None]
    best_score: float = -math.inf
    started: float = field(default_factory=time.monotonic)

    def after_epoch(self, trainer: MultiTaskTrainer) -> None:
        """Evaluates, keeps the best, saves a state, reports."""
        epoch = math.ceil(trainer.state.epoch or 0)
        metrics = {"train_loss": trainer.take_train_loss()}
        if trainer.average is None:
            score, task_scores = self._evaluate_and_keep(trainer, epoch, metrics)
        else:
            with trainer.average.applied():
                score, task_scores = self._evaluate_and_keep(trainer, epoch, metrics)
        done = trainer.state.global_step >= trainer.state.max_steps
        save_state(self.folder / "resume", trainer, epoch=epoch, best_score=self.best_score, done=done)
        steps = tuple(trainer.logged)
        trainer.logged.clear()
        now = time.monotonic()
        report = EpochReport(epoch, score, task_scores, metrics, steps, now - self.started, done)
        self.started = now
        self.on_epoch(report)

    def _evaluate_and_keep(
        self, trainer: MultiTaskTrainer, epoch: int, metrics: dict[str, float]
    ) -> tuple[float, dict[str, float]]:
        task_scores = {}
        for task in self.tasks:
            part = self.parts[task.name]["validation"]
            values = _measure(task, part, self._predict(trainer, trainer.model, task, part))
            task_scores[task.name] = values[f"{task.name}/{task.metric}"]
            metrics |= values
        score = float(np.mean(list(task_scores.values())))
        if score > self.best_score:
            self.best_score = score
            from_rank_zero(
                lambda: save_checkpoint(
                    self.folder / "best",
                    model=trainer.model,
                    tokenizer=self.tokenizer,
                    tasks=self.tasks,
                    key=self.key,
                    number=self.number,
                    epoch=epoch,
                    score=score,
                    task_scores=task_scores,
                )
            )
        return score, task_scores

    def finish(self, trainer: MultiTaskTrainer) -> FineTuned:
        """Loads the best checkpoint and predicts every part of every task but its training rows with it."""
        folder = self.folder / "best"
        model, found = load_checkpoint(folder)
        model.to(trainer.args.device)
        predictions = {
            task.name: {
                name: Predictions(
                    ids=part.ids,
                    probabilities=self._predict(trainer, model, task, part),
                    labels=part.labels,
                    class_names=task.class_names,
                )
                for name, part in self.parts[task.name].items()
                if name != "train"
            }
            for task in self.tasks
        }
        record = CheckpointRecord(self.key, self.number, found.epoch, found.score, found.task_scores, str(folder))
        return FineTuned(record, predictions)

    def _predict(self, trainer: MultiTaskTrainer, model: MultiTaskModel, task: Task, part: EncodedPart) -> np.ndarray:
        args = trainer.args
        with trainer.accelerator.autocast():  # the precision that the trial trains in
            return predict(
                model,
                part,
                task=task.name,
                batch_size=args.per_device_eval_batch_size,
                device=args.device,
                rank=rank(),
                world=world_size(),
            )


def _measure(task: Task, part: EncodedPart, probabilities: np.ndarray) -> dict[str, float]:
    """Loss and metrics of one task on its validation rows."""
    labels = part.labels
    assert labels is not None
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    values = {f"{task.name}/loss": float(-np.log(own.clip(min=1e-30)).mean())}
    for metric in sorted({"macro_f1", "accuracy", task.metric}):
        values[f"{task.name}/{metric}"] = score_of(metric, labels=labels, probabilities=probabilities)
    return values


def _make_folder(folder: Path) -> None:
    """Makes the trial's folder, or sweeps from it what an earlier attempt was writing when it was killed."""
    with storage_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for half in [*folder.rglob(".*.tmp"), *folder.rglob(".*.old")]:
        shutil.rmtree(half, ignore_errors=True)


def _training_arguments(arguments: Mapping[str, Any], folder: Path) -> TrainingArguments:
    given = {"use_cpu": not torch.cuda.is_available(), **arguments}
    with _fits_the_machine(ValueError, ImportError):  # such as bf16 on a GPU without it
        args = TrainingArguments(**{**given, **FIXED, "output_dir": str(folder)})
    if args.fp16 and args.device.type == "cpu":  # accelerate would train in float32 without a word
        what = "the training key fp16"
        raise TrialError(Fault(what, "be left out on a CPU", "fp16 without a GPU", "set bf16 instead, or use a GPU"))
    if args.world_size != world_size():
        got = f"{args.world_size} by the environment variables"
        remedy = "set RANK, WORLD_SIZE and LOCAL_RANK on every worker before the process group is made"
        raise TrialError(Fault("the number of workers", f"be the process group's {world_size()}", got, remedy))
    return args


def _trainer(
    model: MultiTaskModel, args: TrainingArguments, run: _Run, *, training: Mapping[str, Any], ema_decay: float | None
) -> MultiTaskTrainer:
    with _fits_the_machine(ValueError, ImportError):
        return MultiTaskTrainer(
            model=model,
            args=args,
            parts={task.name: run.parts[task.name]["train"] for task in run.tasks},
            ema_decay=ema_decay,
            parameters=training,
            after_epoch=run.after_epoch,
        )


@contextmanager
def _fits_the_machine(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        got = str(error).splitlines()[0] if str(error) else type(error).__name__
        what, remedy = "the training keys", "change them in the study file"
        raise TrialError(Fault(what, "fit the machine that trains", got, remedy)) from error
