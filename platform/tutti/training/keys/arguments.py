"""A trial's TrainingArguments on the machine that trains it, identical on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from tutti.errors import Fault, TrialError, first_line
from tutti.training.keys.options import FIXED
from tutti.training.keys.schedules import arguments_of
from tutti.training.machine.precision import PRECISIONS, is_automatic, with_precision
from tutti.training.machine.ranks import gathered, world_size
from tutti.training.machine.sharding import keep_full_precision


def training_arguments(
    arguments: Mapping[str, Any], folder: Path, *, model_type: str, began_in: str | None
) -> TrainingArguments:
    """The user's fields, overridden by Tutti's fixed ones, with a precision that every rank supports.

    Args:
        model_type: of the encoder.
        began_in: the precision of a resumed run, which is kept if this machine supports it; None for a new run.

    Raises:
        TrialError: if the fields do not fit this machine, or the process group does not match the environment.
    """
    use_cpu = bool(arguments.get("use_cpu")) or not torch.cuda.is_available()
    fields = with_precision({**arguments, "use_cpu": use_cpu}, cpu=use_cpu, model_type=model_type, began_in=began_in)
    if is_automatic(arguments):  # unlike machines use what all of them support
        by_rank = gathered({name: bool(fields.get(name)) for name in PRECISIONS})
        fields |= {name: all(flags[name] for flags in by_rank) for name in PRECISIONS if name in fields}
    with machine_faults(ValueError, ImportError):  # for example bf16 on a GPU that lacks it
        args = arguments_of({**fields, **FIXED, "output_dir": str(folder)})
    keep_full_precision(args)
    if args.fp16 and args.device.type == "cpu":  # accelerate would silently train in float32
        what = "the training key fp16"
        raise TrialError(Fault(what, "be left out on a CPU", "fp16 without a GPU", "set bf16 instead, or use a GPU"))
    if args.world_size != world_size():
        got = f"{args.world_size} by the environment variables"
        remedy = "set RANK, WORLD_SIZE and LOCAL_RANK on every worker before the process group is made"
        raise TrialError(Fault("the number of workers", f"be the process group's {world_size()}", got, remedy))
    return args


@contextmanager
def machine_faults(*kinds: type[Exception]) -> Iterator[None]:
    """Converts errors that libraries raise for unsuitable training keys into a TrialError with their message."""
    try:
        yield
    except kinds as error:
        what, remedy = "the training keys", "change them in the study file"
        raise TrialError(Fault(what, "fit the machine that trains", first_line(error), remedy)) from error
