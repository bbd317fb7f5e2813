"""Arguments and options that several commands have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tutti.cluster.ending import EXIT_CODE
from tutti.config.address import address_fault
from tutti.errors import ConfigError, StudyError
from tutti.workflows.console import console
from tutti.workflows.tune import parse_trials


def local(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """The path given for an option, if any.

    Raises:
        ConfigError: if it is an address, such as ``s3://bucket/out``.
    """
    if path and (fault := address_fault(path, what=option.opts[0])):
        raise ConfigError(fault)
    return path


def _trials(trials: str | None) -> str | None:
    try:
        parse_trials(trials or "1")
    except StudyError as error:
        rule = error.faults[0].rule
        raise typer.BadParameter(f"Must {rule}; got {trials!r}.") from error
    return trials


Study = Annotated[str, typer.Argument(metavar="STUDY", help="A study's name or folder.")]
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file.")]
Trials = Annotated[
    str | None,
    typer.Option(metavar="N|+N", help="How many trials the study shall have, or how many more.", callback=_trials),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the study, or start it if there is none yet.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; may be repeated.")
]
RecipeName = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME|FILE", help="A recipe; by default the study's own.")
]
With = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="STUDY", help="Another study whose trials may vote too. May be given again."),
]
Task = Annotated[str | None, typer.Option("--task", help="Which task, where the study has several.")]
Checkpoint = Annotated[
    Path | None, typer.Option("--checkpoint", metavar="DIR", help="One checkpoint alone, such as a soup.")
]
Refit = Annotated[bool, typer.Option("--refit", help="With the members that `tutti refit` trained on all rows.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where to write; by default in the study.", callback=local)
]


@contextmanager
def interruptible(sentence: Callable[[str], str]) -> Iterator[None]:
    """Ends the command with one sentence instead of a traceback when it is interrupted.

    Args:
        sentence: returns it, given what the workflow says that is left to do: a text that may be empty.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        console.print(sentence(str(error)))
        sys.exit(EXIT_CODE)


def going_on(command: Callable[[], str]) -> Callable[[str], str]:
    """The sentence that names the command that goes on with a study."""
    return lambda left: f"Interrupted{': ' * bool(left)}{left}; go on with `{command()}`."
