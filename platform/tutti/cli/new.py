"""``tutti new``: from the files of a competition to a study file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from tutti.cli.options import local
from tutti.data.guess.shapes import ShapeName
from tutti.workflows.console import console, program
from tutti.workflows.new import new_study

_SHAPES = ", ".join(get_args(ShapeName))


def new(
    files: Annotated[list[Path], typer.Argument(metavar="FOLDER|FILE...", help="What the competition hands out.")],
    out: Annotated[Path, typer.Option("--out", metavar="STUDY.yaml", help="The study file.", callback=local)] = Path(
        "study.yaml"
    ),
    metric: Annotated[str | None, typer.Option("--metric", help="That decides; asked for in a terminal.")] = None,
    like: Annotated[str | None, typer.Option("--like", metavar="NAME", help=f"A known solution: {_SHAPES}.")] = None,
    backbone: Annotated[
        str | None, typer.Option("--backbone", help="A hub id or folder; by default one for the language.")
    ] = None,
) -> None:
    """Writes a study file for a competition's files that runs as it is, and a page of what they hold.

    Train, test and sample submission are told by their names; columns, ids, groups, the kind of the labels and their
    order, language and lengths by what is in them. Each guess is a comment in the file.

    Example: `tutti new emotions --metric macro_f1`
    """
    ask = _ask if metric is None and sys.stdin.isatty() else None
    made = new_study(files, out, metric=metric, like=like, backbone=backbone, ask=ask)
    console.print(f"wrote {made.file} and {made.page}. Next:")
    console.print(f"  {program()} tune {shlex.quote(str(made.file))}")
    console.print(f"  {program()} ensemble {made.study} --recipe auto")


def _ask(task: str, metrics: Sequence[str]) -> str:
    console.print(f"Metrics that fit {task}: {', '.join(metrics)}")
    return str(typer.prompt("Which one decides", default=metrics[0]))
