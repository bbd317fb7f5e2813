"""The command ``tutti`` and its subcommands."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from tutti import __version__
from tutti.cli import backbone, demo, export, guests, jobs, leaderboard, new, study, tune
from tutti.cluster.ending import EXIT_CODE, terminated_as_interrupted
from tutti.errors import Fault, TuttiError
from tutti.launchers import forget_launcher
from tutti.modeling.new_backbone import new_backbone
from tutti.workflows.console import make_console
from tutti.workflows.demo import run_demo
from tutti.workflows.new import new_study
from tutti.workflows.push import push
from tutti.workflows.study import Study
from tutti.workflows.submit import jobs as list_jobs

app = typer.Typer(
    name="tutti",
    help="Tunes many fine-tuned text encoders and decoders on a Ray cluster and lets the best of them vote.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tutti {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Tunes many fine-tuned text encoders and decoders on a Ray cluster and lets the best of them vote."""


# Each command, and the call of the Python API that it is.
COMMANDS: dict[str, tuple[Callable[..., None], Callable[..., object]]] = {
    "new": (new.new, new_study),
    "tune": (tune.tune, Study.tune),
    "trials": (study.trials, Study.records),
    "ui": (study.ui, Study.ui),
    "doctor": (study.doctor, Study.doctor),
    "ensemble": (study.ensemble, Study.ensemble),
    "pseudo-label": (study.pseudo_label, Study.pseudo_labels),
    "predict": (study.predict, Study.predict),
    "soup": (study.soup, Study.soup),
    "export": (export.export, Study.export),
    "push": (export.push, push),
    "refit": (study.refit, Study.refit),
    "report": (study.report, Study.report),
    "round": (study.round_, Study.round),
    "submit": (jobs.submit, Study.submit),
    "jobs": (jobs.jobs, list_jobs),
    "demo": (demo.demo, run_demo),
    "backbone new": (backbone.new, new_backbone),
    "backbone pretrain": (backbone.pretrain, Study.pretrain),
    "backbone probe": (backbone.probe, Study.probe),
    "second": (guests.second, Study.second),
    "bank import": (guests.import_, Study.import_predictions),
    "bank export": (guests.export, Study.export_predictions),
    "bank generate": (guests.generate, Study.generate),
    "leaderboard add": (leaderboard.add, Study.add_public_score),
    "leaderboard show": (leaderboard.show, Study.leaderboard),
    "leaderboard choose": (leaderboard.choose, Study.choose_submissions),
}
groups = {
    "backbone": typer.Typer(help="Make backbones, and try them.", no_args_is_help=True),
    "bank": typer.Typer(
        help="Takes predictions from elsewhere, gives the study's away, has texts written anew.",
        no_args_is_help=True,
    ),
    "leaderboard": typer.Typer(
        help="Keeps what a competition's leaderboard said of submissions.", no_args_is_help=True
    ),
}
for _name, (_command, _) in COMMANDS.items():
    _group, _space, _own = _name.rpartition(" ")
    groups.get(_group, app).command(_own)(_command)
for _name, _app in groups.items():
    app.add_typer(_app, name=_name)


def run() -> None:
    """Runs the command. Exit code: 0 on success, 2 for a user's mistake, 130 when interrupted, 1 for other errors."""
    forget_launcher()
    atexit.register(gc.freeze)  # saves 2 s at exit, when Python would collect garbage among torch's objects once more
    console = make_console(stderr=True)
    try:
        with terminated_as_interrupted():
            app()
    except TuttiError as error:
        for fault in error.faults:
            console.print(f"error: {fault}", style="red")
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        fault = Fault(
            str(error.filename or "the command's output"), "be written whole", str(error.strerror), "free some space"
        )
        console.print(f"error: {fault}", style="red")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try to write the rest at exit
        sys.exit(1)
    except SystemExit as exit_:
        if exit_.code == EXIT_CODE:  # a second Ctrl-C during interpreter shutdown would print a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
