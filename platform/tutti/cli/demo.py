"""``tutti demo``: the whole workflow on generated data, offline, on a laptop."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tutti.cli.options import going_on, interruptible, local
from tutti.workflows.console import program
from tutti.workflows.demo import run_demo


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where everything is written.", callback=local)
    ] = Path("tutti-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Of the generated data.")] = 0,
) -> None:
    """Runs the whole job on generated data: three tasks, a small encoder, trials, ensemble, submission, pseudo-labels.

    Run again, it goes on where it was.

    Example: `tutti demo --out /tmp/tutti-demo`
    """
    again = f"{program()} demo {shlex.join(['--out', str(out.absolute()), '--seed', str(seed)])}"
    with interruptible(going_on(lambda: again)):
        run_demo(out, seed=seed, again=again)
