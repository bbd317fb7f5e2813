"""Fine-tunes one encoder on several tasks, from the backbone to the best checkpoint and its predictions."""

from __future__ import annotations

import gc
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainingArguments, set_seed

from tutti.config.stages import staged
from tutti.config.training import TrainingOptions
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.files import clear_stray, storage_faults, strays, whole_folder
from tutti.modeling.adapters import adapter_of, forget_optimizers
from tutti.modeling.checkpoint import METADATA, load_checkpoint, save_checkpoint
from tutti.modeling.heads import HeadOptions
from tutti.modeling.layers import reinitialise
from tutti.modeling.mixout import add_mixout
from tutti.modeling.model import MultiTaskModel, load_encoder
from tutti.records import CheckpointRecord, Predictions
from tutti.tasks.task import Task
from tutti.training.arguments import fits_the_machine, training_arguments
from tutti.training.averages import found_weights
from tutti.training.measure import measure
from tutti.training.options import split_training
from tutti.training.precision import autocast, name_of
from tutti.training.predict import predict
from tutti.training.ranks import from_rank_zero, rank, together, world_size
from tutti.training.report import EpochReport, FineTuned
from tutti.training.resume import Position, load_state, newest_state, save_state
from tutti.training.seen_words import leave_unseen_words
from tutti.training.sharding import forget_sharding, is_sharded, whole_state
from tutti.training.trainer import MultiTaskTrainer

Parts = Mapping[str, Mapping[str, EncodedPart]]
_BETWEEN_RANKS = 2**16  # from one rank's seed to the next one's: more than there are stages


def fine_tune(
    *,
    backbone: str,
    tasks: Sequence[Task],
    parts: Parts,
    training: Mapping[str, Any],
    folder: Path,
    on_epoch: Callable[[EpochReport], None],
    on_notice: Callable[[str], None] = lambda text: None,
    on_step: Callable[[], None] = lambda: None,
    key: str = "",
    number: int = 0,
) -> FineTuned:
    """Trains stage by stage, evaluates on the parts "validation" as it goes, predicts all but "train" at the end.

    Runs in a plain process, or on every rank of an initialised process group whose RANK, WORLD_SIZE and LOCAL_RANK
    are in the environment. The best checkpoint lies in ``folder/best``, the newest two states to go on from in
    ``folder/resume``, with the weights that each later stage began from: a run on the same folder goes on from the
    newest whole state. Only rank 0 writes.

    Args:
        training: the user's training keys with the trial's parameters laid over them.
        on_epoch: called on every rank after each evaluation, of which an epoch has ``evals_per_epoch``, once its state
            is on disk. What it raises ends the run.
        on_notice: called on every rank with what a user should know that ends nothing: a state that is passed over.
        on_step: called on every rank after each step that no evaluation follows. What it raises ends the run.

    Raises:
        BackboneError: where the backbone or its tokenizer does not load.
        TrialError: where a loss or a prediction is not finite, or the training keys do not fit this machine.
        StorageError: where a file cannot be written or read back.
    """
    stages = staged(training)
    threads = torch.get_num_threads()
    from_rank_zero(lambda: _make_folder(folder))
    length = split_training(stages[0])[0].max_length
    run = _Run(backbone, tasks, parts, folder, key, number, load_tokenizer(backbone), length, on_epoch, len(stages))
    try:
        state, passed_over = newest_state(folder / "resume")
        for notice in passed_over:
            start = state.folder.name if state else "the beginning"
            on_notice(f"{notice.rstrip('.')}; the trial goes on from {start}")
        if state is not None:
            run.position, run.best_score = state.position, state.position.best_score
            run.precision = state.precision
        first = 0 if state is None else state.position.stage
        for index, keys in enumerate(stages):
            if index < first or (index == first and state is not None and state.position.done):
                continue
            if index > 0:
                from_rank_zero(partial(run.keep_start, index))
            trainer = together(partial(run.stage, index, keys, threads))
            trainer.add_callback(_AfterStep(trainer, on_step))
            resumed = state if state is not None and index == first else None
            if resumed:
                load_state(resumed, trainer)
            with fits_the_machine(ImportError):  # such as an optimizer whose library is not installed
                trainer.train(resume_from_checkpoint=str(resumed.folder) if resumed else None)
            del trainer
            gc.collect()  # its callbacks hold it in a ring: model and optimizer are not to stay beside the next ones
        return run.finish(stages[-1])
    finally:
        torch.set_num_threads(threads)
        forget_optimizers()
        forget_sharding()


class _AfterStep(TrainerCallback):
    def __init__(self, trainer: MultiTaskTrainer, call: Callable[[], None]) -> None:
        self._trainer, self._call = trainer, call

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if not self._trainer.evaluates:
            self._call()


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
    max_length: int
    on_epoch: Callable[[EpochReport], None]
    stages: int
    best_score: float = -math.inf
    said_by_best: dict[str, np.ndarray] = field(default_factory=dict)  # of the validation rows, by task
    position: Position | None = None
    precision: str | None = None  # that the run began in
    trainable: int | None = None  # weights of the last stage that was made
    started: float = field(default_factory=time.monotonic)

    def stage(self, index: int, keys: Mapping[str, Any], threads: int) -> MultiTaskTrainer:
        """The trainer of a stage, at the stage's first step."""
        options, arguments = split_training(keys)
        args = training_arguments(arguments, self.folder, began_in=self.precision)
        self.precision = name_of(args)
        set_seed(args.seed)
        before = self.position
        if before is None or before.stage < index:
            epochs, steps = (0, 0) if before is None else (before.epoch, before.steps_before + before.step)
            self.position = Position(index, 0, epochs, epochs, steps, self.best_score, done=False)
        model = self._model(index, options, args)
        self.trainable = _trainable(model)
        leave_unseen_words(model, [self.parts[task.name]["train"] for task in self.tasks], options, args)
        with fits_the_machine(ValueError, ImportError):
            trainer = MultiTaskTrainer(
                model=model,
                args=args,
                tasks=self.tasks,
                parts={task.name: self.parts[task.name]["train"] for task in self.tasks},
                options=options,
                stage=index,
                parameters=keys,
                save=self.after_step,
            )
        # The Trainer has set the seed again: neither the first stage's dropout once more, nor rank 0's on every rank.
        if index > 0 or rank() > 0:
            set_seed((args.seed + index + _BETWEEN_RANKS * rank()) % 2**32)
        torch.set_num_threads(threads)  # accelerate takes every core where OMP_NUM_THREADS is not set
        return trainer

    def _model(self, index: int, options: TrainingOptions, args: TrainingArguments) -> MultiTaskModel:
        """The first stage's comes from the backbone, a later one's from the best checkpoint at its beginning."""
        if index > 0:
            attention = options.attn_implementation
            model, _ = load_checkpoint(self._start(index), device=args.device, attn_implementation=attention)
        else:
            heads = HeadOptions(
                options.pooling, options.pooling_layers, options.head_dropout, options.head_dropout_samples
            )
            adapter = adapter_of(options, precision=name_of(args))
            encoder = load_encoder(
                self.backbone,
                adapter=adapter,
                device=args.device,
                attn_implementation=options.attn_implementation,
            )
            with fits_the_machine(ValueError):
                if options.reinit_layers:
                    reinitialise(encoder, options.reinit_layers)
            model = MultiTaskModel(encoder=encoder, tasks=self.tasks, heads=heads, adapter=adapter)
            for task in self.tasks:
                if task.regression:
                    part = self.parts[task.name]["train"]
                    model.head(task.name).fit_labels(torch.from_numpy(part.labels), torch.from_numpy(part.weights))
        if options.mixout and not options.freeze_encoder:
            add_mixout(model.encoder, share=options.mixout, new_layers=0 if index else options.reinit_layers)
        if options.freeze_encoder:
            model.encoder.requires_grad_(False)
        return model

    def _start(self, index: int) -> Path:
        return self.folder / "resume" / f"start-{index}"

    def keep_start(self, index: int) -> None:
        """Copies what a stage begins from, once: the stage itself will write a new best checkpoint."""
        if not (self._start(index) / METADATA).is_file():
            with whole_folder(self._start(index)) as temporary:
                shutil.copytree(self.folder / "best", temporary, dirs_exist_ok=True)

    def after_step(self, trainer: MultiTaskTrainer) -> None:
        """Saves a state; where an evaluation is due it evaluates before, keeps the best, and reports after."""
        assert self.position is not None
        at, step = self.position, trainer.state.global_step
        done = step >= trainer.state.max_steps
        epoch = math.ceil(trainer.state.epoch or 0) if trainer.epoch_ended else int(trainer.state.epoch or 0)
        report = self._evaluated(trainer, at, done=done) if trainer.evaluates else None
        self.position = Position(
            at.stage, step, at.epochs_before + epoch, at.epochs_before, at.steps_before, self.best_score, done
        )
        save_state(self.folder / "resume", trainer, self.position)
        if report is not None:
            self.on_epoch(report)

    def _evaluated(self, trainer: MultiTaskTrainer, at: Position, *, done: bool) -> EpochReport:
        epoch = at.epochs_before * trainer.evals_per_epoch + trainer.evaluations
        loss, by_task = trainer.take_train_losses()
        if trainer.epoch_ended:
            trainer.balance.end_epoch(by_task)
        metrics = {"train_loss": loss, **{f"{task}/train_loss": value for task, value in by_task.items()}}
        if trainer.average is not None and trainer.epoch_ended:
            left = math.ceil(trainer.state.num_train_epochs) - math.ceil(trainer.state.epoch or 0)
            trainer.average.after_epoch(left=0 if done else left)
        applied = nullcontext() if trainer.average is None else trainer.average.applied()
        with found_weights(trainer.optimizer, trainer.model), applied:
            score, task_scores = self._evaluate_and_keep(trainer, epoch, metrics)
        steps = tuple((at.steps_before + step, values) for step, values in trainer.logged)
        trainer.logged.clear()
        now = time.monotonic()
        seconds, self.started = now - self.started, now
        last = done and at.stage == self.stages - 1
        whole = done or epoch >= trainer.evals_per_epoch
        return EpochReport(epoch, score, task_scores, metrics, steps, seconds, whole, last, name_of(trainer.args))

    def _evaluate_and_keep(
        self, trainer: MultiTaskTrainer, epoch: int, metrics: dict[str, float]
    ) -> tuple[float, dict[str, float]]:
        task_scores, said = {}, {}
        for task in self.tasks:
            part = self.parts[task.name]["validation"]
            said[task.name] = self._predict(trainer.args, trainer.model, task, part)
            if not np.isfinite(said[task.name]).all():  # the last step's loss was, but not its gradient
                step = trainer.state.global_step
                raise trainer.diverged(f"what the model predicts of the task {task.name} after step {step}")
            values = measure(task, part, said[task.name])
            task_scores[task.name] = values[f"{task.name}/{task.metric}"]
            metrics |= values
        score = float(np.mean(list(task_scores.values())))
        if score > self.best_score:
            self.best_score, self.said_by_best = score, said
            weights = whole_state(trainer.model.trained_state()) if is_sharded(trainer.model) else None
            from_rank_zero(
                lambda: save_checkpoint(
                    self.folder / "best",
                    model=trainer.model,
                    weights=weights,
                    tokenizer=self.tokenizer,
                    tasks=self.tasks,
                    key=self.key,
                    number=self.number,
                    epoch=epoch,
                    score=score,
                    task_scores=task_scores,
                    max_length=self.max_length,
                )
            )
        return score, task_scores

    def finish(self, keys: Mapping[str, Any]) -> FineTuned:
        """Loads the best checkpoint and predicts every part of every task but its training rows with it."""
        folder = self.folder / "best"
        options, arguments = split_training(keys)
        args = training_arguments(arguments, self.folder, began_in=self.precision)
        attention = options.attn_implementation
        model, found = load_checkpoint(folder, device=args.device, attn_implementation=attention)
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
        if self.trainable is None:  # it goes on from a state after the last step
            self.trainable = _trainable(self._model(self.stages - 1, options, args))
        scores = found.score, found.task_scores
        record = CheckpointRecord(self.key, self.number, found.epoch, *scores, str(folder), self.trainable)
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


def _trainable(model: MultiTaskModel) -> int:
    return sum(weights.numel() for weights in model.parameters() if weights.requires_grad)


def _predictions(task: Task, part: EncodedPart, said: np.ndarray) -> Predictions:
    if task.regression:
        return Predictions(ids=part.ids, values=said, labels=part.labels)
    return Predictions(ids=part.ids, probabilities=said, labels=part.labels, class_names=task.class_names)


def _make_folder(folder: Path) -> None:
    """Makes the trial's folder, or sweeps from it what an earlier attempt was writing when it was killed."""
    with storage_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for stray in strays(folder):
        clear_stray(stray)
