"""Fine-tunes one shared encoder on several tasks: from the backbone to the best checkpoint and its predictions."""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments, set_seed

from tutti.config.folder import TrialFolder
from tutti.config.stages import staged
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.data.prepared import is_predicted
from tutti.files import clear_stray, storage_faults, strays, whole_folder
from tutti.modeling.adapters import forget_optimizers
from tutti.modeling.checkpoint import METADATA, load_checkpoint, save_checkpoint
from tutti.modeling.model import MultiTaskModel, model_type_of
from tutti.records import CheckpointRecord, TextLimit, Usage
from tutti.tasks.objective import study_score
from tutti.tasks.predictions import Predictions
from tutti.tasks.task import Task
from tutti.training.keys.arguments import machine_faults, training_arguments
from tutti.training.keys.options import split_training
from tutti.training.keys.schedules import follow
from tutti.training.loop.callbacks import StageCallback
from tutti.training.loop.evaluate import Evaluation, Parts, Reader, evaluate
from tutti.training.loop.measure import study_loss
from tutti.training.loop.report import EpochReport, FineTuned
from tutti.training.loop.resume import Position, load_state, newest_state, remove_later, save_state, stage_start
from tutti.training.loop.stage_model import stage_model
from tutti.training.loop.trainer import MultiTaskTrainer, diverged
from tutti.training.machine.packed import pack
from tutti.training.machine.precision import name_of
from tutti.training.machine.ranks import from_rank_zero, rank, together
from tutti.training.machine.sharding import forget_sharding, is_sharded, whole_state
from tutti.training.predict import are_finite
from tutti.training.tricks.averages import evaluation_weights
from tutti.training.tricks.seen_words import exclude_unseen_words

_SEED_STRIDE = 2**16  # between the seeds of consecutive ranks; larger than any number of stages


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
    on_saved: Callable[[], None] = lambda: None,
    key: str = "",
    number: int = 0,
    until: int | None = None,
) -> FineTuned:
    """Trains stage by stage, evaluates on the parts "validation", and finally predicts all parts but "train".

    Runs in a plain process, or on every rank of an initialised process group whose RANK, WORLD_SIZE and LOCAL_RANK
    are in the environment. A run on the same folder resumes from the newest complete state. Only rank 0 writes.

    Args:
        training: the user's training keys, overlaid with the trial's parameters.
        folder: laid out as a ``TrialFolder``: the best checkpoint, and to resume from, the newest two training states
            and the initial weights of each later stage.
        on_epoch: called on every rank after each evaluation (``evals_per_epoch`` per epoch), once its state is on
            disk; first with that of the state that the run resumes from. An exception that it raises ends the run.
        on_notice: called on every rank with messages for the user that do not end the run, such as a skipped state.
        on_step: called on every rank after each step without an evaluation. An exception that it raises ends the run.
        on_saved: called on rank 0 once a state is on disk, before its evaluation is reported.
        until: the evaluation with which the run ends, and whose weights it keeps, whatever the scores: for a run that
            trains on the rows that it evaluates on. By default all epochs are trained, and the best weights kept.

    Raises:
        BackboneError: if the backbone or its tokenizer does not load.
        TrialError: if a loss or a prediction is not finite, or the training keys do not fit this machine.
        StorageError: if a file cannot be written or read back.
    """
    stages = staged(training)
    threads = torch.get_num_threads()
    from_rank_zero(lambda: _make_folder(folder))
    run = _Run(
        backbone=backbone,
        tasks=tasks,
        parts=parts,
        folder=TrialFolder(folder),
        key=key,
        number=number,
        tokenizer=load_tokenizer(backbone),
        model_type=model_type_of(backbone),
        limit=split_training(stages[0])[0].limit,
        on_epoch=on_epoch,
        on_saved=on_saved,
        stage_count=len(stages),
        until=until,
    )
    try:
        state, notices = newest_state(run.folder.resume, best=run.folder.best)
        for notice in notices:
            start = state.folder.name if state else "the beginning"
            on_notice(f"{notice.rstrip('.')}; the trial goes on from {start}")
        from_rank_zero(lambda: remove_later(run.folder.resume, state))
        if state is not None:
            run.position, run.best_score = state.position, state.position.best_score
            run.precision, run.usage = state.precision, state.usage
            if state.report is not None:
                on_epoch(state.report)
        first_stage = 0 if state is None else state.position.stage
        for index, keys in enumerate(stages):
            if index < first_stage or (index == first_stage and state is not None and state.position.done):
                continue
            if run.is_over:
                break
            if index > 0:
                from_rank_zero(partial(run.save_stage_start, index))
            trainer = together(partial(run.make_trainer, index, keys, threads))
            trainer.add_callback(StageCallback(trainer, on_step, on_notice))
            resumed = state if state is not None and index == first_stage else None
            if resumed:
                load_state(resumed, trainer)
            with machine_faults(ImportError):  # for example an optimizer whose library is not installed
                trainer.train(resume_from_checkpoint=str(resumed.folder) if resumed else None)
            del trainer
            gc.collect()  # the trainer and its callbacks form a cycle: frees its model before the next one is made
        return run.predict_with_best(stages[-1])
    finally:
        torch.set_num_threads(threads)
        forget_optimizers()
        forget_sharding()


@dataclass(kw_only=True)
class _Run:
    """A fine-tuning run: makes each stage's trainer, saves states, evaluates, and keeps the best checkpoint.

    Attributes:
        best_score: as in ``Position``.
        until: as of ``fine_tune``; evaluations are then ranked by their number.
        best: the best checkpoint's evaluation, if it was made in this run.
        precision: the precision of its latest stage, or of the state that it resumed from.
        trainable: number of trainable weights of the latest stage.
        waited: as in ``Position``.
        usage: what the training steps have taken up to the last state.
    """

    backbone: str
    tasks: Sequence[Task]
    parts: Parts
    folder: TrialFolder
    key: str
    number: int
    tokenizer: PreTrainedTokenizerBase
    model_type: str
    limit: TextLimit
    on_epoch: Callable[[EpochReport], None]
    on_saved: Callable[[], None] = lambda: None
    stage_count: int
    best_score: float = -math.inf
    best: Evaluation = field(default_factory=Evaluation)
    position: Position | None = None
    precision: str | None = None
    trainable: int | None = None
    waited: int = 0
    usage: Usage = field(default_factory=Usage)
    until: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the evaluation with which the run ends was made; it is the best one so far then."""
        return self.until is not None and self.best_score >= self.until

    def arguments(self, arguments: Mapping[str, Any]) -> TrainingArguments:
        return training_arguments(arguments, self.folder.path, model_type=self.model_type, began_in=self.precision)

    def make_trainer(self, index: int, keys: Mapping[str, Any], threads: int) -> MultiTaskTrainer:
        """The trainer of a stage, positioned at the stage's first step."""
        options, arguments = split_training(keys)
        args = self.arguments(arguments)
        if options.freeze_encoder:  # else transformers sends the backward pass through the encoder, computed once more
            args.activation_checkpointing = False
        self.precision = name_of(args)
        set_seed(args.seed)
        previous = self.position
        self.waited = 0 if previous is None or previous.stage < index else previous.waited
        if previous is None or previous.stage < index:
            epochs, steps = (0, 0) if previous is None else (previous.epoch, previous.steps_before + previous.step)
            self.position = Position(
                stage=index,
                step=0,
                epoch=epochs,
                epochs_before=epochs,
                steps_before=steps,
                best_score=self.best_score,
                done=False,
            )
        model = stage_model(
            None if index == 0 else stage_start(self.folder.resume, index),
            backbone=self.backbone,
            tokenizer=self.tokenizer,
            tasks=self.tasks,
            parts={task.name: self.parts[task.name]["train"] for task in self.tasks},
            options=options,
            args=args,
            only_stage=self.stage_count == 1,
        )
        self.trainable = _trainable_weights(model)
        exclude_unseen_words(model, [self.parts[task.name]["train"] for task in self.tasks], options, args)
        with machine_faults(ValueError, ImportError):
            trainer = MultiTaskTrainer(
                model=model,
                args=args,
                tasks=self.tasks,
                parts={task.name: self.parts[task.name]["train"] for task in self.tasks},
                options=options,
                stage=index,
                parameters=keys,
                save=self.save_and_report,
            )
        # The Trainer resets the seed: without this, every stage would repeat the first stage's dropout masks and every
        # rank those of rank 0.
        if index > 0 or rank() > 0:
            set_seed((args.seed + index + _SEED_STRIDE * rank()) % 2**32)
        torch.set_num_threads(threads)  # accelerate uses every core if OMP_NUM_THREADS is not set
        return trainer

    def save_stage_start(self, index: int) -> None:
        """Copies the best checkpoint as a stage's initial weights, once: the stage will overwrite the checkpoint."""
        start = stage_start(self.folder.resume, index)
        if not (start / METADATA).is_file():
            with whole_folder(start) as temporary:
                shutil.copytree(self.folder.best, temporary, dirs_exist_ok=True)

    def save_and_report(self, trainer: MultiTaskTrainer) -> None:
        """Evaluates if an evaluation is due, saves a training state, and then reports the evaluation."""
        assert self.position is not None
        previous, step = self.position, trainer.state.global_step
        self.usage += trainer.meter.take()
        report = self._evaluation_report(trainer, previous) if trainer.evaluates else None
        epochs = trainer.state.epoch or 0.0
        self.position = replace(
            previous,
            step=step,
            epoch=previous.epochs_before + (math.ceil(epochs) if trainer.epoch_ended or trainer.done else int(epochs)),
            best_score=self.best_score,
            done=trainer.done,
            waited=self.waited,
        )
        save_state(self.folder.resume, trainer, self.position, report, self.usage)
        from_rank_zero(self.on_saved)
        if report is not None:
            self.on_epoch(report)

    def _evaluation_report(self, trainer: MultiTaskTrainer, position: Position) -> EpochReport:
        epoch = position.epochs_before * trainer.evals_per_epoch + trainer.evaluations
        loss, by_task = trainer.take_train_losses()
        if trainer.epoch_ended:
            trainer.balance.end_epoch(by_task)
        metrics = {"train_loss": loss}
        for task in self.tasks:  # errors of numbers are minimised in units of the head's scale
            unit = trainer.model.head(task.name).scale.double().square().mean().item()
            metrics[f"{task.name}/train_loss"] = by_task[task.name] * unit
        if trainer.average is not None and trainer.epoch_ended:
            remaining = math.ceil(trainer.state.num_train_epochs) - math.ceil(trainer.state.epoch or 0)
            trainer.average.after_epoch(remaining=0 if trainer.done else remaining)
        averaged = nullcontext() if trainer.average is None else trainer.average.applied()
        with evaluation_weights(trainer.optimizer), averaged:
            score, found = self._evaluate(trainer, epoch, metrics)
        follow(trainer.lr_scheduler, metrics.get("validation_loss", score))
        if self.waited >= (trainer.options.early_stopping_patience or math.inf) or self.is_over:
            trainer.stop()
        steps = tuple((position.steps_before + step, values) for step, values in trainer.logged)
        trainer.logged.clear()
        return EpochReport(
            epoch=epoch,
            score=score,
            task_scores=found.scores,
            set_scores=found.set_scores,
            metrics=metrics,
            steps=steps,
            whole=trainer.done or trainer.evaluations >= trainer.evals_per_epoch,
            done=trainer.done and (position.stage == self.stage_count - 1 or self.is_over),
            precision=name_of(trainer.args),
            ends_stage=trainer.done and position.stage < self.stage_count - 1 and not self.is_over,
            usage=self.usage,
        )

    def _evaluate(self, trainer: MultiTaskTrainer, epoch: int, metrics: dict[str, float]) -> tuple[float, Evaluation]:
        """The study's score, and what was evaluated. Adds to ``metrics``; saves the checkpoint if it is the best."""
        reader = Reader(trainer.args, trainer.model, self.tokenizer)
        may_stop = self.waited + 1 >= (trainer.options.early_stopping_patience or math.inf)
        found = evaluate(self.tasks, self.parts, reader, last=trainer.done or may_stop)
        if (name := found.not_finite) is not None:  # the last step's loss was finite, but its gradient was not
            step = trainer.state.global_step
            raise diverged(f"what the model predicts of the task {name} after step {step}", trainer.parameters)
        metrics |= found.metrics
        score = rank_by = study_score(found.scores, self.tasks)
        if trainer.options.best_by == "loss":
            parts = {task.name: self.parts[task.name]["validation"] for task in self.tasks}
            scales = {task.name: trainer.model.head(task.name).scale.cpu().numpy() for task in self.tasks}
            metrics["validation_loss"] = study_loss(self.tasks, parts, found.measured, scales=scales)
            rank_by = -metrics["validation_loss"]
        if self.until is not None:
            rank_by = epoch
        self.waited += 1
        if rank_by > self.best_score + trainer.options.early_stopping_threshold:
            self.waited = 0
        if rank_by > self.best_score:
            self.best_score, self.best = rank_by, found
            weights = whole_state(trainer.model.trained_state()) if is_sharded(trainer.model) else None
            from_rank_zero(
                lambda: save_checkpoint(
                    self.folder.best,
                    model=trainer.model,
                    weights=weights,
                    tokenizer=self.tokenizer,
                    tasks=self.tasks,
                    key=self.key,
                    number=self.number,
                    epoch=epoch,
                    score=score,
                    task_scores=found.scores,
                    limit=self.limit,
                    decisions=found.decisions(self.tasks, self.parts),
                )
            )
        return score, found

    def predict_with_best(self, keys: Mapping[str, Any]) -> FineTuned:
        """Loads the best checkpoint and predicts every part of every task except its training rows."""
        options, arguments = split_training(keys)
        args = self.arguments(arguments)
        attention = options.attn_implementation
        model, metadata = load_checkpoint(self.folder.best, device=args.device, attn_implementation=attention)
        model.to(args.device)
        if options.batching == "packed":
            pack(model, options, name_of(args))
        reader = Reader(args, model, self.tokenizer)

        def predictions_of(task: Task, name: str, part: EncodedPart) -> Predictions:
            known = self.best if name == "validation" else Evaluation()
            outputs, scores = known.outputs.get(task.name), known.log_probabilities.get(task.name)
            if outputs is None and task.kind.generative:
                outputs, scores = reader.written(task, part)
            elif outputs is None:
                outputs = reader.predict(task, part)
            if not are_finite(
                outputs, task.kind
            ):  # no evaluation has seen these rows, and one may be too long for fp16
                raise diverged(f"what the model predicts of the {name} rows of the task {task.name}", keys)
            return Predictions.of(task, ids=part.ids, outputs=outputs, labels=part.labels, log_probabilities=scores)

        predictions = {
            task.name: {
                name: predictions_of(task, name, part)
                for name, part in self.parts[task.name].items()
                if is_predicted(name)
            }
            for task in self.tasks
        }
        if self.trainable is None:  # the run resumed from a state after the last step, so no trainer was made
            if options.freeze_encoder:
                model.encoder.requires_grad_(False)
            self.trainable = _trainable_weights(model)
        record = CheckpointRecord(
            self.key,
            self.number,
            metadata.epoch,
            metadata.score,
            metadata.task_scores,
            str(self.folder.best),
            self.trainable,
            self.usage,
        )
        return FineTuned(record, predictions)


def _trainable_weights(model: MultiTaskModel) -> int:
    return sum(weights.numel() for weights in model.parameters() if weights.requires_grad)


def _make_folder(folder: Path) -> None:
    """Makes the trial's folder, or removes the temporary files that a killed attempt left in it."""
    with storage_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for stray in strays(folder):
        clear_stray(stray)
