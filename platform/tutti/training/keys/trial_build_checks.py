"""Builds the schedule and the optimizer of a trial for a single weight, to find errors before any trial starts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from accelerate.utils import DynamoBackend
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.trainer_optimizer import is_optimizer_factory

from tutti.errors import Fault, first_line, nearest
from tutti.modeling.packed import VARLEN
from tutti.training.keys.schedules import EVALUATED, schedule_of, schedule_settings

_STEPS = 10  # length of the schedule that is built


def attention_faults(what: str, value: str) -> list[Fault]:
    """The fault of an attn_implementation that does not serve.

    Hub kernels are refused, because they are code, and flex_attention, because it has no dropout of attention.
    """
    others = ("flex_attention", VARLEN)  # the latter is our own, once rows were packed
    known = (name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name and name not in others)
    return _choice_faults(what, value, ["eager", *sorted(known)])


def compiler_faults(what: str, key: str, value: str) -> list[Fault]:
    """The fault of a torch_compile_backend or torch_compile_mode by a name that torch does not know."""
    if key == "torch_compile_mode":
        names = sorted(torch._inductor.list_mode_options())
    else:  # those that accelerate passes on and torch has
        names = sorted({backend.lower() for backend in DynamoBackend} & {*torch._dynamo.list_backends(())})
    return _choice_faults(what, value, names)


def _choice_faults(what: str, value: str, names: Sequence[str]) -> list[Fault]:
    if value in names:
        return []
    return [Fault(what, f"be one of {', '.join(names)}", repr(value), nearest(value, names, otherwise="name one"))]


def build_faults(where: str, args: TrainingArguments, *, best_by: str) -> list[Fault]:
    """Faults of lr_scheduler_kwargs and optim_args with the configured schedule and optimizer."""
    return _scheduler_faults(where, args, best_by) + _optimizer_faults(where, args)


def _scheduler_faults(where: str, args: TrainingArguments, best_by: str) -> list[Fault]:
    settings, name = args.lr_scheduler_kwargs, schedule_of(args)
    if name in EVALUATED and "mode" in (settings or {}):
        rule = "be left out: whether a higher value is better is known, of the score and of the loss"
        return [Fault(f"{where}.lr_scheduler_kwargs.mode", rule, repr(settings["mode"]), "take it out")]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    try:
        get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(_STEPS),
            num_training_steps=_STEPS,
            scheduler_specific_kwargs=schedule_settings(args, best_by=best_by),
        )
    except (ValueError, TypeError) as error:
        rule, remedy = f"be what the schedule {name} takes", "correct it, or name another lr_scheduler_type"
        return [Fault(f"{where}.lr_scheduler_kwargs", rule, f"{settings or 'none'} ({first_line(error)})", remedy)]
    return []


def _optimizer_faults(where: str, args: TrainingArguments) -> list[Fault]:
    if not args.optim_args:
        return []
    name = getattr(args.optim, "value", args.optim)
    pairs = args.optim_args.replace(" ", "").split(",")
    what, rule = f"{where}.optim_args", f"be settings that the optimizer {name} takes, as KEY=VALUE,KEY=VALUE"
    remedy = "correct it, or name another optim"
    try:
        optimizer_class, settings = Trainer.get_optimizer_cls_and_kwargs(args)
        if is_optimizer_factory(optimizer_class):  # needs the real model: only the trial can tell
            return []
        optimizer_class([torch.nn.Parameter(torch.zeros(1))], **settings)
        for index, pair in enumerate(pairs):
            without_pair = copy(args)
            without_pair.optim_args = ",".join(pairs[:index] + pairs[index + 1 :]) or None
            if Trainer.get_optimizer_cls_and_kwargs(without_pair)[1] == settings:  # transformers silently ignores it
                return [Fault(what, rule, f"{pair!r}, which changes nothing", remedy)]
    except ImportError:  # a package that the training machine may have
        return []
    except (ValueError, TypeError, AttributeError) as error:
        return [Fault(what, rule, f"{args.optim_args!r} ({first_line(error)})", remedy)]
    return []
