"""Fine-tunes one encoder on several tasks, from the backbone to the best checkpoint and its predictions."""

from __future__ import annotations

import gc
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

from tutti.config.stages import staged
from tutti.config.training import TrainingOptions
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.errors import Fault, TrialError
from tutti.files import storage_faults
from tutti.modeling.adapters import adapter_of, forget_optimizers
from tutti.modeling.checkpoint import METADATA, load_checkpoint, save_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.layers import reinitialise
from tutti.modeling.mixout import add_mixout
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.records import CheckpointRecord, Predictions
from tutti.tasks.task import Task
from tutti.training.measure import measure
from tutti.training.options import FIXED, split_training
from tutti.training.precision import autocast, name_of, with_precision
from tutti.training.predict import predict
from tutti.training.ranks import from_rank_zero, rank, world_size
from tutti.training.report import EpochReport, FineTuned
from tutti.training.resume import Position, load_state, newest_state, save_state
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
    """Trains stage by stage, evaluates after each epoch on the parts "validation", predicts all but "train" at the end.

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
    stages = staged(training)
    threads = torch.get_num_threads()
    from_rank_zero(lambda: _make_folder(folder))
    run = _Run(backbone, tasks, parts, folder, key, number, load_tokenizer(backbone), on_epoch, len(stages))
    try:
        state = newest_state(folder / "resume")
        if state is not None:
            run.position = state.position
            if not (folder / "best" / METADATA).is_file():  # a kill fell between two renames: it is to be kept anew
                run.best_score = -math.inf
            else:
                run.best_score = state.position.best_score
        first = 0 if state is None else state.position.stage
        for index, keys in enumerate(stages):
            if index < first or (index == first and state is not None and state.position.done):
                continue
            trainer = run.stage(index, keys, threads)
            resumed = state if state is not None and index == first else None
            if resumed:
                load_state(resumed, trainer)
            with _fits_the_machine(ImportError):  # such as an optimizer whose library is not installed
                trainer.train(resume_from_checkpoint=str(resumed.folder) if resumed else None)
            del trainer
            gc.collect()  # its callbacks hold it in a ring: model and optimizer are not to stay beside the next ones
        return run.finish(_training_arguments(split_training(stages[-1])[1], folder))
    finally:
        torch.set_num_threads(threads)
        forget_optimizers()


@dataclass
class _Run:
    """What goes on around the trainers' steps."""

    backbone: str
    tasks: Sequence[Task]
    parts: Parts
    folder: Path
    key: str
    number: int
    tokenizer: PreTrainedTokenizerBase
    on_epoch: Callable[[EpochReport], None]
    stages: int
    best_score: float = -math.inf
    said_by_best: dict[str, np.ndarray] = field(default_factory=dict)  # of the validation rows, by task
    position: Position | None = None
    started: float = field(default_factory=time.monotonic)

    def stage(self, index: int, keys: Mapping[str, Any], threads: int) -> MultiTaskTrainer:
        """The trainer of a stage, at the stage's first step."""
        options, arguments = split_training(keys)
        args = _training_arguments(arguments, self.folder)
        set_seed(args.seed + index)
        before = self.position
        if before is None or before.stage < index:
            epochs, steps = (0, 0) if before is None else (before.epoch, before.steps_before + before.step)
            self.position = Position(index, 0, epochs, epochs, steps, self.best_score, done=False)
        model = self._model(index, options, args)
        with _fits_the_machine(ValueError, ImportError):
            trainer = MultiTaskTrainer(
                model=model,
                args=args,
                tasks=self.tasks,
                parts={task.name: self.parts[task.name]["train"] for task in self.tasks},
                options=options,
                parameters=keys,
                save=self.after_step,
            )
        torch.set_num_threads(threads)  # accelerate takes every core where OMP_NUM_THREADS is not set
        return trainer

    def _model(self, index: int, options: TrainingOptions, args: TrainingArguments) -> MultiTaskModel:
        """The first stage's comes from the backbone, a later one's from the best checkpoint."""
        if index > 0:
            attention = options.attn_implementation
            model, _ = load_checkpoint(self.folder / "best", device=args.device, attn_implementation=attention)
        else:
            heads = HeadOptions(
                options.pooling, options.pooling_layers, options.head_dropout, options.head_dropout_samples
            )
            adapter = adapter_of(options, bf16=args.bf16)
            encoder = load_encoder(
                self.backbone,
                adapter=adapter,
                device=args.device,
                attn_implementation=options.attn_implementation,
            )
            with _fits_the_machine(ValueError):
                if options.reinit_layers:
                    reinitialise(encoder, options.reinit_layers)
            model = MultiTaskModel(encoder=encoder, tasks=self.tasks, heads=heads, adapter=adapter)
            for task in self.tasks:
                if task.regression:
                    part = self.parts[task.name]["train"]
                    model.head(task.name).fit_labels(torch.from_numpy(part.labels), torch.from_numpy(part.weights))
        if options.mixout:
            add_mixout(model.encoder, share=options.mixout)
        if options.freeze_encoder:
            model.encoder.requires_grad_(False)
        return model

    def after_step(self, trainer: MultiTaskTrainer, epoch_ended: bool) -> None:
        """Saves a state; after an epoch's last step it evaluates before, keeps the best, and reports after."""
        assert self.position is not None
        at, step = self.position, trainer.state.global_step
        done = step >= trainer.state.max_steps
        epoch = at.epochs_before + (
            math.ceil(trainer.state.epoch or 0) if epoch_ended else int(trainer.state.epoch or 0)
        )
        report = None
        if epoch_ended:
            report = self._evaluated(trainer, epoch=epoch, steps_before=at.steps_before, done=done)
        self.position = Position(
            at.stage, step, epoch, at.epochs_before, at.steps_before, self.best_score, done and epoch_ended
        )
        save_state(self.folder / "resume", trainer, self.position)
        if report is not None:
            self.on_epoch(report)

    def _evaluated(self, trainer: MultiTaskTrainer, *, epoch: int, steps_before: int, done: bool) -> EpochReport:
        loss, by_task = trainer.take_train_losses()
        trainer.balance.end_epoch(by_task)
        metrics = {"train_loss": loss, **{f"{task}/train_loss": value for task, value in by_task.items()}}
        if trainer.average is None:
            score, task_scores = self._evaluate_and_keep(trainer, epoch, metrics)
        else:
            left = math.ceil(trainer.state.num_train_epochs) - math.ceil(trainer.state.epoch or 0)
            trainer.average.after_epoch(left=0 if done else left)
            with trainer.average.applied():
                score, task_scores = self._evaluate_and_keep(trainer, epoch, metrics)
        steps = tuple((steps_before + step, values) for step, values in trainer.logged)
        trainer.logged.clear()
        now = time.monotonic()
        seconds, self.started = now - self.started, now
        assert self.position is not None
        last = done and self.position.stage == self.stages - 1
        return EpochReport(epoch, score, task_scores, metrics, steps, seconds, last, name_of(trainer.args))

    def _evaluate_and_keep(
        self, trainer: MultiTaskTrainer, epoch: int, metrics: dict[str, float]
    ) -> tuple[float, dict[str, float]]:
        task_scores, said = {}, {}
        for task in self.tasks:
            part = self.parts[task.name]["validation"]
            said[task.name] = self._predict(trainer.args, trainer.model, task, part)
            values = measure(task, part, said[task.name])
            task_scores[task.name] = values[f"{task.name}/{task.metric}"]
            metrics |= values
        score = float(np.mean(list(task_scores.values())))
        if score > self.best_score:
            self.best_score, self.said_by_best = score, said
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

    def finish(self, args: TrainingArguments) -> FineTuned:
        """Loads the best checkpoint and predicts every part of every task but its training rows with it."""
        folder = self.folder / "best"
        model, found = load_checkpoint(folder, device=args.device)
        model.to(args.device)

        def predictions_of(task: Task, name: str, part: EncodedPart) -> Predictions:
            known = self.said_by_best.get(task.name) if name == "validation" else None
            said = self._predict(args, model, task, part) if known is None else known
            return _predictions(task, part, said)

        predictions = {
            task.name: {
                name: predictions_of(task, name, part)
                for name, part in self.parts[task.name].items()
                if name != "train"
            }
            for task in self.tasks
        }
        record = CheckpointRecord(self.key, self.number, found.epoch, found.score, found.task_scores, str(folder))
        return FineTuned(record, predictions)

    @staticmethod
    def _predict(args: TrainingArguments, model: MultiTaskModel, task: Task, part: EncodedPart) -> np.ndarray:
        with autocast(args):  # the precision that the trial trains in
            return predict(
                model,
                part,
                task=task.name,
                batch_size=args.per_device_eval_batch_size,
                device=args.device,
                rank=rank(),
                world=world_size(),
            )


def _predictions(task: Task, part: EncodedPart, said: np.ndarray) -> Predictions:
    if task.regression:
        return Predictions(ids=part.ids, values=said, labels=part.labels)
    return Predictions(ids=part.ids, probabilities=said, labels=part.labels, class_names=task.class_names)


def _make_folder(folder: Path) -> None:
    """Makes the trial's folder, or sweeps from it what an earlier attempt was writing when it was killed."""
    with storage_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for half in [*folder.rglob(".*.tmp"), *folder.rglob(".*.old")]:
        shutil.rmtree(half, ignore_errors=True)


def _training_arguments(arguments: Mapping[str, Any], folder: Path) -> TrainingArguments:
    given = {"use_cpu": not torch.cuda.is_available(), **arguments}
    given = with_precision(given, cpu=given["use_cpu"])
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


@contextmanager
def _fits_the_machine(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        got = str(error).splitlines()[0] if str(error) else type(error).__name__
        what, remedy = "the training keys", "change them in the study file"
        raise TrialError(Fault(what, "fit the machine that trains", got, remedy)) from error
