"""Continues pretraining a backbone on a study's own texts, without labels, before fine-tuning.

Task-adaptive pretraining (Gururangan et al. 2020, arXiv 2004.10964) by masked language modelling (BERT, arXiv
1810.04805): 15% of the tokens are masked and predicted from the others; or, of decoders, by causal language modelling:
each token is predicted from those before it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainingArguments, set_seed

from tutti.data.batches import BatchPlan, BatchRows, TaskBatch, TaskBatchSampler, TaskLoader
from tutti.data.distinct import distinct_rows, tokens_sha256
from tutti.data.encode import EncodedPart, load_tokenizer
from tutti.data.known_tokens import check_known, check_vocabulary
from tutti.errors import BackboneError, Fault, StudyError, TrialError
from tutti.files import new_folder_fault, resolved, storage_faults, whole_folder, write_whole
from tutti.modeling.adapters import backbone_files
from tutti.modeling.checkpoint import tensor_faults
from tutti.modeling.layers import token_types, tokens
from tutti.modeling.model import no_progress_bars
from tutti.training.keys.arguments import machine_faults
from tutti.training.loop.language_model import IGNORED, Objective, load_language_model, make_collator, objective_of
from tutti.training.machine.one_device import OneDeviceTrainer
from tutti.training.machine.precision import name_of, with_precision

MAX_DRAWS = 100  # of masks for the held-out rows, until one token is masked
MASKED_MULTIPLE = 64  # the number of masked tokens of a batch is rounded up to a multiple of this
HELD_OUT_SHARE, MAX_HELD_OUT = 0.05, 2_000  # share and maximum number of rows held out to measure the loss
_SETTINGS, _PRECISION, _WHOLE = "settings.json", "precision", "whole"
_HEADS = (
    "cls",
    "lm_head",
)  # modules that map each token vector to logits, in BERT- and RoBERTa-like ones, and decoders


@dataclass(frozen=True)
class Pretrained:
    """The result of pretraining.

    Attributes:
        path: the folder of the new backbone.
        rows: the number of distinct rows, including held-out ones.
        loss: cross-entropy of the masked, or of all, tokens of held-out rows in nats: the mean over these tokens.
    """

    path: Path
    rows: int
    loss: float


def pretrain(
    *,
    backbone: str,
    parts: Sequence[EncodedPart],
    out: Path,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    seed: int,
    on_epoch: Callable[[int, float], None],
    objective: Objective | None = None,
) -> Pretrained:
    """Trains the backbone to predict tokens of the rows of ``parts``; saves it with its tokenizer to ``out``.

    Duplicate rows count once. An interrupted run resumes from its last complete epoch, saved in ``OUT.unfinished``.

    Args:
        backbone: a hub id or folder; a missing language modelling head is initialised randomly.
        out: a new or empty folder, to be named as ``backbone:`` in a study file.
        learning_rate: the peak rate, reached after 6% of the steps; it then decays linearly to zero.
        on_epoch: called with the epoch and the held-out loss in nats.
        objective: ``masked`` or ``causal``; None for what the backbone can.

    Raises:
        BackboneError: if the backbone does not load or has no such language model, or as ``check_pretraining`` does.
        StudyError: if ``OUT.unfinished`` belongs to a run with other texts or settings.
        TrialError: if the loss is not finite, or no token of the held-out rows can be masked.
        StorageError: if a file cannot be written.
    """
    check_pretraining(out=out, learning_rate=learning_rate)
    out = resolved(out)
    unfinished = out.with_name(f"{out.name}.unfinished")
    tokenizer = load_tokenizer(backbone)
    objective = objective or objective_of(backbone)
    longest = max((int(part.lengths.max()) for part in parts if len(part.lengths)), default=0)
    collator = make_collator(objective, tokenizer, longest=longest)
    rows = distinct_rows(parts)
    if len(rows) < 2:
        rule = "hold at least two different texts, one of them to be held out"
        raise StudyError(Fault("the study's tasks", rule, str(len(rows)), "add rows or files"))
    settings = {
        "backbone": backbone,
        "files": backbone_files(backbone),
        "rows": len(rows),
        "tokens": tokens_sha256(rows),  # with other rows, rows held out now may have been trained on
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "seed": seed,
    } | ({"objective": objective} if objective == "causal" else {})
    with storage_faults(unfinished):
        state = _newest_state(unfinished, settings)
        began_in = (unfinished / _PRECISION).read_text() if (unfinished / _PRECISION).is_file() else None
    set_seed(seed)
    model = load_language_model(backbone, objective)
    check_vocabulary(tokenizer, backbone=backbone, tokens=tokens(model))
    for part in parts:
        check_known(part, where="the texts", backbone=backbone, tokens=None, token_types=token_types(model))
    split = rows.train_test_split(min(MAX_HELD_OUT, max(1, round(HELD_OUT_SHARE * len(rows)))), seed=seed)
    progress = _ProgressCallback(on_epoch)
    args = _training_arguments(
        unfinished,
        model_type=model.config.model_type,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        seed=seed,
        began_in=began_in,
    )
    write_whole(unfinished / _PRECISION, name_of(args))
    trainer = _TokenTrainer(
        model=model,
        args=args,
        train_dataset=split["train"],
        eval_dataset=split["test"],
        data_collator=collator,
        callbacks=[progress],
    )
    with storage_faults(unfinished), tensor_faults(unfinished), no_progress_bars():
        trainer.train(resume_from_checkpoint=state)
        if not progress.losses:  # the interrupted run had ended its last epoch
            trainer.evaluate()
    with tensor_faults(out), whole_folder(out) as folder, no_progress_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    return Pretrained(path=out, rows=len(rows), loss=progress.losses[-1])


def check_pretraining(*, out: Path, learning_rate: float) -> None:
    """Checks what can be told to be wrong before any text is read.

    Raises:
        BackboneError: if ``out`` is not a new or empty folder that can be replaced, or the rate is not above 0.
    """
    faults = [fault] if (fault := new_folder_fault(out)) else []
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        rule, remedy = "be a finite number above 0", "name a rate such as 1e-4"
        faults.append(Fault("the learning rate", rule, f"{learning_rate:g}", remedy))
    if faults:
        raise BackboneError(*faults)


def _training_arguments(
    folder: Path,
    *,
    model_type: str,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    seed: int,
    began_in: str | None,
) -> TrainingArguments:
    use_cpu = not torch.cuda.is_available()
    with machine_faults(ValueError, ImportError):
        return TrainingArguments(
            **with_precision({"use_cpu": use_cpu}, cpu=use_cpu, model_type=model_type, began_in=began_in),
            output_dir=str(folder),
            num_train_epochs=epochs,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=batch_size,
            train_sampling_strategy="group_by_length",  # for evaluation; training has its own batches
            warmup_steps=0.06,
            weight_decay=0.01,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            logging_strategy="epoch",
            report_to="none",
            disable_tqdm=True,
            seed=seed,
        )


class _TokenTrainer(OneDeviceTrainer):
    """Computes logits only for tokens with a label: with a small encoder, of whose tokens few are masked, the head
    takes longer than all layers together.
    """

    control: TrainerControl

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        super().__init__(model=model, **options)
        self._selected: Tensor | None = None
        head = next((module for name, module in model.named_children() if name in _HEADS), None)
        self._head_selects = head is not None
        if head is not None:  # these heads compute each token independently
            head.register_forward_pre_hook(lambda _, inputs: (inputs[0].flatten(0, 1)[self._selected], *inputs[1:]))

    def get_train_dataloader(self) -> DataLoader:
        """Batches of rows of similar length, in random order.

        Trainer's ``group_by_length`` yields fifty batches at a time in order of length. Gradients of such neighbors are
        alike, and with them a small new encoder stays on the plateau where it guesses the most frequent tokens.
        """
        rows: Any = self.train_dataset
        lengths = np.asarray(rows["length"])
        sampler = TaskBatchSampler(
            {"texts": BatchRows(lengths, weights=np.ones(len(lengths), dtype=np.float32))},
            plan=BatchPlan(per_device_batch=self.args.per_device_train_batch_size),
            seed=self.args.seed,
            stage=0,
            rank=0,
            world=1,
        )
        return TaskLoader(_Rows(rows), batch_sampler=sampler, collate_fn=self.data_collator)  # type: ignore[arg-type]

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **unused: Any
    ) -> Any:
        labels = inputs.pop("labels").flatten()
        masked = labels != IGNORED
        self._selected = _select_tokens(masked)
        outputs = model(**inputs)
        logits = outputs.logits if self._head_selects else outputs.logits.flatten(0, 1)[self._selected]
        # A sum, because a short batch may have no masked token, and the mean over none is not a number.
        loss = nn.functional.cross_entropy(logits.float(), labels[self._selected], reduction="sum")
        loss = loss / masked.sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss

    @torch.no_grad()
    def evaluate(self, *unused: Any, **also_unused: Any) -> dict[str, float]:
        """``eval_loss``: the mean cross-entropy over all labelled tokens of the held-out rows.

        Trainer takes the mean over batches, where one without a masked token has a loss of 0, and leaves out those that
        are not finite. A few short rows may have no masked token at all, so their masks are drawn until they have one.
        They are the same after each epoch, so that losses differ by what was learnt.

        Raises:
            TrialError: if none can be masked.
        """
        with torch.random.fork_rng(devices=[]):  # masks are drawn on the CPU
            torch.default_generator.manual_seed(self.args.seed)
            for _ in range(MAX_DRAWS):
                total, tokens = self._held_out_loss()
                if tokens:
                    break
            else:
                rule = "have a token that can be masked"
                remedy = "add rows with words that the backbone's tokenizer knows"
                raise TrialError(Fault("the held-out rows", rule, "none", remedy))
        metrics = {"eval_loss": total / tokens}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _held_out_loss(self) -> tuple[float, int]:
        """The sum of the cross-entropy over the masked tokens, newly drawn, and their number."""
        self.model.eval()
        total, tokens = 0.0, 0
        for batch in self.get_eval_dataloader():
            inputs = self._prepare_inputs(batch)
            masked = int((inputs["labels"] != IGNORED).sum())
            with self.compute_loss_context_manager():
                total += masked * self.compute_loss(self.model, inputs).item()
            tokens += masked
        return total, tokens


class _Rows(Dataset):
    """Makes a dataset answer to the batches of a ``TaskBatchSampler``."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __getitems__(self, batch: TaskBatch) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._rows.__getitems__(batch.rows.tolist())
        return rows


def _select_tokens(masked: Tensor) -> Tensor:
    """``(tokens,)`` int64 indices of the masked tokens, padded with unmasked ones, whose labels are ignored, to a
    multiple of ``MASKED_MULTIPLE``.

    The number of masked tokens differs from batch to batch, and a CPU would compile the head's matrix products for
    each new number, which takes a quarter of a small encoder's step.
    """
    indices = masked.nonzero().squeeze(1)
    return torch.cat([indices, (~masked).nonzero().squeeze(1)[: -len(indices) % MASKED_MULTIPLE]])


class _ProgressCallback(TrainerCallback):
    """Reports each epoch's held-out loss, and marks a state as complete once all its files are written."""

    def __init__(self, on_epoch: Callable[[int, float], None]) -> None:
        self.losses: list[float] = []
        self._on_epoch = on_epoch

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], **unused: Any) -> None:
        loss = metrics["eval_loss"]
        if not math.isfinite(loss):
            raise TrialError(Fault("the held-out loss", "be finite", str(loss), "lower the learning rate"))
        self.losses.append(loss)
        self._on_epoch(round(state.epoch), loss)

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        write_whole(Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE, "")


def _newest_state(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The newest complete state of a run with the same settings. Creates the folder if it does not exist.

    Raises:
        StudyError: if the folder belongs to a run with other settings.
    """
    file = folder / _SETTINGS
    if not file.is_file():
        write_whole(file, json.dumps(settings, indent=1))
        return None
    try:
        saved_settings = json.loads(file.read_text(encoding="utf8"))
    except ValueError:
        saved_settings = None
    if saved_settings != settings:
        remedy = f"call the command as it was, or remove {folder}"
        raise StudyError(Fault(str(folder), "be begun with the same texts, backbone and settings", "others", remedy))
    complete = [state for state in folder.glob("checkpoint-*") if (state / _WHOLE).is_file()]
    newest = max(complete, key=lambda state: int(state.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)
