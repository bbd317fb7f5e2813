"""TrainingArguments of a trial on the machine that trains it, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from tutti.errors import Fault, TrialError
from tutti.training.options import FIXED
from tutti.training.precision import PRECISIONS, with_precision
from tutti.training.ranks import gathered, world_size
from tutti.training.sharding import keep_full_precision


def training_arguments(arguments: Mapping[str, Any], folder: Path, *, began_in: str | None = None) -> TrainingArguments:
    """The user's fields with Tutti's own over them, and a precision that every rank has.

    Args:
        began_in: the precision of a run that goes on, which it keeps where this machine has it.

    Raises:
        TrialError: where the fields do not fit this machine, or the process group is not the environment's.
    """
    given = {"use_cpu": not torch.cuda.is_available(), **arguments}
    given = with_precision(given, cpu=given["use_cpu"], began_in=began_in)
    if not {"bf16", "fp16"} & arguments.keys():  # on unlike machines, what the least of them has
        known = gathered({name: bool(given.get(name)) for name in PRECISIONS})
        given |= {name: all(each[name] for each in known) for name in PRECISIONS if name in given}
    with fits_the_machine(ValueError, ImportError):  # such as bf16 on a GPU without it
        args = TrainingArguments(**{**given, **FIXED, "output_dir": str(folder)})
    keep_full_precision(args)
    if args.fp16 and args.device.type == "cpu":  # accelerate would train in float32 without a word
        what = "the training key fp16"
        raise TrialError(Fault(what, "be left out on a CPU", "fp16 without a GPU", "set bf16 instead, or use a GPU"))
    if args.world_size != world_size():
        got = f"{args.world_size} by the environment variables"
        remedy = "set RANK, WORLD_SIZE and LOCAL_RANK on every worker before the process group is made"
        raise TrialError(Fault("the number of workers", f"be the process group's {world_size()}", got, remedy))
    return args


@contextmanager
def fits_the_machine(*kinds: type[Exception]) -> Iterator[None]:
    """Turns what libraries raise for keys that do not fit into a TrialError with their sentence."""
    try:
        yield
    except kinds as error:
        got = str(error).splitlines()[0] if str(error) else type(error).__name__
        what, remedy = "the training keys", "change them in the study file"
        raise TrialError(Fault(what, "fit the machine that trains", got, remedy)) from error
