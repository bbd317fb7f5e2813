"""What only shows when a schedule and an optimizer are built: done with one weight, before any trial starts."""

from __future__ import annotations

from copy import copy

import torch
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.trainer_optimizer import is_optimizer_factory

from tutti.errors import Fault, nearest

_STEPS = 10  # of a schedule that is tried out


def attention_faults(what: str, value: str | None) -> list[Fault]:
    """Of a value of attn_implementation that transformers has no function for; kernels of a hub would be code."""
    names = ["eager", *sorted(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name)]
    if value is None or value in names:
        return []
    return [Fault(what, f"be one of {', '.join(names)}", repr(value), nearest(value, names, otherwise="name one"))]


def built_faults(where: str, args: TrainingArguments) -> list[Fault]:
    """What is wrong with lr_scheduler_kwargs and optim_args, for the schedule and the optimizer that are named."""
    return _scheduler_faults(where, args) + _optimizer_faults(where, args)


def _scheduler_faults(where: str, args: TrainingArguments) -> list[Fault]:
    given = args.lr_scheduler_kwargs
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    try:
        get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(_STEPS),
            num_training_steps=_STEPS,
            scheduler_specific_kwargs=dict(given or {}),
        )
    except (ValueError, TypeError) as error:
        name = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        rule, remedy = f"be what the schedule {name} takes", "correct it, or name another lr_scheduler_type"
        return [Fault(f"{where}.lr_scheduler_kwargs", rule, f"{given or 'none'} ({_line(error)})", remedy)]
    return []


def _optimizer_faults(where: str, args: TrainingArguments) -> list[Fault]:
    if not args.optim_args:
        return []
    name = getattr(args.optim, "value", args.optim)
    pairs = args.optim_args.replace(" ", "").split(",")
    what, rule = f"{where}.optim_args", f"be settings that the optimizer {name} takes, as KEY=VALUE,KEY=VALUE"
    remedy = "correct it, or name another optim"
    try:
        made, settings = Trainer.get_optimizer_cls_and_kwargs(args)
        if is_optimizer_factory(made):  # made of the model's own parts: the trial tells
            return []
        made([torch.nn.Parameter(torch.zeros(1))], **settings)
        for index, pair in enumerate(pairs):
            less = copy(args)
            less.optim_args = ",".join(pairs[:index] + pairs[index + 1 :]) or None
            if Trainer.get_optimizer_cls_and_kwargs(less)[1] == settings:  # transformers passes over it in silence
                return [Fault(what, rule, f"{pair!r}, which changes nothing", remedy)]
    except ImportError:  # of a package that the machine that trains may have
        return []
    except (ValueError, TypeError, AttributeError) as error:
        return [Fault(what, rule, f"{args.optim_args!r} ({_line(error)})", remedy)]
    return []


def _line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
