"""What a user can set of a pretraining run, and the checks of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tutti.errors import BackboneError, Fault
from tutti.files import new_folder_fault

ObjectiveName = Literal["masked", "electra", "causal"]
Masks = Literal["tokens", "whole-words", "spans"]
LEARNING_RATES: dict[ObjectiveName, float] = {"masked": 1e-4, "electra": 5e-4, "causal": 1e-4}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The numbers of a run. Those of the optimizer are ELECTRA's (arXiv 2003.10555), which suit the other objectives.

    Attributes:
        epochs: passes over the texts; ``steps``, if given, replaces them.
        learning_rate: the peak, reached after ``warmup``; it then decays linearly to 0. None for the objective's own.
        batch_size: rows of a batch.
        accumulation: batches of an optimizer step.
        warmup: share of the steps; from 1 on, their number.
        mask_share: of the tokens that are not special. None for 0.15, with ELECTRA 0.25 from a width of 1,024 on.
        masks: what is masked as a whole: a token, a word, or a span of words (SpanBERT, arXiv 1907.10529).
        all_masks: whether every chosen token is replaced by the mask; otherwise 80% are, 10% by random tokens (BERT).
        generator_size: ELECTRA's generator's width as a share of the discriminator's.
        discriminator_weight: of the discriminator's loss beside the generator's.
        save_steps, save_minutes: a state is saved as soon as one of them has passed; 0 steps for never by steps.
        evaluate_steps: the held-out loss is also measured every so many steps; 0 for after each epoch alone.
        log_steps: progress is reported every so many steps.
    """

    epochs: int = 10
    steps: int | None = None
    learning_rate: float | None = None
    batch_size: int = 64
    accumulation: int = 1
    warmup: float = 0.06
    weight_decay: float = 0.01
    adam_epsilon: float = 1e-6
    max_grad_norm: float = 1.0
    mask_share: float | None = None
    masks: Masks = "tokens"
    all_masks: bool = False
    generator_size: float = 0.25
    discriminator_weight: float = 50.0
    seed: int = 0
    save_steps: int = 0
    save_minutes: float = 10.0
    evaluate_steps: int = 0
    log_steps: int = 50

    def of(self, objective: ObjectiveName) -> Settings:
        """With the objective's learning rate, unless one is given."""
        return replace(self, learning_rate=self.learning_rate or LEARNING_RATES[objective])

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0.

        Example:
            >>> [Settings(learning_rate=1.0, warmup=2).rate(step, 6) for step in range(6)]
            [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        assert self.learning_rate is not None
        warmup = min(self.warmup if self.warmup >= 1 else math.ceil(self.warmup * steps), steps)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        return self.learning_rate * (steps - step) / max(1, steps - warmup)


def check_settings(settings: Settings, *, out: Path) -> None:
    """Checks what can be told to be wrong before any text is read.

    Raises:
        BackboneError: naming every fault: ``out`` is not a new or empty folder that can be replaced, or a number is
            out of its range.
    """
    faults = [fault] if (fault := new_folder_fault(out)) else []
    faults += _number_faults(settings)
    if faults:
        raise BackboneError(*faults)


def _number_faults(settings: Settings) -> Iterator[Fault]:
    rate, share = settings.learning_rate, settings.mask_share
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        rule, remedy = "be a finite number above 0", "name a rate such as 1e-4"
        yield Fault("the learning rate", rule, f"{rate:g}", remedy)
    if share is not None and not 0 < share < 1:
        rule, remedy = "be a share of the tokens above 0 and below 1", "name one such as 0.15"
        yield Fault("--mask-share", rule, f"{share:g}", remedy)
    if not 0 < settings.generator_size <= 1:
        rule, remedy = (
            "be above 0 and at most 1, so that it is no wider than the discriminator",
            "name one such as 0.25",
        )
        yield Fault("the generator's size", rule, f"{settings.generator_size:g}", remedy)
    for name in ("warmup", "weight_decay", "discriminator_weight", "max_grad_norm", "adam_epsilon"):
        if not (math.isfinite(value := getattr(settings, name)) and value >= 0):
            yield Fault(f"--{name.replace('_', '-')}", "be a finite number, 0 or more", f"{value:g}", "correct it")
