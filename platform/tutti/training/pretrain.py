"""Goes on pretraining a backbone on a study's own texts, without their labels, before it is fine-tuned.

Task-adaptive pretraining (Gururangan et al. 2020, arXiv 2004.10964) by masked language modelling (BERT, arXiv
1810.04805): 15 % of the tokens are to be guessed from the others.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from tutti.data.encode import EncodedPart, distinct_rows, load_tokenizer, tokens_sha256
from tutti.errors import BackboneError, Fault, StudyError, TrialError
from tutti.files import storage_faults, whole_folder, write_whole
from tutti.modeling.model import check_backbone_folder, no_progress_bars
from tutti.training.arguments import fits_the_machine
from tutti.training.one_device import OneDeviceTrainer
from tutti.training.precision import with_precision

MASKED = 0.15  # of the tokens, as in BERT
SAME_SHAPE = 64  # masked tokens
HELD_OUT, MOST_HELD_OUT = 0.05, 2_000  # of the rows, to see what is learnt
_SETTINGS, _WHOLE = "settings.json", "whole"
_HEADS = ("cls", "lm_head")  # what turns token vectors into logits, one token at a time: of BERT's and RoBERTa's kin


@dataclass(frozen=True)
class Pretrained:
    """What was made: where it is, from how many rows, and how well held-out tokens are guessed.

    Attributes:
        loss: mean cross-entropy of the masked tokens of held-out rows, in nats.
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
) -> Pretrained:
    """Trains the backbone to guess masked tokens of the rows of ``parts``; writes it, with its tokenizer, to ``out``.

    Equal rows count once. A run that was cut off goes on from its last whole epoch, which lies in ``OUT.unfinished``.

    Args:
        backbone: a hub id or folder; the head that guesses is new where it has none.
        out: a new or empty folder, which ``backbone:`` of a study file then takes.
        learning_rate: the highest, after 6 % of the steps; it falls to zero linearly.
        on_epoch: called with the epoch and the held-out loss in nats.

    Raises:
        BackboneError: where the backbone does not load, cannot guess tokens, or ``out`` holds something.
        StudyError: where ``OUT.unfinished`` was begun with other texts or settings.
        TrialError: where the loss is not finite.
        StorageError: where a file cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        remedy = "name another folder, or remove this one"
        raise BackboneError(Fault(str(out), "be a new or an empty folder", "one that holds files", remedy))
    work = out.with_name(f"{out.name}.unfinished")
    tokenizer = load_tokenizer(backbone)
    if tokenizer.mask_token is None:
        rule, remedy = "have a mask token", "name an encoder such as BERT or RoBERTa"
        raise BackboneError(Fault(f"the backbone {backbone!r}", rule, "a tokenizer without one", remedy))
    rows = distinct_rows(parts)
    if len(rows) < 2:
        rule = "hold at least two different texts, one of them to be held out"
        raise StudyError(Fault("the study's tasks", rule, str(len(rows)), "add rows or files"))
    settings = {
        "backbone": backbone,
        "rows": len(rows),
        "tokens": tokens_sha256(rows),  # with others, rows held out now may have been learnt
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "seed": seed,
    }
    last = _last_whole(work, settings)
    set_seed(seed)
    model = _load(backbone)
    held = rows.train_test_split(min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(rows)))), seed=seed)
    given = {"use_cpu": not torch.cuda.is_available()}
    with fits_the_machine(ValueError, ImportError):
        args = TrainingArguments(
            **with_precision(given, cpu=given["use_cpu"]),
            output_dir=str(work),
            num_train_epochs=epochs,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=batch_size,
            train_sampling_strategy="group_by_length",
            warmup_steps=0.06,
            weight_decay=0.01,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            logging_strategy="epoch",
            prediction_loss_only=True,
            report_to="none",
            disable_tqdm=True,
            seed=seed,
        )
    watch = _Watch(on_epoch)
    trainer = _MaskedTrainer(
        model=model,
        args=args,
        train_dataset=held["train"],
        eval_dataset=held["test"],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED),
        callbacks=[watch],
    )
    with storage_faults(work), no_progress_bars():
        trainer.train(resume_from_checkpoint=last)
        if not watch.losses:  # it was cut off after its last epoch
            trainer.evaluate()
    with whole_folder(out) as folder, no_progress_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    shutil.rmtree(work, ignore_errors=True)
    return Pretrained(path=out, rows=len(rows), loss=watch.losses[-1])


class _MaskedTrainer(OneDeviceTrainer):
    """Computes logits of the masked tokens alone: of a small encoder the head takes longer than all of its layers."""

    def __init__(self, model: PreTrainedModel, **options: Any) -> None:
        super().__init__(model=model, **options)
        self._wanted: Tensor | None = None
        head = next(
            (getattr(model, name) for name in _HEADS if isinstance(getattr(model, name, None), nn.Module)), None
        )
        self._picks = head is not None
        if head is not None:  # all of it works on one token at a time
            head.register_forward_pre_hook(lambda _, inputs: (inputs[0].flatten(0, 1)[self._wanted], *inputs[1:]))

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **unused: Any
    ) -> Any:
        labels = inputs.pop("labels").flatten()
        masked = labels != -100
        self._wanted = _filled_up(masked)
        outputs = model(**inputs)
        logits = outputs.logits if self._picks else outputs.logits.flatten(0, 1)[self._wanted]
        # The sum over no token at all, as a short batch may have it, is zero and not a mean over nothing.
        loss = nn.functional.cross_entropy(logits.float(), labels[self._wanted], reduction="sum")
        loss = loss / masked.sum().clamp(min=1)
        return (loss, outputs) if return_outputs else loss


def _filled_up(masked: Tensor) -> Tensor:
    """``(tokens,)`` int64: where ``masked`` is true, and as many other places, whose label is to be ignored, as make
    their number a multiple of 64.

    No two batches have as many masked tokens, and for each new number a CPU compiles the products of the head anew: a
    quarter of a small encoder's step.
    """
    wanted = masked.nonzero().squeeze(1)
    return torch.cat([wanted, (~masked).nonzero().squeeze(1)[: -len(wanted) % SAME_SHAPE]])


class _Watch(TrainerCallback):
    """Tells each epoch's loss, and marks a state as whole when all its files are there."""

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


def _load(backbone: str) -> PreTrainedModel:
    what = f"the backbone {backbone!r}"
    check_backbone_folder(backbone)
    try:
        config = AutoConfig.from_pretrained(backbone, trust_remote_code=False)
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
            remedy = "name an encoder such as BERT or RoBERTa"
            raise BackboneError(Fault(what, "have a form that guesses masked tokens", config.model_type, remedy))
        with no_progress_bars():
            model = AutoModelForMaskedLM.from_pretrained(backbone, config=config, dtype=torch.float32)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        remedy = "see that the id is right and the hub can be reached, or name a folder"
        raise BackboneError(Fault(what, "load", str(error).splitlines()[0].rstrip("."), remedy)) from error
    assert isinstance(model, PreTrainedModel)
    return model


def _last_whole(work: Path, settings: Mapping[str, Any]) -> str | None:
    """The newest whole state in a folder begun with the same settings; the folder is made where there is none."""
    file = work / _SETTINGS
    if not file.is_file():
        write_whole(file, json.dumps(settings, indent=1))
        return None
    try:
        begun = json.loads(file.read_text(encoding="utf8"))
    except ValueError:
        begun = None
    if begun != settings:
        remedy = f"call the command as it was, or remove {work}"
        raise StudyError(Fault(str(work), "be begun with the same texts and settings", "others", remedy))
    whole = [folder for folder in work.glob("checkpoint-*") if (folder / _WHOLE).is_file()]
    newest = max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)
